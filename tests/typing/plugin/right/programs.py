"""Programs from the documentation and the examples, and ones that a user would write after reading them."""

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import islice
from typing import TypeAlias, TypeVar

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    BorrowError,
    DeviceOp,
    In,
    MovedError,
    OwnershipError,
    SharedTensor,
    Tensor,
    TensorRef,
    arange,
    convert,
    device,
    devices,
    dup,
    empty,
    eye,
    f32,
    f64,
    from_host,
    full,
    linspace,
    memcpy,
    ones,
    plan_of,
    rand,
    use_device,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, gemm, matrix, saxpy, scale, split, total, vector

T = TypeVar("T")


def first_program() -> None:
    y, x = ones((8,)).partition((4,)), arange(8)
    op = saxpy(y, 2.0, x).first().unpartition().to_host()
    assert np.array_equal(op.sync(), 1 + 2 * np.arange(8.0))

    async def main() -> None:
        result = await op
        print(result.sum())

    trio.run(main)


def lent_for_each_run() -> None:
    so_far, ramp = zeros((8,)).sync(), ones((8,)).sync()
    for a in (0.5, 0.25, 0.25):
        saxpy(so_far.borrow_mut().partition((4,)), a, ramp.borrow()).sync()
    print(so_far.to_host().sync().sum())


Source: TypeAlias = Tensor[f32] | SharedTensor[f32] | DeviceOp[Tensor[f32]] | DeviceOp[SharedTensor[f32]]
"""An input that nobody has lent."""


def scaled(a: float, x: Source) -> DeviceOp[Tensor[f32]]:
    """A pipeline of one kernel."""
    result: DeviceOp[Tensor[f32]] = saxpy(zeros((8,)).partition((4,)), a, x).first().unpartition()
    return result


def summed(x: DeviceOp[Tensor[f32]], y: DeviceOp[Tensor[f32]]) -> DeviceOp[Tensor[f32]]:
    """x + y."""
    result: DeviceOp[Tensor[f32]] = add(empty((8,)).partition((4,)), x, y).first().unpartition()
    return result


