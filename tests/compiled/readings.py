"""Both readers of a table, side by side: what they return of one call, and what a call does that begins with that."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final, final

import numpy as np

from dagpu import full, pipeline, use_device
from dagpu.common.compiled import READER
from dagpu.common.errors import KernelArgumentError
from dagpu.handles import HANDLES, state_of, take_state
from dagpu.kernels.declaration import ScalarCheck
from dagpu.runtime.direct_call import begin_run, end_run
from dagpu.testing import storage_of
from dagpu.tracing.call_guard import Guard, LeafBinding, Reading, guard_call
from dagpu.tracing.value_kinds import ARRAY, HANDLE, NUMBER
from tests.programs.arithmetic import scale
from tests.unit.tracing.arguments.argument_trees import table_of
from tests.unit.tracing.arguments.known_calls import Known, pairs_differ

DTYPES: Final = (
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool",
)  # fmt: skip
CHECKS: Final = tuple([ScalarCheck("a", np.dtype(name), "a kernel") for name in DTYPES])


def loud(number: object) -> object:
    """A check that is no `ScalarCheck`."""
    if number == 3:
        raise KernelArgumentError("3 does not fit")
    if number == 1 << 32:
        raise ZeroDivisionError
    return (number,)


@final
class Readers:
    """The guard of a table, and the reader in C of the same rows."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.rows: Any = READER.Rows(guard, (HANDLE, NUMBER, ARRAY))

    def read(self, first: Any, named: Any = ()) -> Reading | None:
        """Read a call by both, and return what they return.

        Raises:
            AssertionError: they disagree.
        """
        by_python, by_c = _tried(self.guard.read, first, named), _tried(self.rows, first, named)
        assert type(by_python) is type(by_c), (by_python, by_c)
        if isinstance(by_python, Exception):
            raise by_python
        if by_python is not None:
            assert_same_reading(by_python, by_c)
        found: Reading | None = by_c
        return found


def _tried(read: Callable[[Any, Any], Any], first: Any, named: Any) -> Any:
    try:
        return read(first, named)
    except Exception as error:
        return error


def assert_same_reading(one: Reading, other: Any) -> None:
    """Memory, leaves, locks and handles are the same objects; numbers that a check has made are equal. What the program
    does not use is in the last place of the memory, in any order."""
    assert type(other) is tuple
    assert [len(part) for part in one] == [len(part) for part in other]
    for mine, its in zip(one[0][:-1], other[0][:-1], strict=True):
        assert mine is its or (type(mine) is type(its) and repr(mine) == repr(its)), (mine, its)
    for part in (1, 2, 3):
        assert [*map(id, one[part])] == [*map(id, other[part])], part
    assert [(leaf, id(handle), id(state)) for leaf, handle, state in one[4]] == [
        (leaf, id(handle), id(state)) for leaf, handle, state in other[4]
    ]


# ---- the uses of leaves, and what may happen to a handle between two calls


