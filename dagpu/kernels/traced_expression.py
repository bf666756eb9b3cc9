"""The trace of an expression: its function is called once with elements, and their operations become a list of steps.

A step that occurs twice is in the list once: steps are equal if they apply the same operation to the same operands.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from dagpu.common.places import describe
from dagpu.common.wrong_arguments import format_value
from dagpu.kernels.element import Elem, dtype_of, operands_of, operation_of, value_of


class Parameter(NamedTuple):
    """The value of a parameter's element: its position, and the trace that it belongs to."""

    position: int
    trace: object


class Step(NamedTuple):
    """One operation of an expression. `operands` are the indices of earlier steps.

    `value` is the number of a constant as a NumPy scalar, the position of a parameter, and None for all others.
    """

    operation: str
    dtype: "np.dtype[Any]"
    operands: tuple[int, ...]
    value: Any


@final
class TracedExpression(NamedTuple):
    """An expression as a list of steps in the order of their computation. The last one is its result.

    `names` and `dtypes` are those of the parameters, `place` is the file and line of the function. `name` is that of
    the kernel; that of a `lambda` is "expression", and `is_lambda` is true.
    """

    name: str
    names: tuple[str, ...]
    dtypes: tuple["np.dtype[Any]", ...]
    steps: tuple[Step, ...]
    place: str
    is_lambda: bool

    def named(self, name: str) -> "TracedExpression":
        """Return the same expression under another name."""
        return self._replace(name=name, is_lambda=False)

    @property
    def label(self) -> str:
        """The name in tables, pictures and places of moves: that of the function, or `expression file.py:12`."""
        # Each call of the expression asks for it, and a `PurePath` takes 6 us.
        return f"expression {self.place.rpartition(os.sep)[2]}" if self.is_lambda else self.name

    @property
    def title(self) -> str:
        """The name at the beginning of a message."""
        return f"the expression at {self.place}" if self.is_lambda else f"expression {self.name!r}"

    @property
    def signature(self) -> inspect.Signature:
        """The parameters, which take arguments by position or by name."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.names])

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type of the result."""
        return self.steps[-1].dtype


def trace_expression(function: Callable[..., Any], dtypes: Sequence["np.dtype[Any]"]) -> TracedExpression:
    """Call the function of an expression once with an element for each parameter, and return its steps.

    Raises:
        TypeError: the function has another number of parameters, or its result is not an element of this expression.
    """
    is_lambda = function.__name__ == "<lambda>"
    name = "expression" if is_lambda else function.__name__
    place = describe((function.__code__, 0))
    names = tuple(inspect.signature(function).parameters)
    if len(names) != len(dtypes):
        raise TypeError(
            f"expr: {name} at {place} has {len(names)} parameters, but {len(dtypes)} element types are given. Give one "
            "for each parameter: expr(f32, f32)."
        )
    trace = object()
    root = function(*[Elem("parameter", dtype, (), Parameter(i, trace)) for i, dtype in enumerate(dtypes)])
    if not isinstance(root, Elem):
        raise TypeError(
            f"expr: {name} at {place} returned {format_value(root)}, which is not an element. Return what operations "
            "on its parameters give; for a fixed value there is dagpu.full."
        )
    return TracedExpression(name, names, tuple(dtypes), _number_steps(root, trace, name, place), place, is_lambda)


def _number_steps(root: Elem[Any], trace: object, name: str, place: str) -> tuple[Step, ...]:
    """Return the steps of an element, each after its operands, and equal ones once."""
    steps: list[Step] = []
    known: dict[Any, int] = {}
    numbers: dict[int, int] = {}
    todo: list[tuple[Elem[Any], bool]] = [(root, False)]
    while todo:
        element, ready = todo.pop()
        if id(element) in numbers:
            continue
        operands = operands_of(element)
        if operands and not ready:
            todo.append((element, True))
            todo += [(operand, False) for operand in reversed(operands)]
            continue
        value = value_of(element)
        if isinstance(value, Parameter):
            if value.trace is not trace:
                raise TypeError(
                    f"expr: {name} at {place} uses an element of another expression. Make it a parameter, or write "
                    "both as one function."
                )
            value = value.position
        step = Step(operation_of(element), dtype_of(element), tuple([numbers[id(each)] for each in operands]), value)
        key = (*step[:3], value.tobytes() if isinstance(value, np.generic) else value)
        number = known.setdefault(key, len(steps))
        if number == len(steps):
            steps.append(step)
        numbers[id(element)] = number
    return tuple(steps)
