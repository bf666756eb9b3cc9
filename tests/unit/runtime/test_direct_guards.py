"""Each guard of a direct call is needed: without it, the call would accept inputs that need the general way."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from dagpu import empty, from_host, full, pipeline, use_device, zip_ops
from dagpu.common.compiled import MISS
from dagpu.common.critical import INTERRUPT
from dagpu.handles import move_handle, restore_state, state_of, take_state
from dagpu.runtime import direct_call
from dagpu.runtime.direct_call import DirectCall
from dagpu.runtime.interpreter import current_settings
from dagpu.runtime.loaded_plan import CALL, LoadedPlan
from dagpu.testing import Locks, storage_of
from dagpu.tracing.value_kinds import ArrayKind, HandleKind, NumberKind
from tests.programs.arithmetic import add, axpy, scale
from tests.support.check_mutants import check_mutants

S: Final = (2, 2)


def tensor(shape: tuple[int, ...] = S) -> Any:
    return full(shape, 1).sync()


@pipeline
def step(
    t: Any, cut: Any, a: float, x: Any, y: Any, z: Any, h: Any, items: Any, name: str, same: Any, *, named: Any
) -> Any:
    """An argument of each kind; `t` and `cut` move, and `same` is another borrow of what `y` borrows."""
    return zip_ops(
        axpy(t.partition(S), a, x).first().unpartition(),
        axpy(cut, 2.0, y).first().unpartition(),
        add(empty(S).partition(S), z, from_host(h)).first().unpartition(),
        scale(empty(S).partition(S), items[0], named["x"]).first().unpartition(),
        scale(empty(S).partition(S), 1.0, same).first().unpartition(),
    )


class Call:
    """Arguments that the direct call of `step` accepts, until one of them is changed."""

    def __init__(self) -> None:
        self.lender, self.other = tensor(), tensor()
        self.arguments: list[Any] = [
            tensor(), tensor().partition(S), 3.0, full(S, 1).share().sync(), self.lender.borrow(),
            self.other.borrow(), np.ones(S, np.float32), (2.0, [np.ones(S, np.float32)]), "name", self.lender.borrow(),
        ]  # fmt: skip
        self.named: tuple[Any, ...] = (("named", {"x": full(S, 1).share().sync(), "again": self.arguments[3]}),)
        self.states: list[Any] = [state_of(each) for each in self.arguments[:2]]
        self.loaded: LoadedPlan | None = None

    def op(self) -> Any:
        return step(*self.arguments, **dict(self.named))


def replaced(index: int, make: Callable[[], Any]) -> Callable[[Call], None]:
    """A change of one argument."""

    def change(call: Call) -> None:
        call.arguments[index] = make()

    return change


def locked(index: int, exclusive: bool) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        Locks(None).acquire({storage_of(call.arguments[index]): exclusive})

    return change


def lost(index: int) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        storage_of(call.arguments[index]).memory = None

    return change


def of_graph(index: int) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        storage_of(call.arguments[index]).graph = lambda: call

    return change


def on(place: str, make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        with use_device(place):
            return make()

    return made


def _without_lender(call: Call) -> None:
    call.lender.share()


def _one_too_many(call: Call) -> None:
    call.arguments.append(1)


def _rename(call: Call) -> None:
    call.named = (("other", call.named[0][1]),)


def _other_again(call: Call) -> None:
    call.named[0][1]["again"] = full(S, 1).share().sync()


def _same_array(call: Call) -> None:
    call.arguments[7] = (2.0, [call.arguments[6]])


def shared(shape: tuple[int, ...] = S) -> Any:
    return full(shape, 1).share().sync()


def named(make: Callable[[], Any], key: str = "x") -> Callable[[Call], None]:
    """A change of the value of the keyword argument."""

    def change(call: Call) -> None:
        call.named = (("named", {key: make(), "again": call.arguments[3]}),)

    return change


def _named_number(call: Call) -> None:
    call.named = (("named", 1),)


def _in_named(change: Callable[[int], Callable[[Call], object]]) -> Callable[[Call], object]:
    """A change of the tensor in the keyword argument."""

    def changed(call: Call) -> None:
        call.arguments.append(call.named[0][1]["x"])
        change(-1)(call)
        call.arguments.pop()

    return changed


def moved(index: int) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        move_handle(call.arguments[index], "another op", None)

    return change


def moved_shared(index: int) -> Callable[[Call], None]:
    def change(call: Call) -> None:
        take_state(call.arguments[index], "another op", None)

    return change


def doubles() -> Any:
    """As many bytes as in the earlier call."""
    return full((2, 1), 1, dtype=np.float64).sync()


BIG: Final = slice(0, 2)
HANDLES: Final = (0, 1, 3, 4, 5)
CHANGES: Final[list[Callable[[Call], object]]] = [
    _one_too_many, _rename, _without_lender, _named_number, _other_again, _same_array,
    *[replaced(index, lambda: 1) for index in range(9)], *[replaced(index, lambda: None) for index in range(9)],
    *[lost(index) for index in HANDLES], *[of_graph(index) for index in HANDLES],
    *[locked(index, exclusive) for index in HANDLES for exclusive in (False, True) if exclusive or index < 2],
    moved(0), moved(1), moved_shared(3), lambda call: call.other.share(),
    replaced(0, doubles), replaced(1, lambda: doubles().partition(S, partial=True)),
    replaced(3, lambda: doubles().share()), replaced(4, lambda: doubles().borrow()),
    replaced(5, lambda: doubles().borrow()), replaced(1, lambda: tensor().partition((1, 2))),
    replaced(0, on("host:1", tensor)), replaced(1, on("host:1", lambda: tensor().partition(S))),
    replaced(3, on("host:1", shared)), replaced(4, lambda: tensor((4, 2)).slice(BIG, BIG)),
    replaced(5, lambda: tensor((4, 2)).slice(BIG, BIG)), replaced(2, lambda: 1e300),
    lambda call: replaced(5, call.lender.borrow)(call),
    lambda call: replaced(9, call.other.borrow)(call), lambda call: replaced(9, lambda: call.arguments[4])(call),
    replaced(6, lambda: np.ones((2, 3), np.float32)), replaced(6, lambda: np.ones(S, np.int32)),
    replaced(7, lambda: (2, [None])), replaced(7, lambda: (2.0, [1])), replaced(7, lambda: (2.0, [None, None])),
    replaced(7, lambda: (1e300, [None])), replaced(7, lambda: [2.0, [None]]), replaced(7, lambda: (2.0, (None,))),
    replaced(7, lambda: (2.0,)), replaced(8, lambda: "other"),
    named(lambda: 1), named(shared, "y"), named(lambda: doubles().share()), named(on("host:1", shared)),
    _in_named(lost), _in_named(of_graph), _in_named(moved_shared), _in_named(lambda index: locked(index, True)),
]  # fmt: skip


def _other_settings(direct: Callable[..., Any], call: Call) -> Any:
    with use_device("host:1"):
        return direct(call.loaded, call.arguments, call.named, current_settings("test"), None)


def _interrupted(direct: Callable[..., Any], call: Call) -> Any:
    with patch.object(INTERRUPT, "raised", KeyboardInterrupt()):
        return called(direct, call)


def _not_ready(direct: Callable[..., Any], call: Call) -> Any:
    assert call.loaded is not None
    with patch.multiple(call.loaded, is_compiled=False, graph_is_ready=False):
        return called(direct, call)


def called(direct: Callable[..., Any], call: Call) -> Any:
    """Make the call, by the direct call of the plan or by a mutant of it."""
    return direct(call.loaded, tuple(call.arguments), call.named, current_settings("test"), None)


def _starts_nothing(direct: Callable[..., Any], call: Call) -> Any:
    """A way in which the plan cannot be started now, after the handles have moved."""
    assert call.loaded is not None
    start, call.loaded.start = call.loaded.start, lambda *_: None
    try:
        return called(direct, call)
    finally:
        call.loaded.start = start


def _moved_meanwhile(index: int) -> Callable[..., Any]:
    """A way in which another thread moves an argument after the guards."""

    def way(direct: Callable[..., Any], call: Call) -> Any:
        begin = direct_call.begin_run

        def late(*given: Any) -> bool:
            move_handle(call.arguments[index], "another thread", None)
            return begin(*given)

        with patch.object(direct_call, "begin_run", late):
            result = called(direct, call)
        restore_state(call.arguments[index], call.states[index])
        return result

    return way


def outcome(direct: Callable[..., Any], call: Call, way: Callable[..., Any] = called) -> bool:
    """True if the function refuses the call, and has no effect."""
    before = _states(call)
    try:
        result = way(direct, call)
    except Exception:
        return False
    return result is MISS and _states(call) == before


def _states(call: Call) -> list[object]:
    """The states of the handles that a call moves."""
    return [state_of(each) for each in call.arguments[:2] if hasattr(each, "_state")]


READERS: Final[tuple[tuple[Any, str], ...]] = (
    (HandleKind, "read"), (NumberKind, "read"), (ArrayKind, "read"), (direct_call, "begin_run"), (DirectCall, "now"),
    (DirectCall, "_begin"),
)  # fmt: skip
"""The functions that may refuse a call of `step`. Those of other values are tried in test_one_table."""


def mutants() -> Iterator[tuple[str, Any, str, Callable[..., Any]]]:
    """Each condition of a direct call, and the function that lacks it, with the place and the name of that."""
    for owner, name in READERS:
        for what, mutant in check_mutants(getattr(owner, name)):
            yield what, owner, name, mutant


def test_each_guard_is_needed() -> None:
    """The direct call refuses each changed call without an effect. Without any one of its guards it accepts one.

    It reads by Python, as the mutants do. tests/compiled holds the compiled reader to this one."""
    step.cache_clear()
    with use_device("host"), patch.object(direct_call, "READER", None):
        for _ in range(3):
            Call().op().sync()
        loaded = step.plans.latest
        assert loaded is not None
        direct: DirectCall = loaded.direct[CALL]
        ways: list[tuple[Callable[[Call], object], Callable[..., Any]]] = [(change, called) for change in CHANGES]
        ways += [(lambda call: None, way) for way in (_other_settings, _interrupted, _not_ready, _starts_nothing)]
        ways += [(lambda call: None, _moved_meanwhile(index)) for index in (0, 1)]

        def made(change: Callable[[Call], object]) -> Call:
            call = Call()
            call.loaded = loaded
            with suppress(AttributeError):
                change(call)
            return call

        assert not outcome(direct.now, made(lambda call: None))
        for number, (change, way) in enumerate(ways):
            assert outcome(direct.now, made(change), way), number
        left = list(mutants())
        assert len(left) > 20
        for what, owner, name, mutant in left:
            with patch.object(owner, name, mutant):
                assert not all(outcome(direct.now, made(change), way) for change, way in ways), what


def test_a_guard_alone_binds_arrays_that_are_copied_once() -> None:
    """What it leaves, an array that is copied twice or belongs to the function, is bound for each call."""
    fixed = np.full(S, 5, np.float32)
    once = pipeline(lambda a, b: zip_ops(from_host(a).to_host(), from_host(b).to_host()))
    twice = pipeline(lambda a, b: zip_ops(from_host(a).to_host(), from_host(a).to_host(), from_host(b).to_host()))
    of_function = pipeline(lambda a: zip_ops(from_host(a).to_host(), from_host(fixed).to_host()))
    for f, count, left in ((once, 2, False), (twice, 2, True), (of_function, 1, True)):
        for number in range(4):
            arrays = [np.full(S, number + each, np.float32) for each in range(count)]
            wanted = [arrays[0], *arrays] if f is twice else arrays if f is once else [*arrays, fixed]
            for found, want in zip(f(*arrays).sync(), wanted, strict=True):
                assert (found == want).all()
        loaded: Any = f.plans.latest
        assert CALL in loaded.direct
        assert loaded.signature.has_rest is left
