"""Wrong types in every argument of expressions and of `dagpu.array`: each is refused in words of dagpu's own."""

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

import dagpu
from dagpu import DeviceOp, array, bool_, expr, f32, i64, zeros
from tests.behaviour.errors.argument_sorts import SEED, WRONG, tensor

blend = expr(f32, f32)(lambda x, a: a * x)
loose: Any = expr
anyhow: Any = array
TENSORS: Final = ("op", "tensor", "lent")
REALS: Final = ("number", "negative", "fraction", "nan")


MOVING: Final = ("concatenate", "stack", "take", "one_hot", "scatter_add", "transpose", "cumsum", "softmax")
"""Functions that have entries of their own."""


def indices() -> Any:
    return zeros((2,), i64)


def out() -> Any:
    return zeros((4,)).partition((2,))


OTHERS: Final = ("topk", "permutation", "dropout", "fft", "ifft", "rfft", "irfft")
"""Functions with more parameters than a tensor."""


CALLS: Final[dict[str, tuple[Callable[[Any], object], tuple[str, ...]]]] = {
    "expr, a type": (lambda x: loose(x), ()),
    "expr, a function": (lambda x: loose(f32)(x), ()),
    "Elem.to": (lambda x: loose(f32)(lambda e: e.to(x)), ()),
    "Elem.__add__": (lambda x: loose(f32)(lambda e: e + x), REALS),
    "Expression.__call__": (lambda x: blend(x, tensor()), (*TENSORS, *REALS)),
    "Expression.into": (lambda x: blend.into(x, tensor(), 2.0), ("partition",)),
    "Expression.update": (lambda x: blend.update(x, 2.0), ("partition",)),
    "a number of update": (lambda x: blend.update(out(), x), (*TENSORS, *REALS)),
    **{
        name: (lambda x, name=name: getattr(anyhow, name)(x), TENSORS)  # type: ignore[misc]  # reason: mypy has no type for a default
        for name in array.__all__
        if name not in ("where", "clip", "pow", "minimum", "maximum", "matmul", *MOVING, *OTHERS)
    },
    "transpose": (lambda x: anyhow.transpose(x), TENSORS),
    "axes": (lambda x: anyhow.transpose(tensor(), x), ("None",)),
    "concatenate": (lambda x: anyhow.concatenate(x), ()),
    "a part": (lambda x: anyhow.concatenate((tensor(), x)), TENSORS),
    "an axis of concatenate": (lambda x: anyhow.concatenate((tensor(),), x), ("negative",)),
    "stack": (lambda x: anyhow.stack((tensor(), x)), TENSORS),
    "an axis of stack": (lambda x: anyhow.stack((tensor(),), x), ("negative",)),
    "take": (lambda x: anyhow.take(x, indices()), TENSORS),
    "indices": (lambda x: anyhow.take(tensor(), x), ()),
    "an axis of take": (lambda x: anyhow.take(tensor(), indices(), x), ("negative",)),
    "one_hot": (lambda x: anyhow.one_hot(x, 3), ()),
    "n of one_hot": (lambda x: anyhow.one_hot(indices(), x), ("number",)),
    "an element type of one_hot": (lambda x: anyhow.one_hot(indices(), 3, x), ()),
    "cumsum": (lambda x: anyhow.cumsum(x), TENSORS),
    "an axis of cumsum": (lambda x: anyhow.cumsum(tensor(), x), ("None", "negative")),
    "softmax": (lambda x: anyhow.softmax(x), TENSORS),
    "an axis of softmax": (lambda x: anyhow.softmax(tensor(), x), ("negative",)),
    "scatter_add": (lambda x: anyhow.scatter_add(x, indices(), zeros((2,))), ("op", "tensor")),
    "indices of scatter_add": (lambda x: anyhow.scatter_add(zeros((4,)), x, zeros((2,))), ()),
    "values": (lambda x: anyhow.scatter_add(zeros((4,)), zeros((4,), i64), x), TENSORS),
    "where": (lambda x: anyhow.where(x, tensor(), 1.0), ("true",)),
    "a choice of where": (lambda x: anyhow.where(zeros((4,), bool_), x, tensor()), (*TENSORS, *REALS)),
    "pow": (lambda x: anyhow.pow(x, tensor()), (*TENSORS, *REALS)),
    "minimum": (lambda x: anyhow.minimum(x, tensor()), (*TENSORS, *REALS)),
    "matmul": (lambda x: anyhow.matmul(x, tensor()), TENSORS),
    "topk": (lambda x: anyhow.topk(x, 2), TENSORS),
    "a count of topk": (lambda x: anyhow.topk(tensor(), x), ("number",)),
    "permutation": (lambda x: anyhow.permutation(x, seed=1), ("number",)),
    "a seed of permutation": (lambda x: anyhow.permutation(3, seed=x), ("None", *SEED)),
    "dropout": (lambda x: anyhow.dropout(x, 0.5), TENSORS),
    "a share": (lambda x: anyhow.dropout(tensor(), x), ()),
    "a seed of dropout": (lambda x: anyhow.dropout(tensor(), 0.5, seed=x), ("None", *SEED)),
    "fft": (lambda x: anyhow.fft(x), ()),
    "ifft": (lambda x: anyhow.ifft(x), ()),
    "rfft": (lambda x: anyhow.rfft(x), TENSORS),
    "irfft": (lambda x: anyhow.irfft(x), ()),
    "a length": (lambda x: anyhow.rfft(tensor(), x), ("None", "number")),
    "a transpose": (lambda x: anyhow.matmul(tensor(), tensor(), transpose=x), ()),
    "a precision": (lambda x: anyhow.matmul(tensor(), tensor(), precision=x), ()),
    "maximum": (lambda x: anyhow.maximum(x, tensor()), (*TENSORS, *REALS)),
    "clip": (lambda x: anyhow.clip(tensor(), x, 1.0), (*TENSORS, *REALS)),
    "an axis": (lambda x: anyhow.sum(tensor(), x), ("None", "negative")),
    "a flag": (lambda x: anyhow.sum(tensor(), keepdims=x), ("true",)),
}
"""Calls with one argument that varies, and the sorts of values that are right for it."""


def test_every_function_is_here() -> None:
    """Each function of `dagpu.array` has an entry of its name."""
    assert sorted(set(array.__all__) - CALLS.keys()) == []


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused(name: str) -> None:
    """The error is dagpu's own, or a TypeError with a text of dagpu's: the place and the cure."""
    call, right = CALLS[name]
    for sort in WRONG.keys() - set(right):
        with pytest.raises((dagpu.DagpuError, TypeError, ValueError)) as caught:
            finished(call(WRONG[sort]()))
        text = str(caught.value)
        assert re.search(r"tests/behaviour/\S+\.py:\d+", text), (sort, text)
        assert re.search(r"\. [A-Z@]|: say ", text), (sort, text)


@pytest.mark.parametrize("name", CALLS)
def test_right_arguments_are_taken(name: str) -> None:
    """The sorts that the table lists as right are accepted."""
    call, right = CALLS[name]
    for sort in right:
        finished(call(WRONG[sort]()))


def finished(made: object) -> object:
    """Run what was built."""
    return made.sync() if isinstance(made, DeviceOp) else made
