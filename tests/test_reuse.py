"""The same op run again: its plan is used again, and nobody can tell but by the clock.

Whether a trace was spared is counted, never timed: `traces` counts the tracers that runs make.
"""

import gc
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import FrozenInstanceError
from functools import cache
from typing import Any, final
from unittest.mock import patch

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from dagpu import (
    DagpuError,
    Device,
    MovedError,
    Out,
    Partition,
    RoundRobin,
    SharedTensor,
    SingleStream,
    StreamInterpreter,
    Tensor,
    Tile,
    arange,
    current_device,
    device,
    dup,
    empty,
    eye,
    f32,
    fill,
    from_host,
    full,
    kernel,
    memcpy,
    ones,
    rand,
    spawn,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_ops,
)
from dagpu.lowering.program import Program
from dagpu.ownership import storage_of
from dagpu.runtime import run
from dagpu.runtime.kept import Kept, plans
from dagpu.storage import Locks
from tests.arithmetic import add, scale
from tests.expressions import Building, Call, Change, Evaluation, Expr, Lent, Number, Op, Shape2, bits, build
from tests.expressions import evaluate as evaluated
from tests.places import place
from tests.strategies import descriptions, makes, shapes


@pytest.fixture(autouse=True)
def no_plans_yet() -> None:
    """Whatever ran before has left nothing that an op of the same structure would find."""
    plans.clear()


PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""


@final
class Count:
    """How many runs have made a trace."""

    def __init__(self) -> None:
        self.now = 0


@contextmanager
def traces() -> Iterator[Count]:
    """Counts the traces that runs make within the `with` block."""
    count = Count()
    tracer: Any = vars(run)["Tracer"]

    def counting(*args: Any) -> Any:
        count.now += 1
        return tracer(*args)

    with patch.object(run, "Tracer", counting):
        yield count


def contents(result: Any) -> Any:
    """A result with the bits of every array and handle in it; what it owns is used up."""
    if isinstance(result, tuple):
        return tuple(map(contents, result))
    if isinstance(result, Partition):
        return result.tile, result.grid, contents(result.unpartition())
    if isinstance(result, Tensor | SharedTensor):
        return type(result).__name__, bits(result.to_host().sync())
    return bits(result) if isinstance(result, np.ndarray) else result


def scaled(x: Op, by: float = 2.0, shape: Shape2 = (2, 3)) -> Op:
    """A kernel over an op that yields a tensor."""
    return scale(empty(shape).partition(shape), by, x).first().unpartition()


def twice_scaled() -> Op:
    return scaled(scaled(arange(6).reshape((2, 3))), 3.0)


def both(x: Op) -> Op:
    """One branch for each of two policies."""
    return zip_ops(scaled(x).on(SingleStream()), zeros((2,)).schedule(RoundRobin(2)))


@cache
def shared_input() -> Any:
    """Ones, of shape (2, 3)."""
    return ones((2, 3)).share().sync()


@cache
def lender() -> Any:
    """Fives, of shape (2, 3), that nobody writes."""
    return full((2, 3), 5).sync()


ARRAY = np.arange(6, dtype=f32).reshape(2, 3)


@pytest.fixture(scope="module", autouse=True)
def let_go() -> Iterator[None]:
    """Leave no tensor behind for the end of the process."""
    yield
    shared_input.cache_clear()
    lender.cache_clear()


