"""The CUDA backend gives what the host backend gives, to the bit, whatever the GPU happens to do first.

The GPU is simulated: `tests.simulated.gpu`. Every seed is another order in which its streams go on.
"""

import runpy
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    In,
    Out,
    RoundRobin,
    SchedulingPolicy,
    SharedTensor,
    Tile,
    arange,
    bf16,
    bool_,
    convert,
    dup,
    empty,
    eye,
    f16,
    f32,
    f64,
    fill,
    from_host,
    full,
    i8,
    i64,
    kernel,
    linspace,
    ones,
    rand,
    randn,
    u16,
    u64,
    use_device,
    zip_ops,
)
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.testing import HOST, Launch, Limits, Program, Role, backend, schedule
from tests.behaviour.laws.laws import (  # noqa: F401  # the laws, over the fixtures below
    equal,
    test_map_of_identity_changes_nothing,
    test_maps_over_handles_compose,
    test_maps_over_host_data_compose,
    test_placement_changes_nothing,
    test_shared_twice_is_shared_once,
    test_then_is_associative,
    test_then_is_associative_over_host_data,
    test_unzip_then_zip_backwards_swaps,
    test_value_is_a_left_unit_of_then,
    test_value_is_a_right_unit_of_then,
    test_zip_of_unzip_changes_nothing,
)
from tests.programs.arithmetic import add, matmul
from tests.programs.dag_results import expected, run
from tests.programs.expressions import Expr
from tests.programs.plain_programs import programs
from tests.programs.strategies import descriptions, policies
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.support.example_scripts import LONG, OTHER_PROCESSES, SCRIPTS, calls_library, lacks_library
from tests.unit.backends.cuda.cuda_results import in_order, mixing

seeds = st.integers(0, 2**16)
FEW_BLOCKS = Limits(1024, (1024, 1024, 64), (2**31 - 1, 2, 1), 227 << 10, 48 << 10)
"""A GPU that takes so few blocks along y and z that most grids are made linear."""


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    return RoundRobin(4)


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """`cuda:0` and `cuda:1` are there."""
    with installed(seed=7):
        yield


@settings(max_examples=150)
@given(descriptions, policies, seeds, st.booleans())
def test_a_run_gives_what_numpy_gives(e: Expr, policy: SchedulingPolicy, seed: int, under_trio: bool) -> None:
    """Whatever the DAG, the policy and the GPU's order, the result and all that is written outside are NumPy's."""
    with installed(seed):
        assert run(e, policy, under_trio=under_trio) == expected(e)


@settings(max_examples=30)
@given(descriptions, seeds)
def test_sleeping_tasks_get_what_numpy_gives(e: Expr, seed: int) -> None:
    """Results equal NumPy's if every wait sleeps on a descriptor that the driver closes."""
    with pytest.MonkeyPatch.context() as patch, installed(seed):
        patch.setenv("DAGPU_SPIN_US", "0")
        assert run(e, RoundRobin(), under_trio=True) == expected(e)


@settings(max_examples=40)
@given(descriptions, policies, seeds)
def test_linear_grids_give_what_numpy_gives(e: Expr, policy: SchedulingPolicy, seed: int) -> None:
    """If the driver allows too few blocks along an axis, all blocks are along x, and results stay the same."""
    with installed(seed, limits=FEW_BLOCKS):
        assert run(e, policy) == expected(e)


