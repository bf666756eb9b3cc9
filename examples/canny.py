"""The edges of a photo, by Canny's method (1986): stencils, masks and hysteresis.

    grey --> blur --> thin --> strength --+--> strong --> grow --> edges, count
                                          `--> weak -------^

`thin` is one kernel: of the gradients of an element and its neighbours it keeps the
strength where no neighbour across the edge is stronger. Then strong edges grow into
the weak ones that touch them, until none is left; only their number comes to the host.
`array.nonzero` says where the edges are. NumPy, and scikit-image if it is there, find
the same ones.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_image

from dagpu import (
    DeviceOp,
    SharedTensor,
    Tensor,
    array,
    bool_,
    f64,
    from_host,
    i64,
    pipeline,
    zip_ops,
)

SIGMA, LOW, HIGH, GROWTH = 2.0, 0.1, 0.2, 16
"""The Gaussian's deviation in pixels, the least strengths of edges that are weak and
strong, and by how many pixels they grow before they are counted."""
RADIUS: Final = int(4 * SIGMA + 0.5)
GAUSSIAN: Final = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
WEIGHTS: Final = GAUSSIAN / GAUSSIAN.sum()

Mask: TypeAlias = SharedTensor[bool_]


def blurred(n: Any, down: int, along: int) -> Any:
    """Return the weighted mean of the neighbours in one direction."""
    steps = range(-RADIUS, RADIUS + 1)
    return sum(n[down * k, along * k] * w for k, w in zip(steps, WEIGHTS, strict=True))


def gradient(n: Any, row: int, column: int) -> tuple[Any, Any]:
    """Return the slopes down and along at a neighbour, by Sobel's weights."""
    at = [[n[row + i, column + k] for k in (-1, 0, 1)] for i in (-1, 0, 1)]
    left, right = ([each[k] for each in at] for k in (0, 2))
    (a, b, c), (d, e, f) = at[0], at[2]
    return (
        (d - a) + 2 * (e - b) + (f - c),
        (right[0] - left[0]) + 2 * (right[1] - left[1]) + (right[2] - left[2]),
    )


def thinned(n: Any) -> Any:
    """Return the strength of an element, 0 where one across the edge is stronger.

    Across the edge is between a straight and a diagonal neighbour, on both sides.
    """
    slopes = {(i, k): gradient(n, i, k) for i in (-1, 0, 1) for k in (-1, 0, 1)}
    m = {place: array.sqrt(d**2 + a**2) for place, (d, a) in slopes.items()}
    down, along = slopes[0, 0]
    steep, same = abs(down) > abs(along), down * along >= 0
    part = array.minimum(abs(down), abs(along)) / array.maximum(abs(down), abs(along))
    kept = m[0, 0] >= LOW
    for s in (1, -1):
        vertical = array.where(same, m[s, 0], m[-s, 0])
        straight = array.where(steep, vertical, m[0, s])
        diagonal = array.where(same, m[s, s], m[-s, s])
        kept = kept & (diagonal * part + straight * (1 - part) <= m[0, 0])
    return array.where(kept, m[0, 0], 0)


def around(n: Any) -> Any:
    """Return true if the element or one of its neighbours is."""
    found = n[0, 0]
    for place in [(i, k) for i in (-1, 0, 1) for k in (-1, 0, 1)]:
        found = found | n[place]
    return found


blur_rows = array.stencil(f64, RADIUS)(lambda n: blurred(n, 0, 1))
blur_columns = array.stencil(f64, RADIUS)(lambda n: blurred(n, 1, 0))
thin = array.stencil(f64, 2, border="symmetric")(thinned)
dilate = array.stencil(bool_, border="constant")(around)


@pipeline
def strength(grey: SharedTensor[f64]) -> DeviceOp[Tensor[f64]]:
    """Return the strengths of edges (n, m) that are one pixel thin; others are 0."""
    return array.pad(thin(blur_rows(blur_columns(grey)))[1:-1, 1:-1], 1)


@pipeline
def grow(edges: Mask, weak: Mask) -> DeviceOp[tuple[Mask, Tensor[i64]]]:
    """Return the edges after some growth into weak ones, and their number."""
    grown = dilate(edges) & weak
    for _ in range(GROWTH - 1):
        grown = dilate(grown) & weak
    result = grown.shared()
    return zip_ops(result, array.sum(result, dtype=i64))


def canny(grey: SharedTensor[f64]) -> SharedTensor[bool_]:
    """Return where the edges of a photo (n, m) are."""
    found = strength(grey).sync().share()
    weak, edges = (found > 0).sync().share(), (found >= HIGH).sync().share()
    before, count = -1, 0
    while count != before:
        edges, number = grow(edges, weak).sync()
        before, count = count, int(number.to_host().sync())
    return edges


# ---- the same in plain NumPy ------------------------------------------------


def by_numpy(grey: NDArray[f64]) -> NDArray[bool_]:
    smooth = np.pad(grey, RADIUS, "edge")
    for axis in (0, 1):
        smooth = np.apply_along_axis(np.convolve, axis, smooth, WEIGHTS, "valid")
    x = np.pad(smooth, 1, "symmetric")
    down, along = x[2:] - x[:-2], x[:, 2:] - x[:, :-2]
    down = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    along = along[:-2] + 2 * along[1:-1] + along[2:]
    m = np.hypot(down, along)

    # the place where the direction of the slope leaves the square of the neighbours
    slope = np.array((down, along))[:, 1:-1, 1:-1]
    size = np.sort(abs(slope), axis=0)
    size[1, size[1] == 0] = 1
    part, straight = size[0] / size[1], np.trunc(slope / size[1]).astype(int)
    diagonal, at = np.sign(slope).astype(int), np.indices(m.shape)[:, 1:-1, 1:-1]
    kept = m >= LOW
    kept[[0, -1]] = kept[:, [0, -1]] = False
    for s in (1, -1):
        across = m[tuple(at + s * diagonal)] * part
        across += m[tuple(at + s * straight)] * (1 - part)
        kept[1:-1, 1:-1] &= across <= m[1:-1, 1:-1]

    edges, before = kept & (m >= HIGH), np.zeros_like(kept)
    while (edges != before).any():
        before, near = edges, np.pad(edges, 1)
        near = near[2:] | near[1:-1] | near[:-2]
        edges = (near[:, 2:] | near[:, 1:-1] | near[:, :-2]) & kept
    return edges


def main() -> None:
    photo: Any = load_sample_image("china.jpg")
    grey = photo.mean(axis=2) / 255
    edges = canny(from_host(grey).sync().share())

    rows, columns = array.nonzero(edges).sync()
    count, found = rows.shape[0], edges.to_host().sync()
    top, left = (int(array.amin(each).to_host().sync()) for each in (rows, columns))
    print(f"{count} of {grey.size} pixels are edges, from row {top}, column {left} on")

    assert count == found.sum()
    assert top == found.any(axis=1).argmax()
    assert left == found.any(axis=0).argmax()
    assert (found != by_numpy(grey)).mean() < 1e-4
    if find_spec("skimage") is not None:
        theirs = import_module("skimage.feature").canny(
            grey, SIGMA, LOW, HIGH, mode="nearest"
        )
        print(f"{(found != theirs).sum()} of them are not as scikit-image finds them")
        assert (found != theirs).mean() < 1e-4


if __name__ == "__main__":
    main()