REUSABLE: dict[str, Callable[[], Op]] = {
    "zeros": lambda: zeros((3,)),
    "empty": lambda: empty((3,)),
    "eye": lambda: eye(3),
    "reshape": lambda: arange(6).reshape((2, 3)),
    "reshape by a list": lambda: arange(6).reshape([2, 3]),  # type: ignore[arg-type]  # reason: it works
    "chain": twice_scaled,
    "all arguments of a kernel": lambda: scale(empty((2, 3)).partition((1, 3)), 2.0, value(shared_input())),
    "partition": lambda: zeros((4, 4)).partition((2, 2)),
    "share": lambda: ones((2,)).share(),
    "zip": lambda: zip_ops(ones((2,)), zip_ops(zeros((3,)), value((1, "a", None)))),
    "last": lambda: zip_ops(ones((2,)), twice_scaled()).last(),
    "to_host": lambda: twice_scaled().to_host(),
    "to_host beside a tensor": lambda: zip_ops(zip_ops(twice_scaled().to_host(), value(1)), ones((2,))),
    "from_host": lambda: scaled(from_host(ARRAY)),
    "one array twice": lambda: add(empty((2, 3)).partition((1, 1)), from_host(ARRAY), from_host(ARRAY)).first(),
    "from_host strided": lambda: from_host(ARRAY[:, ::2]),
    "shared input": lambda: (
        add(empty((2, 3)).partition((2, 3)), shared_input(), value(shared_input())).first().unpartition()
    ),
    "shared result": lambda: zip_ops(value(shared_input()), scaled(value(shared_input()))),
    "borrowed input": lambda: scaled(value(lender().borrow())),
    "borrowed slice": lambda: dup(lender().slice(slice(1, 2))),
    "dup": lambda: dup(shared_input()),
    "a lazy number": lambda: scale(empty((2, 3)).partition((2, 3)), value(3.0), shared_input()).first().unpartition(),
    "placed": lambda: twice_scaled().on(place(1)),
    "policies": lambda: both(arange(6).reshape((2, 3))),
}


@pytest.mark.parametrize("name", REUSABLE)
def test_a_second_run_needs_no_trace(name: str) -> None:
    """One trace for three runs; each gives what an op that is built anew gives."""
    op = REUSABLE[name]()
    with traces() as count:
        results = [op.sync() for _ in range(3)]
    assert count.now == 1
    wanted = contents(REUSABLE[name]().sync())
    assert [contents(result) for result in results] == [wanted] * 3


@pytest.mark.parametrize("name", REUSABLE)
def test_a_second_await_needs_no_trace(name: str) -> None:
    """The same in a trio task; each is a checkpoint."""

    async def body() -> list[Any]:
        found = []
        for _ in range(3):
            with trio.testing.assert_checkpoints():
                found.append(await op)
        return found

    op = REUSABLE[name]()
    with traces() as count:
        results = trio.run(body)
    assert count.now == 1
    wanted = contents(REUSABLE[name]().sync())
    assert [contents(result) for result in results] == [wanted] * 3


NUMBERS = [1.0]
TUPLE = (1, 2.0, "three")

NOT_REUSABLE: dict[str, Callable[[], Op]] = {
    "then": lambda: ones((2,)).then(dup),
    "map": lambda: zip_ops(ones((2,)), zeros((1,))).map(lambda p: p[0]),
    "inspect": lambda: ones((2,)).inspect(lambda t: None),
    "host_map": lambda: value(1).host_map(float),
    "host_map at the end": lambda: ones((2,)).to_host().host_map(lambda a: a + 1),
    "shared": lambda: ones((2,)).shared(),
    "shared inside": lambda: scaled(ones((2, 3)).shared()),
    "two stages": lambda: zip_ops(from_host(ARRAY).to_host(), ones((2,))).first(),
    "a list": lambda: zip_ops(ones((2,)), value(NUMBERS)),
    "a lazy number from the device": lambda: scale(
        empty((2, 3)).partition((2, 3)), ones((1,)).to_host().map(lambda a: float(a[0])), shared_input()
    ).first(),
}


@pytest.mark.parametrize("name", NOT_REUSABLE)
def test_what_a_second_trace_might_see_otherwise_is_traced(name: str) -> None:
    """Closures, what remembers, what can be changed in place, what waits for host data: one trace for each run."""
    op = NOT_REUSABLE[name]()
    with traces() as count:
        results = [op.sync() for _ in range(2)]
    assert count.now == 2
    assert [contents(result) for result in results] == [contents(NOT_REUSABLE[name]().sync())] * 2


def test_closures_are_called_in_each_run() -> None:
    """What they return may change from run to run."""
    sizes = iter((1, 2, 3))
    op = value(None).then(lambda _: zeros((next(sizes),)))
    assert [op.sync().shape for _ in range(3)] == [(1,), (2,), (3,)]


def test_a_list_in_a_value_may_be_changed() -> None:
    """Its items are looked up in each run; whoever runs the `Value` itself has it in his hands."""
    held: Any = value([1.0, 2.0])
    op = scale(empty((2, 3)).partition((2, 3)), held.first(), shared_input()).first().unpartition().to_host()
    before = op.sync()
    held.sync()[0] = 3.0
    assert (before[0, 0], op.sync()[0, 0]) == (1.0, 3.0)


