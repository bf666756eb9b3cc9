"""The guard of a plain op's plan: it accepts an op only if the key would, and every line of it is needed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import DeviceOp, convert, dup, empty, fill, from_host, full, rand, use_device, value, zeros, zip_ops
from dagpu.common.compiled import MISS
from dagpu.handles import HANDLES
from dagpu.ops.compose import Cut, HostCall, Item, ToHost, Value
from dagpu.testing import Constant, KernelSpec, Uniform
from dagpu.tracing.cache_key import EqualKind, KernelKind, RecordKind, flatten_op
from dagpu.tracing.call_guard import Guard, LeafBinding, guard_op
from tests.programs.arithmetic import add, axpy, scale
from tests.programs.expressions import Building, Op, build
from tests.programs.strategies import shapes
from tests.support.check_mutants import check_mutants
from tests.support.reused_ops import pure, renumbered
from tests.unit.tracing.arguments.odd_values import FORMS, ODD
from tests.unit.tracing.arguments.structure_keys import Pair, S, key, shared, tensor

Accept = Callable[[Op], Any]


def guard_of(op: Op) -> Guard | None:
    """The guard of an op; None if there is none."""
    inputs = flatten_op(op)
    return None if inputs is None else guard_op(op, inputs, [LeafBinding()] * len(inputs.leaves))


def accepting(guard: Guard) -> Accept:
    """A function that returns the leaves of an op that the guard accepts."""

    def accept(other: Op) -> Any:
        found = guard.read(other)
        return MISS if found is None else found[1]

    return accept


def accept_of(op: Op) -> Accept | None:
    """`accepting` of the guard of an op; None if there is none."""
    guard = guard_of(op)
    return None if guard is None else accepting(guard)


def check_pair(accept: Accept, known: Op, op: Op) -> bool:
    """True if the guard of `known` accepts an op. That is so exactly if its key is the same, and the guard has found
    its leaves then."""
    leaves, inputs = accept(op), None
    with suppress(AttributeError, TypeError):  # a node that no function builds
        inputs = flatten_op(op)
    accepted = leaves is not MISS
    assert accepted == (inputs is not None and inputs.key == key(known))
    if inputs is not None and accepted:
        assert list(map(id, leaves)) == list(map(id, inputs.leaves))
    return accepted


@settings(max_examples=60)
@given(shapes.flatmap(pure), shapes.flatmap(pure), st.integers(1, 5))
def test_a_guard_accepts_only_ops_with_the_key_of_its_own(e: Any, other: Any, by: int) -> None:
    """Of random ops: the op itself, those of the same description with other numbers and contents, and no others."""
    op = build(e, Building())
    accept = accept_of(op)
    if accept is not None:
        assert check_pair(accept, op, op)
        assert check_pair(accept, op, build(renumbered(e, by), Building()))
        check_pair(accept, op, build(other, Building()))


@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_equal_values_that_differ_are_refused(form: str) -> None:
    """Wherever a program may write a value: an op whose value differs in type or bits alone is refused."""

    def built(v: Any) -> Op | None:
        try:
            return FORMS[form](v)
        except Exception:  # refused where it is written
            return None

    made = [op for op in map(built, ODD) if op is not None and key(op) is not None]
    guards = [(op, accept) for op in made if (accept := accept_of(op)) is not None]
    for (op, accept), (other, _) in permutations(guards, 2):
        check_pair(accept, op, other)
    for op, accept in guards:
        assert check_pair(accept, op, op)


# ---- each line is needed

HOST: Final = np.ones(S, np.float32)


def program(number: float = 2.0, seed: int = 1, array: Any = HOST, contents: float = 1.0) -> Op:
    """An op with each kind of node."""
    return zip_ops(
        scale(empty(S).partition(S), number, shared(contents)).first(), rand(S, seed=seed),
        from_host(array).to_host(), value((1, None)), fill(tensor(), 3.0), convert(shared(), np.float64),
        zeros(S).on("host:1"), dup(shared()),
    )  # fmt: skip


def spots(op: Op) -> Iterator[tuple[Op, Callable[[Any], Op]]]:
    """Each node of an op, with a function that returns the op with another one in its place."""
    yield op, lambda new: new
    for name in type(op).__slots__:
        held = getattr(op, name)
        for index, child in enumerate(held if type(held) is tuple else (held,)):
            if isinstance(child, DeviceOp):
                for node, rebuilt in spots(child):
                    yield node, partial(_with_child, op, name, index, rebuilt)


def _with_child(op: Any, name: str, index: int, rebuilt: Callable[[Any], Op], new: Any) -> Op:
    """An op in which one source is rebuilt around a new node."""
    held = getattr(op, name)
    child: Any = rebuilt(new)
    if type(held) is tuple:
        child = (*held[:index], child, *held[index + 1 :])
    changed: Op = _changed(op, name, child)
    return changed


def _changed(record: Any, name: str, new: Any) -> Any:
    """A copy of a node or of another record with a new value in one field."""
    return type(record)(*[new if each == name else getattr(record, each) for each in type(record).__slots__])


_CHECKED: Final[dict[str, list[Any]]] = {
    "shape": [(4,), (2,), (2, 2, 1), (1, 2)], "dtype": [*map(np.dtype, ("f4", "f8", "i4", "f2")), None],
}  # fmt: skip
"""Other values of the fields that are checked before a node is built."""


def changed_nodes(node: Any) -> Iterator[Any]:
    """Copies of a node that differ in one field, and nodes of other types."""
    yield ToHost(node, node.origin)
    if type(node) is ToHost:
        yield HostCall(node.source, str, node.origin)
    for name in type(node).__slots__:
        held = getattr(node, name)
        if name == "origin":
            if type(node) is not Value:  # its place is not in the key
                code, at = held
                yield from (_changed(node, name, new) for new in (None, (code, at + 2), (spots.__code__, at)))
        elif name in _CHECKED:
            yield from (_changed(node, name, new) for new in _CHECKED[name])
        elif not isinstance(held, DeviceOp):
            yield from (_changed(node, name, new) for new in changed_values(held))


def changed_values(held: Any) -> Iterator[Any]:
    """Values other than one that a node holds: of other types, of other lengths, and with one part changed."""
    if type(held) is not KernelSpec and not (type(held) is tuple and any(isinstance(item, DeviceOp) for item in held)):
        yield from (each for each in ODD if not (type(each) is type(held) and each == held))
        yield from (list(held), Pair(*held)) if type(held) is tuple and len(held) == 2 else ()
    if type(held) is tuple:
        yield from (held[:-1], (*held, 1))
        for index, item in enumerate(held):
            if not isinstance(item, DeviceOp):
                yield from ((*held[:index], new, *held[index + 1 :]) for new in changed_values(item))
    elif type(held) is np.ndarray:
        yield from (held[:1], held.astype(np.float64), held.astype(">f4"))
    elif type(held) is KernelSpec:
        other: tuple[dict[str, Any], ...] = ({"grid": (1, 2, 3)}, {"block": (7, 1, 1)}, {"shared_bytes": 8})
        yield from (axpy.spec, *(replace(held, **each) for each in other))
    elif type(held) in HANDLES:
        yield from (shared(shape=(4,)), tensor(shape=(4,)), tensor().partition(S))
    elif type(held).__module__.startswith("dagpu.ops"):
        yield from (Constant(1), Uniform(None), Item(0), Cut(S, False))
        for name in type(held).__slots__:
            yield from (_changed(held, name, new) for new in changed_values(getattr(held, name)))


def without_one(guard: Guard) -> Iterator[str]:
    """Take one condition at a time from a guard, and put it back. Iterate over what is left out."""
    lists: tuple[list[Any], ...] = (guard.same, guard.equal, guard.checks)
    for conditions in lists:
        for at, dropped in enumerate(tuple(conditions)):
            del conditions[at]
            yield str(dropped)
            conditions.insert(at, dropped)
    for at, dropped in enumerate(tuple(guard.inner)):
        if dropped[4] is not ...:
            guard.inner[at] = (*dropped[:4], ..., 0)
            yield str(dropped)
            guard.inner[at] = dropped


def test_each_row_is_needed() -> None:
    """An op that differs in one value of one node is refused, if its key is another. Without any one of its facts, the
    guard accepts one of them, or an error shows that it has looked at a value of another kind."""
    with use_device("host"):
        op = program()
        guard = guard_of(op)
        assert guard is not None
        accept = accepting(guard)
        assert check_pair(accept, op, op)
        assert check_pair(accept, op, program(5.0, 7, HOST * 2, 2.0))
        changed = [rebuilt(new) for node, rebuilt in spots(op) for new in changed_nodes(node)]
        refused = [each for each in changed if not check_pair(accept, op, each)]
        assert len(refused) > 1000
        found = 0
        for what in without_one(guard):
            found += 1
            assert any(accepts(accept, each) for each in refused), what
        assert found > 25
        for kind in (RecordKind, KernelKind, EqualKind):
            for what, mutant in check_mutants(kind.accepts):
                with patch.object(kind, "accepts", mutant):
                    assert any(accepts(accept, each) for each in refused), what


def accepts(accept: Accept, op: Op) -> bool:
    """True if a guard without one of its facts does not refuse an op."""
    try:
        return accept(op) is not MISS
    except (AttributeError, IndexError, TypeError, ValueError):
        return True


def chain(*numbers: float) -> Op:
    """Launches from one place of the code, of which each reads the one before."""
    op: Any = empty(S)
    for number in numbers:
        op = scale(op.partition(S), number, shared()).first().unpartition()
    built: Op = op
    return built


def test_an_op_that_is_used_twice_is_refused() -> None:
    """As it has no key: the trace raises the error."""

    def pair(one: Op, other: Op) -> Op:
        return zip_ops(one, other)

    def made() -> Op:
        return zeros(S)

    with use_device("host"):
        op = pair(made(), made())
        accept = accept_of(op)
        assert accept is not None
        one = made()
        assert accept(pair(one, one)) is MISS
        assert check_pair(accept, op, pair(made(), made()))


def test_an_op_of_equal_code_in_another_place_is_refused() -> None:
    """Two functions whose code objects are equal are two places."""
    text = "def build():\n    return zeros((2, 2))\n"
    scopes: list[dict[str, Any]] = [{"zeros": zeros}, {"zeros": zeros}]
    for scope, name in zip(scopes, ("one.py", "other.py"), strict=True):
        exec(compile(text, name, "exec"), scope)
    one, other = scopes[0]["build"], scopes[1]["build"]
    assert one.__code__ == other.__code__
    accept = accept_of(one())
    assert accept is not None
    assert accept(one()) is not MISS
    assert accept(other()) is MISS


def test_ops_without_a_guard() -> None:
    """Those that call functions, remember values or call pipelines."""
    x = full(S, 1).shared()
    for op in (zeros(S).map(lambda t: t), x, zip_ops(x, x), zeros(S).host_map(lambda t: t), FORMS["an argument"](1)):
        assert guard_of(op) is None


def test_handles_that_share_memory_are_told_apart() -> None:
    """One tensor as two arguments, two tensors, and two views of one."""
    with use_device("host"):
        s, t = shared(), shared(2.0)

        def made(x: Any, y: Any) -> Op:
            return add(empty(S).partition(S), x, y).first()

        two, clones = made(s, t), made(s, s.clone())
        accept_two, accept_clones = accept_of(two), accept_of(clones)
        assert accept_two is not None
        assert accept_clones is not None
        assert check_pair(accept_two, two, made(t, s))
        assert not check_pair(accept_two, two, made(s, s.clone()))
        twice = made(s, s)
        accept_twice = accept_of(twice)
        assert accept_twice is not None
        assert check_pair(accept_twice, twice, made(t, t))
        for other in (made(s, t), made(s, s.clone())):
            assert not check_pair(accept_twice, twice, other)
        assert not check_pair(accept_two, two, made(s, s))
        assert check_pair(accept_clones, clones, made(t, t.clone()))
        assert not check_pair(accept_clones, clones, made(s, t))


def test_a_long_chain_has_a_guard_of_its_length() -> None:
    with use_device("host"):
        accept = accept_of(chain(*[1.0] * 5))
        assert accept is not None
        assert accept(chain(*[2.0] * 5)) is not MISS
        assert accept(chain(*[2.0] * 4)) is MISS
        assert accept(chain(*[2.0] * 6)) is MISS
