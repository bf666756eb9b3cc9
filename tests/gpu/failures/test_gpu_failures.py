"""Mistakes of kernels, reported before the launch if possible, and otherwise in the user's terms."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    BorrowError,
    CompileError,
    DagpuError,
    Device,
    In,
    KernelArgumentError,
    KernelBoundsError,
    Out,
    device,
    dup,
    empty,
    f32,
    from_host,
    i32,
    kernel,
    ones,
    zeros,
    zip_ops,
)
from tests.gpu.support.gpu_kernels import add
from tests.gpu.support.gpu_support import MAX_GRID_Y, MAX_SHARED_OPTIN, NAME, attribute, digits_of
from tests.support.handle_cases import line

FILE = __file__


# ---- limits of a launch


@kernel(
    cuda="""
extern __shared__ int kept[];

__global__ void reversed(Tile<int, 1> y, View<const int, 1> x) {
    const int count = static_cast<int>(y.tile_extent(0)), first = static_cast<int>(y.origin(0));
    for (auto i : y) kept[i - first] = x[i];
    __syncthreads();
    for (auto i : y) y[i] = kept[count - 1 - (i - first)];
}
"""
)
def reversed(y: Out[i32], x: In[i32]) -> None:  # noqa: A001  # it is what it does
    """Each tile of y is that of x backwards, by way of shared memory: 4 bytes for each element of a tile."""


@kernel(
    cuda="""
__global__ void __launch_bounds__(128) bounded(Tile<int, 1> y) {
    for (auto i : y) y[i] = blockDim.x;
}
"""
)
def bounded(y: Out[i32]) -> None:
    """y = threads of a block, at most 128 by its declaration."""


def refused(op: Any) -> str:
    """Return the error that refuses a run of the op before anything is launched."""
    with pytest.raises(KernelArgumentError) as caught:
        op.sync()
    return digits_of(str(caught.value))


def works() -> None:
    assert add(ones((8,)).partition((4,)), ones((8,))).first().unpartition().to_host().sync().tolist() == [2.0] * 8


@pytest.mark.parametrize("nbytes", [4 * 256, 48 << 10, 64 << 10, 200 << 10])
def test_shared_memory(cuda: Device, nbytes: int) -> None:
    """A kernel may use as much shared memory as the device allows, also above 48 KiB, where the driver has to be asked
    for it.
    """
    tile = nbytes // 4
    x = np.arange(3 * tile, dtype=i32)
    op = reversed.shared_memory(nbytes)(empty((3 * tile,), i32).partition((tile,)), from_host(x))
    y = op.first().unpartition().to_host().sync()
    np.testing.assert_array_equal(y, x.reshape(3, tile)[:, ::-1].ravel())


def test_too_much_shared_memory(cuda: Device) -> None:
    """KernelArgumentError with the kernel, what it asked for, and the device's limit; nothing is launched."""
    limit = attribute(MAX_SHARED_OPTIN)
    for nbytes in (limit + 1, 10 << 20):
        op = reversed.shared_memory(nbytes)(empty((256,), i32).partition((256,)), zeros((256,), i32))
        here = line(1)
        said = refused(op)
        for part in ("reversed", str(nbytes), str(limit), here):
            assert part in said
    works()


def test_too_many_threads_for_the_kernel(cuda: Device) -> None:
    """More threads than its registers or its own bounds allow: KernelArgumentError with that limit."""
    said = refused(bounded.block(256)(empty((256,), i32).partition((256,))))
    for part in ("bounded", "256", "128"):
        assert part in said
    fits = bounded.block(128)(empty((256,), i32).partition((256,))).first().unpartition().to_host().sync()
    assert fits.tolist() == [128] * 256
    chosen = bounded(empty((256,), i32).partition((256,))).first().unpartition().to_host().sync()
    assert set(chosen.tolist()) <= set(range(1, 129))


def test_too_large_a_grid(cuda: Device) -> None:
    """A grid of one's own that no launch may have is refused with the limit of its axis."""
    limit = attribute(MAX_GRID_Y)
    said = refused(add.grid(1, limit + 1)(ones((8,)).partition((4,)), ones((8,))))
    for part in ("add", str(limit + 1), str(limit)):
        assert part in said
    works()