def test_a_plain_value_is_the_same_object() -> None:
    """In the second run as in the first."""
    op = zip_ops(value(TUPLE), value(shared_input()), zeros((1,)))
    for _ in range(2):
        plain, shared, _ = op.sync()
        assert plain is TUPLE
        assert shared is shared_input()


def test_results_of_different_runs_share_no_memory() -> None:
    """What becomes of one result is of no consequence to the others, nor to later runs."""
    op = zip_ops(twice_scaled(), twice_scaled().share(), twice_scaled().partition((1, 3)))
    wanted = contents(op.sync())
    first, second, third = op.sync(), op.sync(), op.sync()
    for result in (first, third):
        fill(result[0], 9).sync()
        fill(result[1].try_unwrap(), 9).sync()
        fill(result[2].unpartition(), 9).sync()
    assert contents(second) == wanted
    assert contents(op.sync()) == wanted


def test_a_result_is_owned_like_any_other() -> None:
    """A handle that a repeated run gives moves, borrows and complains as the first run's did."""
    op = zeros((3,))
    said = []
    for t in (op.sync(), op.sync()):
        assert t.borrow().to_host().sync().tolist() == [0, 0, 0]
        t.share()
        with pytest.raises(MovedError) as caught:
            t.borrow()
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert f"made at {__file__}" in said[1]


def test_random_numbers_without_a_seed_differ() -> None:
    """A seed is drawn for each run, also where the run needs no trace."""
    op = rand((16,)).to_host()
    with traces() as count:
        assert len({bits(op.sync()) for _ in range(4)}) == 4
    assert count.now == 1


# ---- what changes between runs


def test_an_array_is_read_anew() -> None:
    """`from_host` copies what the array holds when the run starts."""
    array = np.zeros((2, 3), f32)
    op = scaled(from_host(array)).to_host()
    found = []
    with traces() as count:
        for number in range(3):
            array[...] = number
            found.append(op.sync()[0, 0])
    assert found == [0, 2, 4]
    assert count.now == 1


def test_an_array_of_another_shape_is_traced_anew() -> None:
    """Its shape may be changed in place: the result has that shape, and so has every later one."""
    array = np.ones((2, 3), f32)
    op = from_host(array).to_host()
    assert op.sync().shape == (2, 3)
    array.resize((3, 2), refcheck=False)
    with traces() as count:
        assert [op.sync().shape for _ in range(3)] == [(3, 2)] * 3
    assert count.now == 1


def said_by(op: Op) -> tuple[str, str]:
    """The error of a run that must fail."""
    with pytest.raises(DagpuError) as caught:
        op.sync()
    return type(caught.value).__name__, re.sub(r"test_reuse\.py:\d+", "", str(caught.value))


@pytest.mark.parametrize("before", [0, 2])
def test_a_moved_input_is_the_same_error(before: int) -> None:
    """A `SharedTensor` that was unwrapped, a borrow of a tensor that has moved: `MovedError`, in the same words."""
    shared, lent = ones((2, 3)).share().sync(), ones((2, 3)).sync()
    ops = [scaled(value(shared)), zip_ops(value(shared), ones((1,))), scaled(value(lent.borrow()))]
    for op in ops * before:
        op.sync()
    fresh = [scaled(value(shared)), zip_ops(value(shared), ones((1,))), scaled(value(lent.borrow()))]
    tensor = shared.try_unwrap()
    moved = lent.share()
    for op, other in zip(ops, fresh, strict=True):
        said = said_by(op)
        assert said == said_by(other)
        assert said[0] == "MovedError"
    assert contents(tensor) == ("Tensor", contents(moved)[1])


def test_an_op_that_owns_is_used_up() -> None:
    """Its second run is a `MovedError`, as is every later one."""
    for op in (scaled(value(ones((2, 3)).sync())), ones((2,)).sync().to_host(), value(zeros((1,)).sync())):
        op.sync()
        said = said_by(op)
        assert said[0] == "MovedError"
        assert said_by(op) == said


def test_what_a_run_remembers_is_remembered_once() -> None:
    """`unzip` gives each component once, `shared` the same memory to every run."""
    left, right = zip_ops(ones((2,)), zeros((2,))).unzip()
    kept = ones((4,)).shared()
    left.sync()
    assert said_by(left)[0] == "MovedError"
    right.sync()
    assert storage_of(kept.sync()) is storage_of(kept.sync())


