"""Checks of the arguments of flows, at the call and before anything runs."""

import inspect
import math
import sys
from typing import Any

from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import check_function, is_real_number, wrong_argument


def check_seconds(
    value: Any,
    call: str,
    where: Origin,
    name: str,
    what: str = "seconds",
    *,
    zero: bool = False,
    endless: bool = False,
) -> float:
    """Return a time or a rate as a float: above 0, or 0 too with `zero`; finite, or infinite too with `endless`.

    Raises:
        TypeError: the value is not a number.
        ValueError: the number is out of range.
    """
    number = float(value) if is_real_number(value) else None
    limit = math.inf if endless else sys.float_info.max
    if number is None or not 0 <= number <= limit or (number == 0 and not zero):
        kind = TypeError if number is None else ValueError
        wanted = f"a number of {what}, {'0 or more' if zero else 'above 0'},"
        raise wrong_argument(call, where, name, value, wanted, "Write 0.01, say", kind)
    return number


def check_quantile(value: Any, where: Origin) -> float:
    """Return the argument of `Stats.latency` as a float.

    Raises:
        TypeError: the value is not a number.
        ValueError: the number is not from 0 to 1.
    """
    if is_real_number(value) and 0 <= value <= 1:
        return float(value)
    kind = ValueError if is_real_number(value) else TypeError
    cure = "Write 0.99 for the time that one value in a hundred exceeds"
    raise wrong_argument("latency", where, "quantile", value, "a number from 0 to 1", cure, kind)


def check_step(f: Any, where: Origin) -> None:
    """Check that the argument of `fold` is a function of a state and a value, whose body runs when it is called.

    Raises:
        TypeError: it is not callable, it is an async or generator function, or it cannot be called with two arguments.
    """
    check_function(f, "fold", where, "step")
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # a function of C without a signature
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(
            f"fold at {describe(where)}: step cannot be called with two arguments, the state and a value. Write "
            ".fold(state, lambda state, x: ...)."
        ) from None


def check_target(target: object, where: Origin) -> None:
    """Check that the argument of `into` has a method `set`.

    Raises:
        TypeError: it has none.
    """
    if isinstance(target, type) or not callable(getattr(target, "set", None)):
        cure = "Pass a source, or an object with a method set(x)"
        raise wrong_argument("into", where, "target", target, "a source", cure)