def test_a_refused_launch_leaves_the_op_its_handles(cuda: Device) -> None:
    """Nothing was submitted: what moved into the op is there still."""
    t = ones((256,)).sync()
    op = zip_ops(dup(t), bounded.block(1024)(empty((256,), i32).partition((256,))))
    for _ in range(2):
        refused(op)


# ---- the compiler

BROKEN = """
// A comment, so that lines do not begin with code.
__global__ void broken(Tile<float, 1> y) {
    for (auto i : y) y[i] = undeclared_name + 1;
}
"""


@kernel(cuda=BROKEN)
def broken(y: Out[f32]) -> None:
    """Does not compile."""


def broken_line() -> int:
    with open(FILE, encoding="utf-8") as file:  # noqa: PTH123  # one line to find one line
        return next(number for number, text in enumerate(file, 1) if "undeclared_name + 1;" in text)


def test_a_compile_error_shows_the_users_line(cuda: Device) -> None:
    """The compiler's message, the file and line of the Python source where the text stands, and the text itself."""
    for run in (broken.compile, broken(ones((8,)).partition((8,))).sync):
        with pytest.raises(CompileError) as caught:
            run()
        said = str(caught.value)
        for part in ("broken", 'identifier "undeclared_name" is undefined', f"{FILE}:{broken_line()}"):
            assert part in said
        assert "for (auto i : y) y[i] = undeclared_name + 1;" in said
    works()


def test_a_compile_error_reaches_all_who_wait(cuda: Device) -> None:
    """Threads and tasks that want one kernel at the same time compile it once, and all get its error, or its code."""

    @kernel(cuda="__global__ void fresh(Tile<float, 1> y) { for (auto i : y) y[i] = 41.5f + 1.f; }")
    def fresh(y: Out[f32]) -> None: ...

    def run(number: int) -> Any:
        try:
            return float(fresh(empty((8,)).partition((4,))).first().unpartition().to_host().sync()[number])
        finally:
            with pytest.raises(CompileError):
                broken(ones((8,)).partition((8,))).sync()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [42.5] * 8

    async def main() -> None:
        async def one() -> None:
            with pytest.raises(CompileError):
                await broken(ones((8,)).partition((8,)))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)

    trio.run(main)


def test_a_wrong_option_is_a_compile_error(cuda: Device) -> None:
    """It names the kernel and the option."""

    @kernel(cuda="__global__ void odd(Tile<float, 1> y) {}", options=("--no-such-option",))
    def odd(y: Out[f32]) -> None: ...

    with pytest.raises(CompileError) as caught:
        odd.compile()
    assert "odd" in str(caught.value)
    assert "no-such-option" in str(caught.value)


# ---- bounds

REACH = """
__global__ void reach(Tile<float, 2> y, View<const float, 2> x, long long read, long long write) {
    for (auto i : y) {
        if (i[0] != 1 || i[1] != 2) continue;
        y(1, 2) = x(1, read);
        y(write, 2) = 5.f;
    }
}
"""


@kernel(cuda=REACH, checked=True)
def reach(y: Out[f32], x: In[f32], read: int, write: int) -> None:
    """An output of shape (4, 6). One thread reads column `read` and writes row `write`."""


def reached(read: int, write: int, tile: tuple[int, int] = (2, 3)) -> Any:
    x = np.arange(24, dtype=f32).reshape(4, 6)
    return reach(zeros((4, 6)).partition(tile), from_host(x), read, write)


def test_inside_the_bounds_a_checked_kernel_is_like_any(cuda: Device) -> None:
    """It reads and writes what it should."""
    y = reached(4, 0).first().unpartition().to_host().sync()
    assert (y[1, 2], y[0, 2]) == (10.0, 5.0)
    assert np.count_nonzero(y) == 2