def test_a_written_input_is_refused_until_it_is_free() -> None:
    """A repeated run takes its locks: `BorrowError` while another run writes, and then it runs again."""
    tensor = ones((2, 3)).sync()
    op, other = (scaled(value(tensor.borrow())).to_host() for _ in range(2))
    wanted = bits(op.sync())
    writer = Locks(None)
    writer.acquire({storage_of(tensor): True})
    assert said_by(op) == said_by(other)
    assert said_by(op)[0] == "BorrowError"
    writer.release()
    with traces() as count:
        assert bits(op.sync()) == wanted
    assert count.now == 0
    assert storage_of(tensor).lock.readers == 0


@pytest.mark.parametrize("by", [lambda op: op, lambda op: op.schedule(SingleStream())], ids=["by key", "by itself"])
@pytest.mark.parametrize("handle", ["borrowed", "shared"])
def test_a_repeated_run_reads_beside_other_readers(handle: str, by: Callable[[Op], Op]) -> None:
    """What stands in the op to be read is locked for reading alone, in the second run as in the first, whether the plan
    was found by the structure of the op or, under a policy of its own, kept by the op itself."""
    tensor: Any = ones((2, 3)).sync() if handle == "borrowed" else ones((2, 3)).share().sync()
    reader = Locks(None)
    reader.acquire({storage_of(tensor): False})
    op = by(scaled(value(tensor.borrow() if handle == "borrowed" else tensor)).to_host())
    with traces() as count:
        for _ in range(3):
            assert op.sync()[0, 0] == 2
            assert (storage_of(tensor).lock.writer, storage_of(tensor).lock.readers) == (None, 1)
    assert count.now == 1
    reader.release()


def test_a_repeated_run_reads_what_is_there_now() -> None:
    """A tensor that is lent may be written between two runs."""
    tensor = ones((2, 3)).sync()
    op = scaled(value(tensor.borrow())).to_host()
    assert op.sync()[0, 0] == 2
    add(tensor.borrow_mut().partition((2, 3)), shared_input(), shared_input()).map(lambda _: None).sync()
    with traces() as count:
        assert op.sync()[0, 0] == 4
    assert count.now == 0


def test_another_device_has_a_plan_of_its_own() -> None:
    """The current device decides in each run; both plans are kept."""
    op = twice_scaled()
    there: Device = device(place(1))
    with traces() as count:
        for _ in range(3):
            assert op.sync().device is current_device()
            with use_device(there):
                assert op.sync().device is there
    assert count.now == (1 if there is current_device() else 2)


@final
class Asked:
    """A policy that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def place(self, program: Program) -> Sequence[Hashable]:
        self.times += 1
        return SingleStream().place(program)


def test_another_policy_has_a_plan_of_its_own() -> None:
    """A policy is asked once for each op; one of the user's is known by identity, the given ones by value."""
    op, policies = twice_scaled(), [Asked(), Asked()]
    for _ in range(2):
        for policy in policies:
            with use_interpreter(StreamInterpreter(policy=policy)):
                op.sync()
    assert [policy.times for policy in policies] == [1, 1]
    with traces() as count:
        for _ in range(3):
            with use_interpreter(StreamInterpreter(policy=RoundRobin(2))):
                op.sync()
    assert count.now == 1


def test_a_plan_that_was_not_verified_is_not_taken_for_one_that_was() -> None:
    """Who asks for proof gets it."""
    op = twice_scaled()
    with traces() as count:
        for check in (False, False, True, True):
            with use_interpreter(StreamInterpreter(verify=check)):
                op.sync()
    assert count.now == 2


def test_only_the_latest_plans_are_kept() -> None:
    """However many policies an op has been run with, the memory of its plans is bounded."""
    op = twice_scaled()
    for _ in range(20):
        with use_interpreter(StreamInterpreter(policy=Asked())):
            op.sync()
    assert len(op._kept) == 8  # noqa: SLF001  # no public call shows it


# ---- several runs at once, and runs that do not end well


def test_runs_at_once_in_trio() -> None:
    """Any number of tasks run one op: each gets a result of its own."""
    op = twice_scaled()
    wanted = contents(twice_scaled().sync())

    async def body() -> list[Any]:
        async with trio.open_nursery() as nursery:
            pending = [spawn(nursery, op) for _ in range(20)]
            return [await each for each in pending]

    results = trio.run(body)
    assert len({id(storage_of(result)) for result in results}) == 20
    assert [contents(result) for result in results] == [wanted] * 20


