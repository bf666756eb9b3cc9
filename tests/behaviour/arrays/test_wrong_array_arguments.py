"""Wrong types in every argument of expressions and of `dagpu.array`: each is refused in words of dagpu's own."""

import re
from collections.abc import Callable
from typing import Any, Final

import pytest

import dagpu
from dagpu import DeviceOp, array, bool_, expr, f32, i64, zeros
from tests.behaviour.errors.argument_sorts import SEED, WRONG, tensor

blend = expr(f32, f32)(lambda x, a: a * x)
both = expr(f32, f32)(lambda x, a: (a * x, a + x))
loose: Any = expr
anyhow: Any = array
TENSORS: Final = ("op", "tensor", "lent")
REALS: Final = ("number", "negative", "fraction", "nan")


FACTORING: Final = ("cholesky", "solve", "qr", "svd")
"""Functions of matrices."""
SCATTERING: Final = ("scatter_add", "scatter_set", "scatter_max", "scatter_min")
MOVING: Final = (
    "concatenate", "stack", "take", "one_hot", "transpose", "cumsum", "softmax", "segment_sum", "take_along_axis",
    "csr_matmul", *FACTORING, *SCATTERING,
)  # fmt: skip
"""Functions that have entries of their own."""


OF_TWO: Final = ("pow", "minimum", "maximum", "atan2", "copysign", "hypot", "logaddexp", "nextafter")
"""Functions of two tensors or numbers."""


def indices() -> Any:
    return zeros((2,), i64)


def mask() -> Any:
    return zeros((4,), bool_)


def out() -> Any:
    return zeros((4,)).partition((2,))


MAPPING: Final = ("roll", "tile", "repeat", "broadcast_to", "meshgrid", "pad", "tril", "triu", "full_like", "quantile")
DRAWING: Final = ("stencil", "uniform", "exponential", "bernoulli", "randint", "choice")
COUNTING: Final = (
    *DRAWING,
    "einsum",
    "tensordot",
    "dot",
    "convolve",
    "correlate",
    "searchsorted",
    "bincount",
    "histogram",
    "compress",
)
FOURIER: Final = ("fft2", "ifft2", "rfft2", "irfft2", "irfftn", "irfft")
"""Transforms of matrices, or of complex numbers alone."""
OTHERS: Final = ("topk", "permutation", "dropout", *FOURIER, *MAPPING, *COUNTING)
"""Functions with more parameters than a tensor."""


