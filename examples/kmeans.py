"""Clusters of handwritten digits by k-means, compared with scikit-learn from the same
first centres.

    images --+--> distances --> argmin --> labels --> one_hot --+-> scatter_add --> mean
    centres -'                                                  `-> sum --------------^

No kernel is written by hand: a distance is an expression that broadcasts and is added
up, and all else are functions of `dagpu.array`. An iteration is one call of a pipeline:
all but the first run by the plan of the first one. Elements are combined in an order
that follows from the shapes alone, so every run finds the same clusters, on the host
and on a GPU.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Elem,
    SharedTensor,
    Tensor,
    array,
    expr,
    f32,
    from_host,
    i64,
    pipeline,
    zeros,
    zip_ops,
)

CLUSTERS, LONGEST = 10, 100
"""Number of clusters, and of iterations at most."""

Step: TypeAlias = tuple[Tensor[f32], NDArray[np.int64]]


@expr
def squared_difference(x: Elem[f32], centre: Elem[f32]) -> Elem[f32]:
    return (x - centre) ** 2


distance = squared_difference.sum(axis=2)
"""The squares of distances, added in the kernel that computes them: the pixels of all
pairs are never in memory."""


@expr
def mean(total: Elem[f32], count: Elem[f32], before: Elem[f32]) -> Elem[f32]:
    """Return the mean of a cluster, which stays where it was if nothing belongs to
    it."""
    return array.where(count > 0, total / array.maximum(count, 1), before)


def nearest(
    images: SharedTensor[f32], centres: SharedTensor[f32]
) -> DeviceOp[Tensor[i64]]:
    """Return the number (n,) of the centre that is nearest to each image, for images
    (n, m) and centres (k, m)."""
    (n, m), k = images.shape, centres.shape[0]
    return array.argmin(
        distance(images.reshape((n, 1, m)), centres.reshape((1, k, m))), axis=1
    )


@pipeline
def iterate(images: SharedTensor[f32], centres: SharedTensor[f32]) -> DeviceOp[Step]:
    """Return the next centres (k, m), and on the host the number (n,) of the centre
    that was nearest to each image."""
    k, m = centres.shape

    def updated(labels: Tensor[i64]) -> DeviceOp[Step]:
        chosen = labels.share()
        counts = array.sum(array.one_hot(chosen, k), axis=0)
        totals = array.scatter_add(zeros((k, m)), chosen, images)
        return zip_ops(mean(totals, counts.reshape((k, 1)), centres), chosen.to_host())

    return nearest(images, centres).then(updated)


def cluster(
    images: NDArray[f32], first: NDArray[f32]
) -> tuple[NDArray[f32], NDArray[np.int64]]:
    """Return the centres and the cluster of each image, as they are once no image
    changes its cluster."""
    x, centres = from_host(images).sync().share(), from_host(first).sync().share()
    labels = np.full(len(images), -1)
    for _ in range(LONGEST):
        before = labels
        moved, labels = iterate(x, centres).sync()
        centres = moved.share()
        if np.array_equal(labels, before):
            break
    return centres.to_host().sync(), labels


def main() -> None:
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    images: NDArray[f32] = data.data.astype(np.float32)
    # the first image of each digit
    first = images[[int(np.argmax(data.target == digit)) for digit in range(CLUSTERS)]]
    centres, labels = cluster(images, first)
    made = iterate.cache_info()
    print(
        f"{len(images)} images in {CLUSTERS} clusters: {made.hits + made.misses} "
        f"iterations by {made.misses} plan"
    )
    for number in range(CLUSTERS):
        digits = np.bincount(data.target[labels == number], minlength=10)
        print(
            f"cluster {number}: {digits.sum():4} images, of them {digits.max():4} "
            f"of the digit {digits.argmax()}"
        )

    peer: Any = KMeans  # its annotations refuse what its documentation has
    other = peer(
        CLUSTERS, init=first, n_init=1, max_iter=LONGEST, tol=0, algorithm="lloyd"
    ).fit(images)
    assert np.array_equal(labels, other.labels_)
    assert np.allclose(centres, other.cluster_centers_, atol=1e-3)


if __name__ == "__main__":
    main()