def test_runs_at_once_on_threads() -> None:
    """The same from plain threads, the first runs included."""
    op = zip_ops(twice_scaled(), scaled(value(shared_input())).to_host())
    start = threading.Barrier(8)

    def some() -> list[Any]:
        start.wait(PATIENCE)
        return [contents(op.sync()) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(some) for _ in range(8)]
        found = [result for future in futures for result in future.result(PATIENCE)]
    assert found == [found[0]] * 160
    assert len(op._kept) == 1  # noqa: SLF001  # no public call shows it


FAIL = """
__global__ void fails_when_told(Tile<float, 1> y, float a) { for (auto i : y) y[i] = a; }
"""


@kernel(cuda=FAIL)
def fails_when_told(y: Out[f32], a: float) -> None:
    """y = a, unless TOLD is set."""


TOLD = threading.Event()


@fails_when_told.host
def _(y: Tile[f32], a: float) -> None:
    if TOLD.is_set():
        raise ArithmeticError("as told")
    y[...] = a


@pytest.mark.host_only("the kernel's host body fails")
@pytest.mark.parametrize("fails", [(0,), (1,), (0, 1, 3)])
def test_a_failure_is_not_remembered(fails: tuple[int, ...]) -> None:
    """A run after a failed one gives what it would have given, and leaves no lock behind."""
    out = fails_when_told(empty((4,)).partition((2,)), 3.0).first().unpartition()
    op = zip_ops(out, scaled(value(shared_input()))).last()
    wanted = contents(scaled(value(shared_input())).sync())
    with traces() as count:
        for number in range(5):
            try:
                if number in fails:
                    TOLD.set()
                    with pytest.raises(ArithmeticError, match="as told"):
                        op.sync()
                else:
                    assert contents(op.sync()) == wanted
            finally:
                TOLD.clear()
    assert count.now == 1
    assert storage_of(shared_input()).lock.readers == 0


@pytest.mark.parametrize("before", [0, 1])
def test_a_cancelled_run_leaves_the_op_as_it_was(before: int) -> None:
    """Cancelled before anything is submitted: nothing runs, no lock is left, and the next run is well."""
    op = scaled(value(shared_input())).to_host()
    for _ in range(before):
        op.sync()

    async def body() -> tuple[bool, Any]:
        with trio.CancelScope() as scope:
            scope.cancel()
            await op
        assert storage_of(shared_input()).lock.readers == 0
        return scope.cancelled_caught, await op

    with traces() as count:
        cancelled, result = trio.run(body)
    assert cancelled
    assert result[0, 0] == 2
    assert count.now == (0 if before else 2)


# ---- what is kept


def test_memory_goes_with_the_results() -> None:
    """An op that has run keeps no device memory: not of its results, nor of inputs that were moved and dropped."""
    here = current_device()
    gc.collect()
    before = here.memory_used()
    shared = ones((1 << 16,)).share().sync()
    op = dup(shared)
    for _ in range(3):
        op.sync()
    assert here.memory_used() == before + (1 << 18)
    tensor = shared.try_unwrap()
    del tensor
    assert here.memory_used() == before


@pytest.mark.parametrize("before", [0, 2])
def test_a_result_does_not_keep_what_it_was_made_of(before: int) -> None:
    """Inputs that were lent, shared or moved in go when they are dropped, while the result lives on; by reference
    counts alone, whether the run was traced or took the plan of an earlier one."""
    here = current_device()
    gc.collect()
    gc.disable()
    try:
        empty_handed = here.memory_used()

        def run() -> Any:
            lent, written = ones((2, 3)).sync(), zeros((2, 3)).sync()
            shared, moved = ones((2, 3)).share().sync(), ones((2, 3)).sync()
            op = zip_ops(
                scaled(value(lent.borrow())), scaled(value(shared)), scaled(value(moved)),
                memcpy(written.borrow_mut(), shared),
            )  # fmt: skip
            return op.sync()[:3], scaled(value(lent.borrow())).then(dup).sync()

        for _ in range(before):
            run()
        results = run()
        assert here.memory_used() == empty_handed + 4 * 24
        del results
        assert here.memory_used() == empty_handed
    finally:
        gc.enable()


