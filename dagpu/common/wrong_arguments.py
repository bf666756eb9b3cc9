"""Errors for wrong arguments of public calls, in one format, and the checks that several calls share.

    then at program.py:12: f is 3, but a function is wanted. Write .then(lambda t: ...), ...

A call checks its arguments before any handle moves. So the error has the line of the user's call, and never is an
AttributeError of a later step.
"""

import inspect
import operator
from copy import copy
from functools import partial
from os import PathLike
from types import AsyncGeneratorType, BuiltinFunctionType, CoroutineType, FunctionType, GeneratorType
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeGuard, TypeVar

import numpy as np

from dagpu.common.errors import DagpuError, KernelArgumentError, NotReadyError
from dagpu.common.places import Origin, describe

_E = TypeVar("_E", bound=DagpuError)

_RUNS_NOTHING: Final = (
    inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)
"""Code flags of async and generator functions: a call of one returns an object and does not run the body."""

Suspended: TypeAlias = Literal["a coroutine", "a generator", "an async generator"]
"""The object that a call of an async or generator function returns, in words."""

SUSPENDED: Final[dict[type[object], Suspended]] = {
    CoroutineType: "a coroutine", GeneratorType: "a generator", AsyncGeneratorType: "an async generator",
}  # fmt: skip
"""The types of coroutines and generators, and their names in messages."""

_LONGEST: Final = 60
"""The maximum number of characters of a value in a message."""


def format_value(value: object) -> str:
    """Return a value as text for a message: its repr, truncated; for an array, its type and shape."""
    if isinstance(value, np.ndarray):
        return f"a NumPy array of {value.dtype}, shape {value.shape}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    try:
        text = repr(value)
    except Exception:  # a defect in a class of the user's does not concern this message
        text = f"a {type(value).__name__}"
    has_place = type(value).__module__.startswith("dagpu.")  # an op or a kernel: the place is at the end
    return text if len(text) <= _LONGEST or has_place else f"{text[: _LONGEST - 3]}..."


def wrong_argument(
    call: str, where: Origin, name: str, given: object, wanted: str, cure: str, kind: type[Exception] = TypeError
) -> Exception:
    """Return the error for a wrong argument. `wanted` is a noun phrase, `cure` a sentence without its full stop."""
    return kind(f"{call} at {describe(where)}: {name} is {format_value(given)}, but {wanted} is wanted. {cure}.")


def no_attribute(value: object, name: str) -> AttributeError:
    """Return the error for an unknown attribute, with Python's own text."""
    return AttributeError(f"{type(value).__name__!r} object has no attribute {name!r}")


def add_call_place(call: str, where: Origin, error: _E) -> _E:
    """Return a copy of the error with the call and its place before the message."""
    return replace_message(error, f"{call} at {describe(where)}: {error}")


def replace_message(error: _E, message: str) -> _E:
    """Return a copy of the error with another message. A `DeviceError` keeps its code."""
    other = copy(error)
    other.args = (message,)
    return other


def is_real_number(value: object) -> "TypeGuard[float | np.integer[Any] | np.floating[Any]]":
    """Return true for a real number of Python's or NumPy's; True and False are none."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def as_whole_number(value: Any) -> int | None:
    """Return a whole number as an int; None for any other value, also for a bool."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except (TypeError, NotReadyError):
        return None


