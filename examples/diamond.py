"""One value, several consumers: a diamond and a broadcast with `shared`, and `unzip` to
take a tuple apart.

    source            source
    /    \\           / | | \\
 doubled  squared    x1 x2 x3 x4
    \\    /           \\ | | /
     sum               tuple

An op that is not shared may be used once in a run; a second use is a `MovedError`,
never a silent second evaluation. `shared()` is the cure: its source runs once, and
every consumer gets the same immutable tensor.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    MovedError,
    Out,
    SharedTensor,
    Tensor,
    Tile,
    arange,
    empty,
    f32,
    kernel,
    zip_ops,
)

N, TILE = 1024, (256,)


@kernel(
    cuda="""
__global__ void scale(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] = a * x[i];
}
"""
)
def scale(y: Out[f32], a: float, x: In[f32]) -> None:
    """y = a * x."""


@scale.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    y[...] = a * x[y.at]


@kernel(
    cuda="""
__global__ void multiply(
    Tile<float, 1> z, View<const float, 1> x, View<const float, 1> y
) {
    for (auto i : z) z[i] = x[i] * y[i];
}
"""
)
def multiply(z: Out[f32], x: In[f32], y: In[f32]) -> None:
    """z = x * y, element by element."""


@multiply.host
def _(z: Tile[f32], x: NDArray[f32], y: NDArray[f32]) -> None:
    z[...] = x[z.at] * y[z.at]


@kernel(
    cuda="""
__global__ void sum_and_difference(Tile<float, 1> total, Tile<float, 1> difference,
                                   View<const float, 1> x, View<const float, 1> y) {
    for (auto i : total) total[i] = x[i] + y[i];
    for (auto i : difference) difference[i] = x[i] - y[i];
}
"""
)
def sum_and_difference(
    total: Out[f32], difference: Out[f32], x: In[f32], y: In[f32]
) -> None:
    """total = x + y and difference = x - y; the two outputs are cut alike."""


@sum_and_difference.host
def _(
    total: Tile[f32], difference: Tile[f32], x: NDArray[f32], y: NDArray[f32]
) -> None:
    total[...] = x[total.at] + y[total.at]
    difference[...] = x[difference.at] - y[difference.at]


def scaled(a: float, x: In[f32]) -> DeviceOp[Tensor[f32]]:
    return scale.new((N,), TILE)(a, x)


def product(x: In[f32], y: In[f32]) -> DeviceOp[Tensor[f32]]:
    return multiply.new((N,), TILE)(x, y)


def diamond(
    source: DeviceOp[SharedTensor[f32]],
) -> DeviceOp[tuple[NDArray[f32], NDArray[f32]]]:
    """Return 2x + x^2 and 2x - x^2: two branches of one source, which may overlap, join
    in one kernel."""
    plus_out, minus_out = empty((N,)).partition(TILE), empty((N,)).partition(TILE)
    both = sum_and_difference(
        plus_out, minus_out, scaled(2.0, source), product(source, source)
    )
    # one op for each argument; the kernel still runs once
    plus, minus, _, _ = both.unzip()
    return zip_ops(plus.unpartition().to_host(), minus.unpartition().to_host())


def broadcast(
    source: DeviceOp[SharedTensor[f32]],
) -> DeviceOp[tuple[NDArray[f32], ...]]:
    """Return 1x, 2x, 3x and 4x: four branches of one source, which may overlap."""
    return zip_ops(*(scaled(float(a), source).to_host() for a in range(1, 5)))


def main() -> None:
    made: list[tuple[int, ...]] = []
    source = arange(N).inspect(lambda tensor: made.append(tensor.shape)).shared()

    plus, minus = diamond(source).sync()
    multiples = broadcast(source).sync()
    print(f"at x = 3: 2x + x^2 = {plus[3]}, 2x - x^2 = {minus[3]}")
    print(f"at x = 3: 1x, 2x, 3x, 4x = {[int(multiple[3]) for multiple in multiples]}")
    print(f"the source ran {len(made)} time for 7 uses in 2 runs")

    twice = arange(N)  # the mistake: two uses without shared()
    try:
        product(twice, twice).sync()
    except MovedError as error:
        print(f"without shared(): {error}")
    else:
        raise AssertionError("an unshared op was used twice in one run")

    x = np.arange(N, dtype=f32)
    assert np.array_equal(plus, 2 * x + x * x)
    assert np.array_equal(minus, 2 * x - x * x)
    assert all(
        np.array_equal(multiple, a * x) for a, multiple in enumerate(multiples, start=1)
    )
    assert made == [(N,)]


if __name__ == "__main__":
    main()