def scaled_lent(a: float, x: In[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """A pipeline of one kernel, for whatever yields its input."""
    return saxpy(zeros((8,)).partition((4,)), a, x).first().unpartition()


def inputs_of_every_form() -> None:
    t = vector()
    for op in (scaled_lent(2.0, t.borrow()), scaled_lent(2.0, vector().share()), scaled_lent(2.0, ones((8,)))):
        op.sync()
    scaled_lent(2.0, t).sync()


def diamond() -> None:
    source = arange(8).shared()
    print(summed(scaled(2.0, source), scaled(3.0, source)).to_host().sync())
    print(scaled(4.0, source).to_host().sync())


def broadcast() -> None:
    source = arange(8).shared()
    arrays = zip_ops(*(scaled(float(a), source).to_host() for a in range(1, 5))).sync()
    print([array[3] for array in arrays])


def tree_of_sums() -> None:
    level = [ones((8,)) for _ in range(8)]
    while len(level) > 1:
        level = [summed(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    assert (level[0].to_host().sync() == 8).all()


def folded() -> None:
    result = reduce(summed, [ones((8,)) for _ in range(5)])
    assert (result.to_host().sync() == 5).all()


def positive_and_negative() -> None:
    both = split(empty((8,)).partition((4,)), empty((8,)).partition((4,)), linspace(-1, 1, 8))
    low, high, _ = both.unzip()
    print(zip_ops(low.unpartition().to_host(), high.unpartition().to_host()).sync())


def power_of_a_matrix() -> None:
    a = eye(4).share().sync()
    power = eye(4).sync()
    for _ in range(3):
        power = gemm(empty((4, 4)).partition((2, 2)), power, a).first().unpartition().sync()
    assert np.array_equal(power.to_host().sync(), np.eye(4))


def chain_of_matrices() -> None:
    def product(a: DeviceOp[Tensor[f32]], b: DeviceOp[Tensor[f32]]) -> DeviceOp[Tensor[f32]]:
        return gemm(empty((4, 4)).partition((2, 2)), a, b).first().unpartition()

    op = product(product(eye(4), full((4, 4), 2.0)), eye(4))
    print(op.to_host().sync())


def square_and_multiply() -> None:
    def times(a: SharedTensor[f32], b: SharedTensor[f32]) -> SharedTensor[f32]:
        op: DeviceOp[SharedTensor[f32]] = gemm(empty((4, 4)).partition((2, 2)), a, b).first().unpartition().share()
        return op.sync()

    base, result, exponent = matrix().share(), eye(4).share().sync(), 5
    while exponent:
        if exponent % 2:
            result = times(result, base)
        base = times(base, base)
        exponent //= 2
    print(result.to_host().sync())


def jacobi_until_it_settles() -> None:
    old, new = zeros((8,)).sync(), zeros((8,)).sync()
    change = float("inf")
    while change > 1.0:
        saxpy(new.borrow_mut().partition((4,)), 0.5, ones((8,))).sync()
        change = abs(total(new.borrow()) - total(old.borrow())) - 3.5
        old, new = new, old
    print(total(old.borrow()))


def histogram_on_the_host() -> None:
    t = rand((8,), seed=1).sync()
    counts, _ = np.histogram(t.borrow().to_host().sync(), bins=4)
    print(counts, t.shape)


def statistics() -> None:
    def statistics_of(x: TensorRef[f32]) -> DeviceOp[tuple[float, float], Borrowed]:
        return x.to_host().host_map(lambda array: (float(array.mean()), float(array.std())))

    t = rand((8,), seed=1).sync()
    mean, deviation = statistics_of(t.borrow()).sync()
    print(mean, deviation)
    eat(t)


def in_double_precision() -> None:
    t = vector()
    wide = convert(t.borrow(), f64).sync()
    narrow = convert(wide, f32).sync()
    print(narrow.dtype, t.dtype)


def two_devices() -> None:
    w = vector().share()
    copies = [dup(w).on(place).sync() for place in ("host:0", "host:1")]
    print([copy.device.name for copy in copies])
    for copy in copies:
        eat(copy)


def device_for_a_block() -> None:
    with use_device("host:1") as place:
        t = zeros((8,)).sync()
        print(place.name, t.device.name)
    eat(t)
    print(device("host:0").name, len(devices()))


def plan_is_looked_at() -> None:
    op = scaled(2.0, ones((8,)))
    print(plan_of(op).peak_bytes)
    print(op.sync().shape)


def conflict_is_caught() -> None:
    y, x = vector(), vector()
    try:
        saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()).sync()
    except (BorrowError, MovedError) as error:
        print(error)
    print(y.shape, x.shape)


def unwrap_is_refused() -> None:
    shared = vector().share()
    other = shared.clone()
    try:
        owned = shared.try_unwrap()
    except OwnershipError as error:
        print(error, shared.shape)
        del other
        owned = shared.try_unwrap()
    eat(owned)


def sliding_windows() -> None:
    signal = arange(8).sync()
    sums = [total(signal.slice(slice(start, start + 3))) for start in range(6)]
    print(sums)
    eat(signal)


def blocks_of_a_matrix() -> None:
    t = matrix()
    corners = [t.slice(slice(0, 2), slice(0, 2)), t.slice(slice(2, 4), slice(2, 4))]
    print([total(corner) for corner in corners])
    eat(t)


def chunked() -> None:
    def chunks(array: NDArray[f32], size: int) -> Iterable[NDArray[f32]]:
        for start in range(0, len(array), size):
            yield array[start : start + size]

    so_far = zeros((4,)).sync()
    for chunk in islice(chunks(np.ones(16, np.float32), 4), 3):
        saxpy(so_far.borrow_mut().partition((2,)), 1.0, from_host(chunk)).sync()
    print(so_far.to_host().sync())


def staged_copies() -> None:
    stage = empty((8,)).sync()
    outputs: list[NDArray[f32]] = []
    for number in range(3):
        source = full((8,), float(number)).sync()
        memcpy(stage.borrow_mut(), source).sync()
        scale(stage.borrow_mut().partition((4,)), 2.0).sync()
        outputs.append(stage.borrow().to_host().sync())
    print(outputs)


def pipeline_of_functions() -> None:
    def pipe(op: DeviceOp[T], *steps: Callable[[DeviceOp[T]], DeviceOp[T]]) -> DeviceOp[T]:
        for step in steps:
            op = step(op)
        return op

    result = pipe(ones((8,)), lambda op: scaled(2.0, op), lambda op: scaled(3.0, op))
    assert (result.to_host().sync() == 6).all()