def check_flag(value: object, call: str, where: Origin, name: str) -> bool:
    """Return a flag as a `bool`.

    Raises:
        TypeError: the value is not a bool.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise wrong_argument(call, where, name, value, "True or False", f"Say {name}=True or {name}=False")


def check_count(value: object, call: str, where: Origin, name: str) -> int:
    """Return a count as an int.

    Raises:
        TypeError: the value is not a whole number.
        ValueError: the number is less than 1.
    """
    count = as_whole_number(value)
    if count is None or count < 1:
        kind = TypeError if count is None else ValueError
        raise wrong_argument(call, where, name, value, "a whole number, 1 or more,", f"Write {name}=4, say", kind)
    return count


def check_word(call: str, name: str, value: object, words: tuple[str, ...], where: Origin) -> None:
    """Check that an argument is one of some words.

    Raises:
        KernelArgumentError: it is not.
    """
    if not isinstance(value, str) or value not in words:
        listed = " or ".join([repr(word) for word in words])
        text = f"{call} at {describe(where)}: {name} is {format_value(value)}. Write {listed}."
        raise KernelArgumentError(text)


def check_path(path: object, call: str, where: Origin) -> None:
    """Check that an argument is the path of a file.

    Raises:
        TypeError: the value is not a path.
    """
    if not isinstance(path, str | PathLike):
        raise wrong_argument(call, where, "path", path, "the path of a file", 'Write it as a text: "run.json"')


def check_function(f: Any, call: str, where: Origin, name: str = "f") -> None:
    """Check that an argument is a function whose body runs when it is called.

    The argument `f` must also accept one positional argument, if it is a plain Python function.

    Raises:
        TypeError: it is not callable, it is an async or generator function, or `f` does not accept one argument.
    """
    kind = type(f)
    if kind is FunctionType:  # nearly always
        code = f.__code__
        if not code.co_flags & _RUNS_NOTHING:
            if (code.co_argcount != 1 or code.co_kwonlyargcount) and name == "f":
                _check_takes_one(f, call, where)
            return
    elif kind is BuiltinFunctionType or kind is type:
        return
    if not callable(f):
        cure = f"Write .{call}(lambda x: ...)" if name == "f" else f"Write {name}=lambda ...: ..."
        raise wrong_argument(call, where, name, f, "a function", cure)
    gives = suspended_result(f)
    if gives is not None:
        what = f"{name} is {format_value(f)}, whose call gives {gives} and runs nothing"
        raise TypeError(f"{call} at {describe(where)}: {what}. {_how_to_run(gives, call)}.")


def _check_takes_one(f: FunctionType, call: str, where: Origin) -> None:
    """Raise a `TypeError` unless the function accepts exactly one argument, the result of an op."""
    code = f.__code__
    needed = code.co_argcount - len(f.__defaults__ or ())
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if needed <= 1 and all(name in (f.__kwdefaults__ or {}) for name in named):
        if code.co_argcount or code.co_flags & inspect.CO_VARARGS:
            return
        what, cure = "takes no argument", f"Write .{call}(lambda _: f())"
    elif needed > 1:
        what, cure = f"takes {needed} arguments", f"Where that is a tuple, unpack it: .{call}(lambda x: f(*x))"
    else:
        what, cure = "has arguments that are passed by name", f"Pass them: .{call}(lambda x: f(x, ...))"
    raise TypeError(
        f"{call} at {describe(where)}: f, declared at {describe((code, 0))}, {what}, but gets one, the result of the "
        f"op. {cure}."
    )


def suspended_result(f: Any) -> Suspended | None:
    """Return the object that a call of an async or generator function returns, in words; None for other callables.

    Methods, `functools.partial` objects and objects with a `__call__` are resolved to their functions.
    """
    while isinstance(f, partial):
        f = f.func
    if not inspect.isroutine(f) and not isinstance(f, type):
        f = type(f).__call__
    if inspect.isasyncgenfunction(f):
        return "an async generator"
    if inspect.iscoroutinefunction(f):
        return "a coroutine"
    return "a generator" if inspect.isgeneratorfunction(f) else None


def refuse_suspended(made: Any, whose: str, call: str) -> NoReturn:
    """Raise for a function that returned a coroutine or generator, which would never run.

    `made` is the result, of a type in `SUSPENDED`. `whose` names the function and its place.

    Raises:
        TypeError: always.
    """
    if type(made) is CoroutineType:
        made.close()  # else Python warns that it was never awaited
    gives = SUSPENDED[type(made)]
    raise TypeError(f"{whose} gave {gives}, of which nothing has run. {_how_to_run(gives, call)}.")


def _how_to_run(gives: Suspended, call: str) -> str:
    """Return the cure for a function of `call` that returns a coroutine or generator."""
    match gives:
        case "a coroutine":
            return "Run the op, and await f of its result: await f(await op)"
        case "an async generator":
            return "Run the op, and iterate over f of its result: async for x in f(await op)"
        case "a generator" if call == "then":
            return "Return an op from it: with return, not yield"
        case "a generator":
            return f"Run it to its end there: .{call}(lambda x: list(f(x)))"


def refuse_stop_iteration(error: BaseException, whose: str) -> NoReturn:
    """Raise in place of a `StopIteration` of a function of the user's, which would end the coroutine of the run.

    Raises:
        RuntimeError: always; its cause is the error.
    """
    raise RuntimeError(
        f"{whose} raised StopIteration, which a run cannot pass on: Python takes it for the end of an iteration. Catch "
        "it there, or ask for a default: next(iterator, None)."
    ) from error