@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.stem not in LONG | OTHER_PROCESSES], ids=lambda s: s.stem)
def test_examples_run_unchanged(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example needs no change for a GPU."""
    if lacks_library(script):
        pytest.skip("nvmath-python is not installed")
    if calls_library(script):
        pytest.skip("its library would use the real GPU")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.syspath_prepend(str(script.parent))
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


# ---- plans made straight from programs: many launches on few buffers, written over and over


@settings(max_examples=120)
@given(programs(max_instructions=40), seeds)
def test_any_plan_gives_what_running_it_in_order_gives(drawn: Program, seed: int) -> None:
    """On up to three devices: no lane overtakes another where it must not, and no temporary lies on another."""
    buffers, devices = drawn.buffers, len(drawn.devices)
    written = {n for n, b in enumerate(buffers) if b.role is Role.INPUT}
    launches = tuple(mixing(n, i, buffers, written) for n, i in enumerate(drawn.instructions) if isinstance(i, Launch))
    if not launches:
        return
    same = len(launches) == len(drawn.instructions)
    policies, policy_of = (drawn.policies, drawn.policy_of) if same else ((RoundRobin(3),), (0,) * len(launches))
    names = tuple(f"cuda:{n}" for n in range(devices))
    program = Program(names, buffers, launches, policies, policy_of)
    with installed(seed, gpus=devices) as machine:
        for gpu in machine.gpus:
            gpu.reached = set(range(devices))
        memory = run_alone(program, machine)
        for number, words in enumerate(in_order(program)):
            block = memory[number]
            if isinstance(block, MemoryBlock) and number in written:
                assert bytes_of(machine, block)[: words.nbytes] == words.tobytes()


def bytes_of(machine: Machine, block: MemoryBlock) -> bytes:
    """Return the contents of a block of device memory."""
    place = machine.find(block.address, block.nbytes)
    return b"" if place is None else place[0].block[place[1] : place[1] + block.nbytes].tobytes()


def run_alone(program: Program, machine: Machine) -> list[object]:
    """Schedule it and run it, with no interpreter; what it leaves in its buffers."""
    bindings: list[Any] = [None] * len(program.buffers)
    for number, buffer in enumerate(program.buffers):
        if buffer.role is Role.INPUT and buffer.device != HOST:
            found = driver(buffer.device)
            with found.gpu.current():
                block = bindings[number] = found.memory.take(buffer.nbytes)
            place = machine.find(block.address, block.nbytes)
            if place is not None:
                words = np.arange(buffer.nbytes // 8, dtype=u64) + u64(number)
                place[0].block[place[1] : place[1] + words.nbytes] = words.view(np.uint8)
    run = backend("cuda").prepare(schedule(program)).submit(bindings)
    assert run.wait()
    assert not run.failures()
    return bindings


DTYPES = (f16, bf16, f32, f64, i8, i64, u16, u64, bool_)


# ---- operations


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: np.dtype(t).name)
def test_fills_and_conversions_give_the_hosts_bits(dtype: Any) -> None:
    """Every creation op, and conversions there and back, for each element type."""
    makers: list[Callable[[], Any]] = [
        lambda: full((5, 3), 1, dtype),
        lambda: eye(4, 6, dtype),
        lambda: ones((0, 3), dtype),
        lambda: full((), 1, dtype),
    ]
    if dtype is not bool_:
        makers += [lambda: arange(70, dtype=dtype), lambda: linspace(0, 9, 10, dtype)]
    if dtype in (f16, bf16, f32, f64):
        makers += [lambda: rand((9,), seed=3, dtype=dtype), lambda: randn((3, 3), seed=3, dtype=dtype)]
    for make in makers:
        with use_device("host"):
            wanted = there_and_back(make, dtype).sync()
        for have, want in zip(there_and_back(make, dtype).sync(), wanted, strict=True):
            assert (have.shape, have.dtype, have.tobytes()) == (want.shape, want.dtype, want.tobytes())


def there_and_back(make: Callable[[], Any], dtype: Any) -> Any:
    """Return an op for the array of `make`, and for the same array converted to f64 and back."""
    through = make().then(lambda t: convert(t, f64)).then(lambda t: convert(t, dtype))
    return zip_ops(make().to_host(), through.to_host())


@pytest.mark.parametrize(
    "cut",
    [
        (slice(1, None, 2), slice(None)),
        (slice(None, None, -1), slice(1, 4)),
        (slice(0, 64), slice(0, 40)),
        (slice(3, 3), slice(None)),
        (slice(2, 3), slice(5, 6)),
    ],
    ids=str,
)
def test_strided_views_reach_the_host(cut: tuple[slice, slice]) -> None:
    """`to_host` and `dup` of a part of a tensor give that part, whatever its strides."""
    array = np.arange(64 * 50, dtype=f32).reshape(64, 50)
    lender = from_host(array).sync()
    direct, copied = zip_ops(lender.slice(*cut).to_host(), dup(lender.slice(*cut)).to_host()).sync()
    assert direct.tobytes() == copied.tobytes() == array[cut].tobytes()
    assert direct.shape == copied.shape == array[cut].shape


@kernel(
    cuda='extern "C" __global__ void plain(float* y, unsigned char n, const float* x, double a, bool b, short s) {}',
    abi="pointers",
    block=32,
)
def plain(y: Out[f32], n: int, x: In[f32], a: float, b: bool, s: int) -> None: ...


@plain.host
def _(y: Tile[f32], n: int, x: NDArray[f32], a: float, b: bool, s: int) -> None:
    y[...] = x[y.at] * n + a + b + s


def test_plain_pointers_and_scalars_of_all_sizes_arrive() -> None:
    """`abi="pointers"`: each parameter is aligned to its own size."""
    op = plain(empty((6, 4)).partition((3, 2)), 200, ones((6, 4)), 0.25, True, -7)
    assert (op.first().unpartition().to_host().sync() == 200 + 0.25 + 1 - 7).all()


@kernel(cuda="__global__ void cube(Tile<float, 4> y, View<const float, 4> x) {}")
def cube(y: Out[f32], x: In[f32]) -> None: ...


@cube.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at] + f32(sum(i * 10**d for d, i in enumerate(y.index)))


def test_four_axes() -> None:
    """A grid of four axes is linear, and tiles know their place in it."""
    x = np.arange(3 * 4 * 5 * 6, dtype=f32).reshape(3, 4, 5, 6)

    def op() -> Any:
        return cube(empty(x.shape).partition((2, 3, 2, 4), partial=True), from_host(x)).first().unpartition()

    with use_device("host"):
        wanted = op().to_host().sync()
    assert op().to_host().sync().tobytes() == wanted.tobytes()


# ---- the same op again


def test_an_op_is_run_again_with_other_addresses() -> None:
    """A kept plan is aimed anew for every run: results that are held keep their memory."""
    x = from_host(np.arange(12, dtype=f32).reshape(3, 4)).share().sync()
    assert isinstance(x, SharedTensor)
    op = add(empty((3, 4)).partition((1, 4)), x, ones((3, 4))).first().unpartition()
    held = [op.sync() for _ in range(6)]
    held += [fill(held.pop(0), 9).sync() for _ in range(2)]
    contents = [t.to_host().sync() for t in held]
    for array in contents[:4]:
        assert (array == np.arange(1, 13).reshape(3, 4)).all()
    assert all((array == 9).all() for array in contents[4:])


@settings(max_examples=10)
@given(seeds)
def test_many_runs_of_one_op_at_once(seed: int) -> None:
    """Each run has its own addresses, though they share a plan."""
    with installed(seed) as machine:
        x = from_host(np.arange(16, dtype=f32).reshape(4, 4)).share().sync()
        op = matmul(empty((4, 4)).partition((2, 2)), x, eye(4)).first().unpartition().to_host()
        wanted = op.sync().tobytes()
        found: list[bytes] = []

        async def again() -> None:
            found.append((await op).tobytes())

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                with machine.hold():
                    for _ in range(20):
                        nursery.start_soon(again)
                    await trio.testing.wait_all_tasks_blocked()

        trio.run(main)
        assert found == [wanted] * 20


def test_a_function_of_host_map_sees_the_context_of_the_caller() -> None:
    """By `sync()` and by `await`, with device work around it on several lanes."""
    request: ContextVar[float] = ContextVar("request", default=-1.0)
    op = zip_ops(*[ones((4,)).to_host().host_map(lambda y: request.get() * float(y[0])) for _ in range(3)])

    async def main() -> None:
        request.set(7.0)
        assert await op == (7.0,) * 3

    for number in (1.0, 2.0):
        request.set(number)
        assert op.sync() == (number,) * 3
        trio.run(main)