@pytest.mark.parametrize(
    ("read", "write", "parts"),
    [
        (6, 0, ["'x'", "(1, 6)", "(4, 6)"]),
        (-1, 0, ["'x'", "(1, -1)"]),
        (1 << 40, 0, ["'x'", f"(1, {1 << 40})"]),
        (0, 4, ["'y'", "(4, 2)", "(4, 6)"]),
        (0, -3, ["'y'", "(-3, 2)"]),
        (0, 2, ["'y'", "(2, 2)", "tile"]),
    ],
    ids=["read beyond", "read before", "read far beyond", "write beyond", "write before", "write to another tile"],
)
def test_outside_the_bounds(cuda: Device, read: int, write: int, parts: list[str]) -> None:
    """KernelBoundsError names kernel, argument, index and place; the device is whole, and so is the next run."""
    op = reached(read, write)
    with pytest.raises(KernelBoundsError) as caught:
        op.sync()
    said = digits_of(str(caught.value))
    for part in ("reach", *[digits_of(part) for part in parts]):
        assert part in said, said
    assert re.search(re.escape(FILE) + r":\d+", said)
    assert isinstance(caught.value, IndexError)
    works()
    assert float(reached(4, 0).first().unpartition().to_host().sync()[1, 2]) == 10.0


def test_checked_runs_at_the_same_time(cuda: Device) -> None:
    """Only the run that went outside fails."""

    async def main() -> None:
        async def fine() -> None:
            y = await reached(4, 0).first().unpartition().to_host()
            assert (y[1, 2], y[0, 2]) == (10.0, 5.0)

        async def wrong() -> None:
            with pytest.raises(KernelBoundsError, match="reach"):
                await reached(7, 0)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(wrong if number % 3 == 0 else fine)

    trio.run(main)


def test_checked_by_the_environment(cuda: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_CHECKED=1 where the kernel is declared checks it, with strided arrays too."""
    monkeypatch.setenv("DAGPU_CHECKED", "1")

    @kernel(
        cuda="""
__global__ void shifted(Tile<int, 1> y, View<const int, 1> x, int by) {
    for (auto i : y) y[i] = x[i + by];
}
"""
    )
    def shifted(y: Out[i32], x: In[i32], by: int) -> None: ...

    t = from_host(np.arange(32, dtype=i32)).sync()
    cut = shifted(empty((8,), i32).partition((8,)), t.slice(slice(0, 20, 2)), 2).first().unpartition()
    assert cut.to_host().sync().tolist() == list(range(4, 20, 2))
    with pytest.raises(KernelBoundsError, match="'x'"):
        shifted(empty((8,), i32).partition((8,)), t.slice(slice(0, 20, 2)), 3).sync()


# ---- what is no kernel's fault


def test_work_for_another_device_is_refused_by_a_stream(cuda: Device) -> None:
    """The error names the op, both devices, and the cure."""
    t = ones((2,)).on("host").sync()
    with pytest.raises(DagpuError) as caught:
        t.borrow().to_host().sync_on(device(NAME).stream())
    for part in (FILE, "host:0", NAME):
        assert part in str(caught.value)
    works()


def test_one_op_on_the_host_and_on_a_gpu(cuda: Device) -> None:
    """A run has one backend: the error names both devices, and the way from one to the other works."""
    with pytest.raises(DagpuError) as caught:
        zip_ops(ones((4,)).on("host").to_host(), zeros((4,)).to_host()).sync()
    for part in ("host:0", NAME):
        assert part in str(caught.value)
    array = ones((4,)).on("host").to_host().sync()
    assert from_host(array).on(NAME).to_host().sync().tolist() == [1.0] * 4


def test_a_lock_is_given_back_after_each_failure(cuda: Device) -> None:
    """A tensor that was lent to runs which failed on the device may be lent for writing."""
    t = ones((24,)).sync()
    wrong = reach(zeros((4, 6)).partition((4, 6)), t.view((4, 6)), 8, 0)
    with pytest.raises(KernelBoundsError):
        wrong.sync()
    add(t.borrow_mut().partition((8,)), ones((24,))).sync()
    with pytest.raises(BorrowError):
        zip_ops(dup(t.borrow()), add(t.borrow_mut().partition((8,)), ones((24,)))).sync()
    assert t.to_host().sync().tolist() == [2.0] * 24
