"""The NumPy twin of an expression's kernel, which is its host body: the same operations in the same order.

It works on parts of about `PART` elements, so that what lies between two operations stays in the processor's cache.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.dtypes import Shape
from dagpu.kernels.expressions.cuda_operations import is_half
from dagpu.kernels.expressions.expression_text import ArgumentPattern
from dagpu.kernels.expressions.numpy_operations import (
    NumpyFunction,
    cast_function,
    numpy_function,
    register_dtype,
    where,
)
from dagpu.kernels.expressions.traced_expression import Step, TracedExpression

PART: Final = 1 << 16
"""The number of elements that are computed at a time."""


def numpy_twin(expression: TracedExpression, patterns: Sequence[ArgumentPattern]) -> Callable[..., None]:
    """Return the host body of the kernel for arguments of these patterns: `body(out, *arguments)`."""
    evaluate = evaluator(expression)

    def body(out: Any, *arguments: Any) -> None:
        target = out.view(np.ndarray)
        given = iter(arguments)
        operands: list[Any] = []
        for pattern, dtype in zip(patterns, expression.dtypes, strict=True):
            if pattern.form == "output":
                operands.append(target)
            elif pattern.form == "number":
                operands.append(dtype.type(next(given)))
            else:
                operands.append(_aligned(next(given).view(np.ndarray), pattern.axes, target.ndim))
        with np.errstate(all="ignore"):
            if target.size <= PART:
                evaluate(operands, target)
                return
            for part in parts(target.shape):
                evaluate([_cut(each, part) for each in operands], target[(*part, ...)])

    return body


def evaluator(expression: TracedExpression) -> Callable[[Sequence[Any], NDArray[Any]], None]:
    """Return the function that computes an expression of arrays and numbers, and writes an array."""
    functions = [_function(step, expression.steps) for step in expression.steps]
    constants = [
        register_dtype(step.dtype).type(step.value) if step.operation == "constant" else None
        for step in expression.steps
    ]
    last = len(functions) - 1
    direct = functions[last] is not None and not is_half(expression.dtype)

    def evaluate(operands: Sequence[Any], out: NDArray[Any]) -> None:
        values: list[Any] = []
        for number, (step, function) in enumerate(zip(expression.steps, functions, strict=True)):
            if function is None:
                value = constants[number] if step.operation == "constant" else _register(operands[step.value])
            elif number == last and direct:
                function(*[values[each] for each in step.operands], out=out)
                return
            else:
                value = function(*[values[each] for each in step.operands])
            values.append(value)
        np.copyto(out, values[last], casting="unsafe")

    return evaluate


def _function(step: Step, steps: Sequence[Step]) -> NumpyFunction | None:
    """Return the function of a step; None for a parameter or a constant."""
    match step.operation:
        case "parameter" | "constant":
            return None
        case "where":
            return where
        case "cast":
            return cast_function(steps[step.operands[0]].dtype, step.dtype)
        case operation:
            return numpy_function(operation, steps[step.operands[0]].dtype, step.dtype)


def _register(x: Any) -> Any:
    """Return the elements of an argument as they are kept between operations."""
    return x.astype(np.float32) if is_half(x.dtype) else x


# ---- parts of the output
def parts(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield the slices of parts that cover an array in C order, each of about `PART` elements or of one row."""
    if prod(shape) <= PART:
        yield (slice(None),) * len(shape)
        return
    axis = next(a for a in range(len(shape)) if prod(shape[a + 1 :]) <= PART)
    step = max(1, PART // max(1, prod(shape[axis + 1 :])))
    rest = (slice(None),) * (len(shape) - axis - 1)
    for outer in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (*(slice(at, at + 1) for at in outer), slice(start, start + step), *rest)


def _aligned(x: NDArray[Any], axes: tuple[int, ...], rank: int) -> NDArray[Any]:
    """Return an argument with one axis for each of the output's, of extent 1 where it has none."""
    index = _index(axes, rank)
    return x if index is None else x[index]


@cache
def _index(axes: tuple[int, ...], rank: int) -> tuple[Any, ...] | None:
    """Return the index that puts the axes of an argument in the places of the output's; None if they are there.

    `axes` ascend. An axis of -1 has the extent 1, and the output has none for it.
    """
    if axes == tuple(range(rank)):
        return None
    own: list[Any] = [0 if axis < 0 else slice(None) for axis in axes]
    found: list[Any] = []
    done = 0
    for axis in range(rank):
        if axis in axes:
            until = axes.index(axis) + 1
            found += own[done:until]
            done = until
        else:
            found.append(None)
    return (*found, *own[done:], ...)


def _cut(x: Any, part: tuple[slice, ...]) -> Any:
    """Return the part of an argument that the part of the output needs; a number is needed whole."""
    if not isinstance(x, np.ndarray):
        return x
    cuts: list[Any] = [slice(None) if extent == 1 else cut for extent, cut in zip(x.shape, part, strict=True)]
    return x[(*cuts, ...)]  # the ellipsis keeps an array without axes an array