def test_a_result_is_no_hidden_holder() -> None:
    """A `SharedTensor` of a repeated run can be unwrapped: the op keeps no handle to it."""
    op = ones((3,)).share()
    op.sync()
    assert op.sync().try_unwrap().to_host().sync().tolist() == [1, 1, 1]


def test_what_is_kept_dies_with_the_op() -> None:
    """By reference counting alone: an op and its plan form no cycle."""
    gc.collect()
    gc.disable()
    try:
        policy = Asked()
        with use_interpreter(StreamInterpreter(policy=policy)):
            op: Any = scaled(value(shared_input()))
            op.sync()
            op.sync()
        assert sum(type(found) is Kept and found.policy is policy for found in gc.get_objects()) == 1
        del op
        assert not any(type(found) is Kept and found.policy is policy for found in gc.get_objects())
    finally:
        gc.enable()


def test_an_op_stays_frozen() -> None:
    """What runs leave is no field of the op: nobody can set it by mistake."""
    op: Any = zeros((1,))
    op.sync()
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        op._kept = ()  # noqa: SLF001  # no public call shows it
    assert op._kept  # noqa: SLF001  # no public call shows it


# ---- random ops


@st.composite
def pure(draw: st.DrawFn, shape: Shape2, depth: int = 4, *, lent: bool = False) -> Expr:
    """A description whose op calls no closure and remembers nothing, so that its trace can be spared."""
    kinds = ["make"] + ["lent"] * lent + ["call", "call", "change"] * (depth > 0)
    match draw(st.sampled_from(kinds)):
        case "make":
            return draw(makes(shape).filter(lambda make: make.how != "empty"))
        case "lent":
            return Lent(draw(makes(shape).filter(lambda make: make.how != "empty")))
        case "change":
            how = draw(st.sampled_from(["zip first", "zip last", "single stream", "round robin"]))
            return Change(shape, how, draw(pure(shape, depth - 1)), draw(st.integers(-4, 4)))
        case _:
            pass
    name: Any = draw(st.sampled_from(["add", "scale", "axpy", "matmul"]))
    inner = draw(st.integers(1, 5)) if name == "matmul" else 0
    left, right = ((shape[0], inner), (inner, shape[1])) if inner else (shape, shape)
    x = draw(pure(left, depth - 1, lent=True))
    y = x if name == "scale" else draw(pure(right, depth - 1, lent=name != "axpy"))
    tile = draw(st.integers(1, shape[0])), draw(st.integers(1, shape[1]))
    return Call(shape, name, x, y, Number(draw(st.integers(-3, 3))), tile, "direct")


@given(shapes.flatmap(pure), st.sampled_from([SingleStream(), RoundRobin(3)]), st.booleans())
def test_a_random_op_is_traced_once_and_gives_the_same(e: Expr, policy: Any, to_host: bool) -> None:
    """Three runs, one trace, and each time what NumPy gives, whatever becomes of the other results."""
    plans.clear()
    b = Building()
    with use_interpreter(StreamInterpreter(policy=policy)):
        op = build(e, b).to_host() if to_host else build(e, b)
        with traces() as count:
            results: list[Any] = [op.sync() for _ in range(3)]
        assert count.now == 1
        if not to_host:
            fill(results[1], 17).sync()
            del results[1]
    wanted = bits(evaluated(e, Evaluation()))
    assert [bits(r if to_host else r.to_host().sync()) for r in results] == [wanted] * len(results)


def forget(*_arguments: object) -> None:
    """Stands for looking up what earlier runs have left."""


def outcomes(e: Expr, *, reuse: bool) -> list[Any]:
    """What three runs of one op give: bits, or the kind of error; and what they have written."""
    b = Building()
    op = build(e, b).to_host()
    found: list[Any] = []
    kept = nullcontext() if reuse else patch.multiple(run, kept_by=forget, cache_of=forget)
    with kept:
        for _ in range(3):
            try:
                found.append(bits(op.sync()))
            except DagpuError as error:
                found.append(type(error))
    return found + [bits(tensor.to_host().sync()) for tensor in b.written]


@given(descriptions)
def test_nobody_can_tell(e: Expr) -> None:
    """Any op at all, closures and writes included, behaves in three runs as it would without anything being kept."""
    plans.clear()
    assert outcomes(e, reuse=True) == outcomes(e, reuse=False)