CALLS: Final[dict[str, tuple[Callable[[Any], object], tuple[str, ...]]]] = {
    "expr, a type": (lambda x: loose(x), ()),
    "expr, a function": (lambda x: loose(f32)(x), ()),
    "Elem.to": (lambda x: loose(f32)(lambda e: e.to(x)), ()),
    "Elem.__add__": (lambda x: loose(f32)(lambda e: e + x), REALS),
    "Expression.__call__": (lambda x: blend(x, tensor()), (*TENSORS, *REALS)),
    "TupleExpression.__call__": (lambda x: both(x, tensor()), (*TENSORS, *REALS)),
    "Expression.into": (lambda x: blend.into(x, tensor(), 2.0), ("partition",)),
    "Expression.update": (lambda x: blend.update(x, 2.0), ("partition",)),
    "a number of update": (lambda x: blend.update(out(), x), (*TENSORS, *REALS)),
    **{
        name: (lambda x, name=name: getattr(anyhow, name)(x), TENSORS)  # type: ignore[misc]  # reason: mypy has no type for a default
        for name in array.__all__
        if name not in ("where", "clip", "matmul", *OF_TWO, *MOVING, *OTHERS)
    },
    "transpose": (lambda x: anyhow.transpose(x), TENSORS),
    "axes": (lambda x: anyhow.transpose(tensor(), x), ("None",)),
    "concatenate": (lambda x: anyhow.concatenate(x), ()),
    "a part": (lambda x: anyhow.concatenate((tensor(), x)), TENSORS),
    "an axis of concatenate": (lambda x: anyhow.concatenate((tensor(),), x), ("negative",)),
    "stack": (lambda x: anyhow.stack((tensor(), x)), TENSORS),
    "an axis of stack": (lambda x: anyhow.stack((tensor(),), x), ("negative",)),
    "roll": (lambda x: anyhow.roll(x, 1), TENSORS),
    "a shift": (lambda x: anyhow.roll(tensor(), x), ("number", "negative")),
    "tile": (lambda x: anyhow.tile(x, 2), TENSORS),
    "reps": (lambda x: anyhow.tile(tensor(), x), ("number",)),
    "repeat": (lambda x: anyhow.repeat(x, 2), TENSORS),
    "repeats": (lambda x: anyhow.repeat(tensor(), x), ("number",)),
    "an axis of repeat": (lambda x: anyhow.repeat(tensor(), 2, x), ("None", "negative")),
    "broadcast_to": (lambda x: anyhow.broadcast_to(x, (4, 4)), TENSORS),
    "a shape": (lambda x: anyhow.broadcast_to(tensor(), x), ()),
    "meshgrid": (lambda x: anyhow.meshgrid(x), TENSORS),
    "indexing": (lambda x: anyhow.meshgrid(tensor(), indexing=x), ()),
    "pad": (lambda x: anyhow.pad(x, 2), TENSORS),
    "pad_width": (lambda x: anyhow.pad(tensor(), x), ("number",)),
    "a mode": (lambda x: anyhow.pad(tensor(), 2, x), ()),
    "constant_values": (lambda x: anyhow.pad(tensor(), 2, constant_values=x), REALS),
    "tril": (lambda x: anyhow.tril(x), ()),
    "triu": (lambda x: anyhow.triu(x), ()),
    "k": (lambda x: anyhow.tril(zeros((3, 4)), x), ("number", "negative")),
    "full_like": (lambda x: anyhow.full_like(x, 1), TENSORS),
    "fill_value": (lambda x: anyhow.full_like(tensor(), x), REALS),
    "uniform": (lambda x: anyhow.uniform(x, seed=1), ()),
    "an element type of uniform": (lambda x: anyhow.uniform((3,), 0, 1, x, seed=1), ()),
    "a seed of uniform": (lambda x: anyhow.uniform((3,), seed=x), ("None", *SEED)),
    "exponential": (lambda x: anyhow.exponential(x, seed=1), ()),
    "bernoulli": (lambda x: anyhow.bernoulli(x, seed=1), ()),
    "randint": (lambda x: anyhow.randint(x, 0, 9, seed=1), ()),
    "a bound of randint": (lambda x: anyhow.randint((3,), 0, x, seed=1), ("number",)),
    "choice": (lambda x: anyhow.choice(x, 2, seed=1), TENSORS),
    "a count of choice": (lambda x: anyhow.choice(tensor(), x, seed=1), ("number",)),
    "replace": (lambda x: anyhow.choice(tensor(), 2, replace=x, seed=1), ("true",)),
    "stencil": (lambda x: anyhow.stencil(f32)(lambda n: n[0] + n[1])(x), TENSORS),
    "an element type of stencil": (lambda x: anyhow.stencil(x), ()),
    "a radius": (lambda x: anyhow.stencil(f32, x), ("number",)),
    "a border": (lambda x: anyhow.stencil(f32, border=x), ()),
    "a constant_value": (lambda x: anyhow.stencil(f32, constant_value=x), REALS),
    "an offset": (lambda x: anyhow.stencil(f32, 3)(lambda n: n[x] + n[0]), ("number", "negative")),
    "einsum": (lambda x: anyhow.einsum("a", x), TENSORS),
    "subscripts": (lambda x: anyhow.einsum(x, tensor()), ("text",)),
    "tensordot": (lambda x: anyhow.tensordot(x, tensor(), 1), TENSORS),
    "axes of tensordot": (lambda x: anyhow.tensordot(tensor(), tensor(), x), ()),
    "dot": (lambda x: anyhow.dot(x, tensor()), TENSORS),
    "searchsorted": (lambda x: anyhow.searchsorted(x, tensor()), TENSORS),
    "values of searchsorted": (lambda x: anyhow.searchsorted(tensor(), x), TENSORS),
    "a side": (lambda x: anyhow.searchsorted(tensor(), tensor(), x), ()),
    "bincount": (lambda x: anyhow.bincount(x, 3), ()),
    "n of bincount": (lambda x: anyhow.bincount(indices(), x), ("number",)),
    "histogram": (lambda x: anyhow.histogram(x, 3, (0, 1)), TENSORS),
    "compress": (lambda x: anyhow.compress(x, tensor()), ()),
    "x of compress": (lambda x: anyhow.compress(mask(), x), TENSORS),
    "an axis of compress": (lambda x: anyhow.compress(mask(), tensor(), x), ("None", "negative")),
    "a size": (lambda x: anyhow.nonzero(tensor(), size=x), ("None", "number")),
    "a fill_value of nonzero": (lambda x: anyhow.nonzero(tensor(), size=2, fill_value=x), ("number", "negative")),
    "a fill_value of compress": (lambda x: anyhow.compress(mask(), tensor(), fill_value=x), REALS),
    "a size of unique": (lambda x: anyhow.unique(tensor(), size=x), ("None", "number")),
    "a fill_value of unique": (lambda x: anyhow.unique_counts(tensor(), size=2, fill_value=x), REALS),
    "bins": (lambda x: anyhow.histogram(tensor(), x, (0, 1)), ("number",)),
    "range": (lambda x: anyhow.histogram(tensor(), 3, x), ()),
    "quantile": (lambda x: anyhow.quantile(x, 0.5), TENSORS),
    "q": (lambda x: anyhow.quantile(tensor(), x), ()),
    "an axis of quantile": (lambda x: anyhow.quantile(tensor(), 0.5, x), ("None", "negative")),
    "an element type of sum": (lambda x: anyhow.sum(tensor(), dtype=x), ("None",)),
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
    **{
        name: (lambda x, name=name: getattr(anyhow, name)(x, indices(), zeros((2,))), ("op", "tensor"))  # type: ignore[misc]  # reason: mypy has no type for a default
        for name in SCATTERING
    },
    "segment_sum": (lambda x: anyhow.segment_sum(x, zeros((4,), i64), 2), TENSORS),
    "segments": (lambda x: anyhow.segment_sum(zeros((4,)), x, 2), ()),
    "n of segment_sum": (lambda x: anyhow.segment_sum(zeros((4,)), zeros((4,), i64), x), ("number",)),
    "csr_matmul": (lambda x: anyhow.csr_matmul(x, zeros((4,), i64), indices(), zeros((2,))), TENSORS),
    "indices of csr_matmul": (lambda x: anyhow.csr_matmul(zeros((2,)), x, indices(), zeros((2,))), ()),
    "indptr": (lambda x: anyhow.csr_matmul(zeros((2,)), indices(), x, zeros((2,))), ()),
    "b of csr_matmul": (lambda x: anyhow.csr_matmul(zeros((2,)), indices(), indices(), x), TENSORS),
    **{name: (lambda x, name=name: getattr(anyhow, name)(x), ()) for name in ("cholesky", "qr", "svd")},  # type: ignore[misc]  # reason: as above
    "full_matrices": (lambda x: anyhow.svd(zeros((2, 3)), x), ("true",)),
    "solve": (lambda x: anyhow.solve(x, tensor()), ()),
    "b of solve": (lambda x: anyhow.solve(dagpu.eye(4), x), TENSORS),
    "take_along_axis": (lambda x: anyhow.take_along_axis(x, indices()), TENSORS),
    "indices of take_along_axis": (lambda x: anyhow.take_along_axis(tensor(), x), ()),
    "indices of scatter_add": (lambda x: anyhow.scatter_add(zeros((4,)), x, zeros((2,))), ()),
    "values": (lambda x: anyhow.scatter_add(zeros((4,)), zeros((4,), i64), x), TENSORS),
    "where": (lambda x: anyhow.where(x, tensor(), 1.0), ("true",)),
    "a choice of where": (lambda x: anyhow.where(zeros((4,), bool_), x, tensor()), (*TENSORS, *REALS)),
    **{
        name: (lambda x, name=name: getattr(anyhow, name)(x, tensor()), (*TENSORS, *REALS))  # type: ignore[misc]  # reason: mypy has no type for a default
        for name in OF_TWO
    },
    "matmul": (lambda x: anyhow.matmul(x, tensor()), TENSORS),
    "topk": (lambda x: anyhow.topk(x, 2), TENSORS),
    "a count of topk": (lambda x: anyhow.topk(tensor(), x), ("number",)),
    "permutation": (lambda x: anyhow.permutation(x, seed=1), ("number",)),
    "a seed of permutation": (lambda x: anyhow.permutation(3, seed=x), ("None", *SEED)),
    "dropout": (lambda x: anyhow.dropout(x, 0.5), TENSORS),
    "a share": (lambda x: anyhow.dropout(tensor(), x), ()),
    "a seed of dropout": (lambda x: anyhow.dropout(tensor(), 0.5, seed=x), ("None", *SEED)),
    **{name: (lambda x, name=name: getattr(anyhow, name)(x), ()) for name in FOURIER},  # type: ignore[misc]  # reason: as above
    "convolve": (lambda x: anyhow.convolve(x, tensor()), TENSORS),
    "correlate": (lambda x: anyhow.correlate(tensor(), x), TENSORS),
    "a mode of convolve": (lambda x: anyhow.convolve(tensor(), tensor(), x), ()),
    "extents": (lambda x: anyhow.fftn(tensor(), x), ("None",)),
    "axes of fftn": (lambda x: anyhow.fftn(tensor(), axes=x), ("None",)),
    "a norm": (lambda x: anyhow.fft(tensor(), norm=x), ("None",)),
    "a length": (lambda x: anyhow.rfft(tensor(), x), ("None", "number")),
    "a transpose": (lambda x: anyhow.matmul(tensor(), tensor(), transpose=x), ()),
    "a precision": (lambda x: anyhow.matmul(tensor(), tensor(), precision=x), ()),
    "clip": (lambda x: anyhow.clip(tensor(), x, 1.0), (*TENSORS, *REALS, "None")),
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
