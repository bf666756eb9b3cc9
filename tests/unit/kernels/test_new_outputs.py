"""`kernel.new(shape, tile)`: a kernel as a function whose result is a new tensor."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    In,
    KernelArgumentError,
    Lazy,
    MovedError,
    Out,
    PartitionError,
    ShapeError,
    Tile,
    empty,
    f32,
    i32,
    kernel,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from dagpu.ops.compose import Launch
from dagpu.testing import nodes_of
from tests.simulated.each_device import where as where


@kernel(
    cuda="""
__global__ void blend(Tile<float, 1> y, View<const float, 1> a, View<const float, 1> b, float by) {
    for (auto i : y) y[i] = a[i] + by * b[i];
}
"""
)
def blend(y: Out[f32], a: In[f32], b: In[f32], by: Lazy[float] = 2.0) -> None: ...


@blend.host
def _(y: Tile[f32], a: NDArray[f32], b: NDArray[f32], by: float) -> None:
    y[...] = a[y.at] + np.float32(by) * b[y.at]


@kernel(cuda="__global__ void split(Tile<int, 1> y, Tile<int, 1> z) {}")
def split(y: Out[i32], z: Out[i32]) -> None: ...


@split.host
def _(y: Tile[i32], z: Tile[i32]) -> None:
    y[...], z[...] = 1, z.size


@kernel(cuda="__global__ void late(int n, Tile<float, 1> y) {}")
def late(n: int, y: Out[f32]) -> None: ...


def test_the_result_is_the_tensor_that_the_kernel_wrote(where: Any) -> None:
    """With numbers by position, by name, by default and as ops; with smaller tiles at the edge."""
    made = blend.new((10,), (4,), partial=True)
    assert made(ones((10,)), ones((10,)), 3.0).to_host().sync().tolist() == [4] * 10
    assert made(ones((10,)), b=ones((10,))).to_host().sync().tolist() == [3] * 10
    assert made(a=zeros((10,)), b=ones((10,)), by=value(0.5)).to_host().sync().tolist() == [0.5] * 10
    assert "blend into a new tensor (10,), tile (4,)" in repr(made)


def test_the_op_is_the_one_that_is_written_by_hand() -> None:
    """Node for node: the tensor, its partition, the launch, its first result, put together."""
    short = blend.new((8,), (4,))(ones((8,)), zeros((8,)), 1.0)
    long = blend(empty((8,)).partition((4,)), ones((8,)), zeros((8,)), 1.0).first().unpartition()
    assert [type(node) for node in nodes_of(short)] == [type(node) for node in nodes_of(long)]
    written = [[node.args[3], node.kernel] for op in (short, long) for node in nodes_of(op) if isinstance(node, Launch)]
    assert written[0] == written[1]


def test_several_outputs_are_a_tuple(where: Any) -> None:
    """Of one shape, or each of its own; the same op as by hand, in a pipeline too."""
    y, z = split.new((4,), (2,))().unzip()
    assert [op.to_host().sync().tolist() for op in (y, z)] == [[1] * 4, [2] * 4]
    made = split.new([(4,), (8,)], [(2,), (4,)])
    assert repr(made) == "<kernel split into new tensors (4,), tile (2,) and (8,), tile (4,)>"

    @pipeline
    def run() -> Any:
        y, z = made().unzip()
        return zip_ops(z.to_host(), y.to_host())

    for _again in range(3):
        assert [each.tolist() for each in run().sync()] == [[4] * 8, [1] * 4]
    a, b = made().sync()
    assert (a.shape, b.shape) == ((4,), (8,))


def test_each_call_writes_to_a_tensor_of_its_own(where: Any) -> None:
    """In one op as in two, and in a pipeline, whose calls have one plan."""
    made = blend.new((4,), (2,))
    both = made(made(ones((4,)), ones((4,))), ones((4,)))
    assert both.to_host().sync().tolist() == [5] * 4

    @pipeline
    def run(t: Any, by: float) -> Any:
        return made(t, ones((4,)), by).to_host()

    for by in (1.0, 2.0, 3.0):
        assert run(ones((4,)).sync(), by).sync().tolist() == [1 + by] * 4
    assert run.cache_info()[:2] == (2, 1)


def test_what_new_refuses() -> None:
    """At once and with the user's line: other kernels, ranks and tiles. A refused call moves nothing."""
    with pytest.raises(
        KernelArgumentError, match=r"new\(\) at .* has 3 shapes, but the kernel has 2 outputs. Give one"
    ):
        split.new([(4,)] * 3, (2,))
    with pytest.raises(KernelArgumentError, match=r"test_new_outputs.py:\d+ is for outputs that come first; its .*'y'"):
        late.new((4,), (2,))  # type: ignore[misc]  # reason: the mistake
    with pytest.raises(KernelArgumentError, match="so a rank of 2, but the CUDA declaration has rank 1"):
        blend.new((4, 4), (2, 2))
    with pytest.raises(PartitionError, match=r"new\(\) at .*test_new_outputs.py:\d+: tile \(4,\) does not cut"):
        blend.new((10,), (4,))
    with pytest.raises(ShapeError, match=r"new at .*shape 4 is not a tuple"):
        blend.new(4, (4,))  # type: ignore[arg-type]  # reason: the mistake
    t = ones((4,)).sync()
    with pytest.raises(KernelArgumentError, match="lacks argument 'b'"):
        blend.new((4,), (2,))(t)  # type: ignore[call-arg]  # reason: the mistake
    assert blend.new((4,), (2,))(t, ones((4,))).to_host().sync().tolist() == [3] * 4
    with pytest.raises(MovedError):
        blend.new((4,), (2,))(t, ones((4,)))