def binding_of(leaf: Any, number: int, choice: int) -> LeafBinding:
    """A use of a leaf in a program. `choice` selects one of the uses of its kind."""
    if type(leaf) in (int, float):
        checks: tuple[Callable[[float], object], ...] = (*CHECKS, loud)
        some = checks[choice % len(checks)], checks[(choice // 7) % len(checks)]
        return LeafBinding(numbers=tuple([(2 * number + at, check) for at, check in enumerate(some[: choice % 3])]))
    buffer = 2 * number if choice % 5 else -1
    if type(leaf) not in HANDLES:
        return LeafBinding(buffer)
    return LeafBinding(buffer, (None, False, True)[choice % 3], moves=choice % 4 > 1)


def moved(handle: Any) -> None:
    take_state(handle, "another op", None)


def with_a_moved_lender(handle: Any) -> None:
    state: Any = state_of(handle)
    if state.lender is not None:
        take_state(state.lender, "another op", None)


def lost(handle: Any) -> None:
    storage_of(handle).memory = None


def written_by_a_graph(handle: Any) -> None:
    storage_of(handle).graph = lambda: handle


def written_by_a_graph_that_is_gone(handle: Any) -> None:
    storage_of(handle).graph = lambda: None


def larger(handle: Any) -> None:
    storage_of(handle).nbytes += 1


def with_an_equal_layout(handle: Any) -> None:
    state: Any = state_of(handle)
    layout = state.layout
    state.layout = type(layout)(layout.dtype, layout.shape, layout.strides, layout.offset)


def with_a_broken_graph(handle: Any) -> None:
    def graph() -> object:
        raise ZeroDivisionError

    storage_of(handle).graph = graph


SPOILS: Final = (
    moved, lost, written_by_a_graph, written_by_a_graph_that_is_gone, larger, with_an_equal_layout,
    with_a_moved_lender, with_a_broken_graph,
)  # fmt: skip

# ---- calls that begin


@final
class Effects:
    """What a call may change: handles, locks, the leaves, and the number of runs."""

    def __init__(self, reading: Reading, loaded: Any) -> None:
        self._reading = reading
        self._loaded = loaded
        self._handles: list[Any] = [handle for _, handle, _ in reading[4]]
        self._locks = [*reading[2], *reading[3]]
        self._leaves = list(reading[1])
        self._before = self._slots()

    def _slots(self) -> list[Any]:
        """The record of a move means something only as long as the handle is moved."""
        handles = [(state := handle._state, None if state else handle._moved) for handle in self._handles]  # noqa: SLF001  # the law is about these
        return [handles, [(lock.writer, lock.readers, lock.holder) for lock in self._locks], self._loaded.runs]

    def seen(self) -> list[Any]:
        """Return what there is to compare: states and locks, and the leaves, which are new for moved handles."""
        leaves = [
            leaf if leaf is before else (type(leaf), state_of(leaf), getattr(leaf, "_cut", None))
            for leaf, before in zip(self._reading[1], self._leaves, strict=True)
        ]
        return [*self._slots(), leaves]

    def undo(self) -> None:
        handles, locks, self._loaded.runs = self._before
        for handle, (state, _) in zip(self._handles, handles, strict=True):
            handle._state = state  # noqa: SLF001  # the law is about these
        for lock, fields in zip(self._locks, locks, strict=True):
            lock.writer, lock.readers, lock.holder = fields
        self._reading[1][:] = self._leaves


def check_begin(reading: Reading, loaded: Any, origin: Any) -> bool:
    """Begin and end a call by both readers, one after the other, and compare the effects. Return true if it has begun.

    Raises:
        AssertionError: they disagree, or a refusal has an effect.
    """
    effects = Effects(reading, loaded)
    untouched = effects.seen()
    begun = begin_run(reading, loaded, origin)
    seen = effects.seen()
    if begun:
        end_run(reading)
    ended = effects.seen()
    effects.undo()
    assert effects.seen() == untouched
    assert [READER.begin(reading, loaded, origin)] == [begun]
    by_c = effects.seen()
    assert by_c == seen, (by_c, seen)
    assert begun or seen == untouched
    if begun:
        READER.end(reading)
    assert effects.seen() == ended
    effects.undo()
    return begun


def a_loaded_plan() -> Any:
    """A plan, for calls that only count their run there."""

    @pipeline
    def any_pipeline(x: Any) -> Any:
        return scale(full((2, 2), 1).partition((2, 2)), 1.0, x).first()

    for _ in range(3):
        any_pipeline(full((2, 2), 1).share().sync()).sync()
    loaded = any_pipeline.plans.latest
    assert loaded is not None
    return loaded


# ---- all of it once, without a generator


def _bindings(known: Known, choice: int) -> list[LeafBinding]:
    if known.table is None:
        return []
    return [binding_of(leaf, at, choice + at * 5) for at, leaf in enumerate(known.table.leaves)]


def _of_pairs() -> Iterator[str]:
    calls = pairs_differ()
    loaded = a_loaded_plan()
    for number, one in enumerate(calls):
        uses = _bindings(one, number)
        guard = one.guard(uses, 2 * len(uses))
        if guard is None:
            continue
        readers = Readers(guard)
        for other in calls:
            what = f"{one.trees} read for {other.trees}"
            try:
                found = readers.read(other.call.arguments, other.call.named)
                if found is not None:
                    check_begin(found, loaded, (what.__class__, 1))
                if (found is not None) and one.key != other.key:
                    yield what
            except ZeroDivisionError:
                continue
            except (AssertionError, SystemError, TypeError, ValueError) as error:
                yield f"{what}: {error}"


NUMBERS: Final = (
    0, 1, 2, 3, 4, -1, 127, 128, 255, 256, -128, -129, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, -(2**31),
    2**32 - 1, 2**32, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**40, 65504, 65505,
    0.0, -0.0, 0.5, 1.0, 3.0, 65504.0, 65505.0, 65519.9, 3.4e38, 3.4028235677973366e38, 3.5e38, 1e300,
    1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), -65504.0, -3.5e38,
    True, None, "1", np.float32(1), np.int64(1),
)  # fmt: skip


def _of_numbers() -> Iterator[str]:
    checks: tuple[Callable[[float], object], ...] = (*CHECKS, loud)
    for first, check in product((1, 1.0), checks):
        guard = guard_of((first, first), [LeafBinding(numbers=((0, check),)), LeafBinding()], 1)
        readers = Readers(guard)
        for number in NUMBERS:
            try:
                readers.read((number, first))
                readers.read((first, number))
            except ZeroDivisionError:
                continue
            except (AssertionError, SystemError, TypeError, ValueError) as error:
                yield f"{number!r} for {check}: {error}"


def guard_of(arguments: tuple[Any, ...], bindings: Sequence[LeafBinding], buffers: int) -> Guard:
    """The guard of a call with these arguments."""
    table = table_of(arguments, ())
    assert table is not None
    guard = guard_call(arguments, (), table, bindings, buffers)
    assert guard is not None
    return guard


def _of_many_handles() -> Iterator[str]:
    """Calls with more handles than C has room for without an allocation, and more than it compares with each other."""
    loaded = a_loaded_plan()
    for count in (3, 16, 17, 33, 70):
        for aliases in (0, 1, 2):
            handles = [full((2, 2), each).share().sync() for each in range(count)]
            handles += [handles[each].clone() for each in range(aliases)]
            bindings = [LeafBinding(at, (False, True, None)[at % 3]) for at in range(len(handles))]
            readers = Readers(guard_of(tuple(handles), bindings, len(handles)))
            calls = [list(handles), handles[::-1], handles[:-1], [*handles, handles[0]], [*handles[:-1], handles[0]]]
            calls += [[*handles[1:], handles[at].clone()] for at in (0, 1)]
            calls += [[*handles[:-1], handles[-1].clone()]]
            for call in calls:
                try:
                    found = readers.read(tuple(call))
                    if found is not None:
                        check_begin(found, loaded, None)
                except (AssertionError, SystemError, TypeError, ValueError) as error:
                    yield f"{count} handles with {aliases} aliases: {error}"


def _of_locks() -> Iterator[str]:
    """Calls whose memory is locked, or whose handles are moved, between the reading and the begin."""
    loaded = a_loaded_plan()

    def move(at: int) -> Callable[[list[Any]], None]:
        return lambda handles: moved(handles[at])

    def lock(at: int, writer: object, readers: int) -> Callable[[list[Any]], None]:
        def change(handles: list[Any]) -> None:
            held = storage_of(handles[at]).lock
            held.writer, held.readers = writer, readers

        return change

    changes: list[Callable[[list[Any]], None]] = [lambda handles: None]
    changes += [lock(at, *how) for at, how in product(range(4), (("x", 0), (None, 1), (None, 2)))]
    changes += [move(at) for at in range(3)]
    for number, change in enumerate(changes):
        cut = full((2, 2), 1).sync().partition((2, 2))
        handles: list[Any] = [full((2, 2), 1).sync(), cut, full((2, 2), 2).sync(), full((2, 2), 1).share().sync()]
        uses = [LeafBinding(at, at != 3, moves=at != 3) for at in range(4)]
        found = Readers(guard_of(tuple(handles), uses, 4)).read(tuple(handles))
        assert found is not None
        change(handles)
        try:
            begun = check_begin(found, loaded, (change, number))
            if begun != (number in (0, 11, 12)):
                yield f"change {number}: {begun}"
            found[4].append((3, *found[4][0][1:]))
            if check_begin(found, loaded, None):
                yield f"change {number}: one handle moves twice"
        except (AssertionError, SystemError, TypeError, ValueError) as error:
            yield f"change {number}: {error}"


def _of_spoiled_handles() -> Iterator[str]:
    makes: tuple[Callable[[], Any], ...] = (
        lambda: full((2, 2), 1).sync(), lambda: full((2, 2), 1).share().sync(), lambda: full((2, 2), 1).sync().borrow(),
        lambda: full((2, 2), 1).sync().partition((2, 2)),
    )  # fmt: skip
    kept: list[Any] = []
    for make, spoil in product(makes, SPOILS):
        with suppress(AttributeError):
            one, other, fine = make(), make(), make()
            lenders = [full((2, 2), 1).sync() for _ in range(2)]
            one, other = (lenders[0].borrow(), lenders[1].borrow()) if make is makes[2] else (one, other)
            kept += [lenders, fine]
            readers = Readers(guard_of((one, 1.0), [LeafBinding(0, True, moves=True), LeafBinding()], 1))
            spoil(other)
            try:
                readers.read((other, 1.0))
            except ZeroDivisionError:
                continue
            except (AssertionError, SystemError, TypeError, ValueError) as error:
                yield f"{spoil.__name__}: {error}"


def _of_counts() -> Iterator[str]:
    """A run that another thread counts while this one waits for the gate is not lost."""
    loaded = a_loaded_plan()
    acquire = vars(begin_run.__globals__["BOOKKEEPING"].__class__).get("acquire")
    assert acquire is not None
    gate = begin_run.__globals__["BOOKKEEPING"]

    def late() -> bool:
        loaded.runs += 1
        return bool(gate.acquire())

    found: Reading = ([], [], [], [], [])
    before = loaded.runs
    READER.learn(acquire=late)
    try:
        READER.begin(found, loaded, None)
    finally:
        READER.learn(acquire=gate.acquire)
    if loaded.runs != before + 2:
        yield "a run is not counted"


def disagreements() -> Iterator[str]:
    """Iterate over what the readers do differently, of calls with each kind of value, of locks and of moves."""
    with use_device("host"):
        for each in (_of_numbers, _of_many_handles, _of_locks, _of_spoiled_handles, _of_counts, _of_pairs):
            yield from each()
