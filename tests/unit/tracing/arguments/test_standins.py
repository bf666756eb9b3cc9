"""Stand-ins for the arguments of a pipeline: a number that is read is noted, an array is never read."""

import copy
import json
import math
import operator
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import NotReadyError, f32
from dagpu.handles.symbolic import (
    SymbolicArray,
    SymbolicNumber,
    read_value,
    replace_standins,
)

numbers = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, width=32))


def stands_for(number: float) -> tuple[Any, set[int]]:
    """A stand-in for argument 7, and where its reads are noted."""
    reads: set[int] = set()
    return SymbolicNumber(7, number, reads), reads


def outcome(f: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or the kind of its error."""
    try:
        found = f(*arguments)
    except Exception as error:
        return type(error)
    return type(found), repr(found)


READS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": int,
    "bool": bool,
    "complex": complex,
    "str": str,
    "repr": repr,
    "hash": hash,
    "index": operator.index,
    "abs": abs,
    "neg": operator.neg,
    "pos": operator.pos,
    "invert": operator.invert,
    "round": round,
    "round to digits": lambda x: round(x, 1),
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "sqrt, in C": lambda x: math.sqrt(abs(x)),
    "pack, in C": lambda x: struct.pack("d", x),
    "format": lambda x: f"{x:.3e}",
    "percent": lambda x: "%g" % x,  # noqa: UP031  # another way into C
    "range": lambda x: list(range(x % 5)),
    "array": np.asarray,
    "scalar of NumPy": np.float64,
    "sum": lambda x: sum([x, 1]),
    "max": lambda x: max(x, 3) + 0,
    "sorted": lambda x: sorted([x, 1]),
    "key of a dict": lambda x: {x: 1},
    "in a set": lambda x: x in {1.0, 2},
    "match on a value": lambda x: ("other", "zero")[bool(x == 0)],
    "method": lambda x: x.real,
    "attribute": lambda x: x.imag,
    "is_integer": lambda x: float(x).is_integer(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "modular power": lambda x: pow(x, 3, 7),
    "power of": lambda x: pow(2, x % 5),
    "divmod": lambda x: divmod(x, 3),
    "times an array": lambda x: x * np.arange(3),
    "array times": lambda x: np.arange(3) * x,
    "times an array of f32": lambda x: x * np.ones(3, f32),
    "array of f32 times": lambda x: np.ones(3, f32) * x,
    "array of f32 in place": lambda x: np.ones(3, f32).__iadd__(x),
    "ufunc": lambda x: np.maximum(np.ones(3, f32), x),
    "ufunc of it alone": np.exp,
    "reduction": lambda x: np.add.reduce([x, 1]),
    "function of NumPy": lambda x: np.where(np.eye(2, dtype=bool), np.ones(2, f32), x),
    "full": lambda x: np.full((2,), x),
    "clip": lambda x: np.clip(np.ones(2, f32), x, None),
    "concatenate": lambda x: np.stack([np.asarray(x), np.asarray(1)]),
}


@pytest.mark.parametrize("name", READS)
@settings(max_examples=15)
@given(number=numbers)
def test_whatever_needs_its_value_is_noted(name: str, number: float) -> None:
    """Every way to look at a number gives what the number itself gives, and leaves a note, errors included."""
    x, reads = stands_for(number)
    assert outcome(READS[name], x) == outcome(READS[name], number)
    assert reads == {7}


BINARY = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.eq,
    operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_, operator.xor,
)  # fmt: skip


@given(numbers, numbers, st.sampled_from(BINARY), st.booleans(), st.booleans())
def test_arithmetic_is_that_of_the_numbers(
    a: float, b: float, f: Callable[[Any, Any], Any], left: bool, right: bool
) -> None:
    """On either side of an operator, or on both."""
    x, first = stands_for(a)
    y, second = stands_for(b)
    assert outcome(f, x if left else a, y if right else b) == outcome(f, a, b)
    assert (bool(first), bool(second)) == (left, right)


@given(numbers)
def test_its_type_is_no_secret(number: float) -> None:
    """`isinstance` and passing it along read nothing: all calls of one key have it in common."""
    x, reads = stands_for(number)
    assert isinstance(x, type(number))
    assert {"a": x}["a"] is x
    assert not reads
    assert read_value(x) is number
    assert reads == {7}


def test_json_refuses_it() -> None:
    """C code that looks at the type alone fails, and is told no wrong value."""
    x, _ = stands_for(1.5)
    with pytest.raises(TypeError):
        json.dumps({"x": x})


ARRAY = np.arange(6, dtype=f32).reshape(2, 3)
REFUSED: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x[0],
    "assignment": lambda x: x.__setitem__(0, 1),
    "iteration": list,
    "np.asarray": np.asarray,
    "np.sum": np.sum,
    "ufunc": np.exp,
    "plus": lambda x: x + 1,
    "plus from the right": lambda x: np.ones(3) + x,
    "matmul": lambda x: x @ x,
    "in place": lambda x: x.__iadd__(1),
    "equal": lambda x: x == x,  # it is the operator that is tested
    "bool": bool,
    "float": float,
    "in": lambda x: 1 in x,
    "method": lambda x: x.sum(),
    "strides": lambda x: x.strides,
    "flags": lambda x: x.flags,
    "buffer": lambda x: x.data,
    "copy": copy.copy,
    "hash": hash,
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_contents_of_an_array_are_not_there(name: str) -> None:
    """Whatever might differ between two arrays of one shape and type is refused, with the cure."""
    with pytest.raises(NotReadyError, match=r"from_host\(x\)"):
        REFUSED[name](SymbolicArray(0, ARRAY, set()))


def test_memory_of_an_array_is_not_there() -> None:
    """The memory of a stand-in array is not available, not even to C code that bypasses all methods."""
    x: Any = SymbolicArray(0, ARRAY, set())
    with pytest.raises((TypeError, NotReadyError)):
        memoryview(x)


def test_shape_and_type_of_an_array_are_there() -> None:
    """A stand-in has the shape and the element type of the array."""
    x: Any = SymbolicArray(0, ARRAY, set())
    assert (x.shape, x.dtype, x.ndim, x.size, x.nbytes, len(x)) == ((2, 3), f32, 2, 6, 24, 2)
    assert isinstance(x, np.ndarray)
    assert "(2, 3)" in repr(x)


class Pair(NamedTuple):
    """A tuple with names."""

    left: Any
    right: Any


plain = st.recursive(
    st.one_of(numbers, st.none(), st.text(max_size=2)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


def with_standins(value: Any) -> Any:
    """Return the same structure with a stand-in for every number."""
    kind = type(value)
    if kind is int or kind is float:
        return SymbolicNumber(0, value, set())
    if kind is dict:
        return {key: with_standins(item) for key, item in value.items()}
    if kind is Pair:
        return Pair(*map(with_standins, value))
    return kind(map(with_standins, value)) if kind in (list, tuple) else value


@given(plain)
def test_results_have_no_stand_ins(value: Any) -> None:
    """Numbers come back as they were given, however deep, and containers keep their types."""
    found = replace_standins(with_standins(value))
    assert repr(found) == repr(value)


def test_arrays_come_back() -> None:
    """Arrays come back as the same object that was given. Values without stand-ins are not even copied."""
    x = SymbolicArray(0, ARRAY, set())
    assert replace_standins({"a": [x, (x, 1)]})["a"][1][0] is ARRAY
    kept = (1, ("a", None))
    assert replace_standins(kept) is kept


def test_deep_results_need_no_recursion() -> None:
    """Tuples nest as deep as zips do."""
    deep: Any = SymbolicNumber(0, 3, set())
    for _ in range(50_000):
        deep = (deep,)
    found = replace_standins(deep)
    while type(found) is tuple:
        (found,) = found
    assert found == 3
