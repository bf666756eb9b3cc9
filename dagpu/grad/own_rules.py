"""`gradient_of`: derivatives that a user declares, of kernels, foreign ops, expressions and functions of ops."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, cast, final

from dagpu.common.errors import GradientError
from dagpu.common.places import describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.grad.record import filled, placed_of
from dagpu.grad.reverse import OWN_RULES, owner_of_rule
from dagpu.kernels.decorator import Kernel
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Then, Zip
from dagpu.ops.recording import RECORDER

_P = ParamSpec("_P")


@final
class Rule(Generic[_P]):
    """The derivative of a kernel, an expression, a foreign op or a function of ops.

    A kernel, an expression or a foreign op is called as ever, and has the rule from then on. A function of ops is
    called by way of its rule: `rule(x, w)` is `f(x, w)` with that derivative.
    """

    def __init__(self, f: Callable[_P, Any], rule: Callable[..., Any]) -> None:
        self._function = f
        self.rule = rule
        self.__name__ = getattr(f, "__name__", type(f).__name__)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[Any, Any]:
        """Return the op of the function."""
        recorder = RECORDER.get()
        if recorder is None or not inspect.isfunction(self._function):  # a kernel tells the recorder itself
            return cast("DeviceOp[Any, Any]", self._function(*args, **kwargs))
        build = _with_handles(self._function, args, kwargs)
        return cast("DeviceOp[Any, Any]", recorder.call(self, build, args, kwargs))

    def __repr__(self) -> str:
        return f"<gradient of {self.__name__}>"


def _with_handles(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return the function that is called with ops in place of all tensors, and calls `function` in the trace with
    handles where these arguments have some: it may read each of them more than once."""
    origin = here()

    @wraps(function)
    def build(*given: Any, **named: Any) -> DeviceOp[Any, Any, Any]:
        tensors, ops = list[Any](), list[Any]()
        placed_of((args, kwargs), tensors)
        placed = placed_of((given, named), ops)
        handles = [number for number, each in enumerate(tensors) if not isinstance(each, DeviceOp)]

        def call(values: tuple[Any, ...]) -> Any:
            parts = list(ops)
            for number, value in zip(handles, values, strict=True):
                parts[number] = value
            return function(*filled(placed[0], parts), **filled(placed[1], parts))

        if not handles:
            return cast("DeviceOp[Any, Any, Any]", call(()))
        return Then(Zip(tuple([ops[number] for number in handles]), origin), call, origin)

    return build


@leaves_run
def gradient_of(
    f: Callable[_P, Any], /
) -> Callable[[Callable[..., DeviceOp[Any, Any, Any] | tuple[Any, ...]]], Rule[_P]]:
    """Declare the derivative of a kernel's `new`, a `@foreign` op, an expression or a function of ops::

        @gradient_of(cube.new)
        def _(g, y, x):  # y = x ** 3
            return slope(g, x)

    The decorated function is called while the pass back is built, with the gradient of the result, the result, and the
    arguments of the call, as shared tensors and numbers. It returns the op of the gradients: of one argument its
    gradient, of several a tuple, or a tuple of ops, with None for an argument without one. What its ops do not read is
    not kept.

    Raises:
        GradientError: `f` has a rule already, or is nothing that can have one.
    """
    origin = here()
    declared = _declares(f)
    key = owner_of_rule(declared)
    if not callable(f):
        raise GradientError(
            f"gradient_of at {describe(origin)} is applied to {format_value(f)}. Apply it to kernel.new, a foreign op, "
            "an expression, or a function that builds an op."
        )

    @leaves_run
    def declare(rule: Callable[..., DeviceOp[Any, Any, Any] | tuple[Any, ...]]) -> Rule[_P]:
        if not callable(rule):
            raise GradientError(
                f"gradient_of at {describe(origin)}: the rule is {format_value(rule)}. Decorate a function: "
                "def _(g, y, *arguments)."
            )
        if key in OWN_RULES:
            raise GradientError(
                f"gradient_of at {describe(origin)}: {declared!r} has a rule already. Keep one of them."
            )
        made = Rule(f, rule)
        OWN_RULES[made if inspect.isfunction(f) else key] = rule
        return made

    return declare


def _declares(f: Any) -> Any:
    """Return what a call of `f` is recorded as: of `kernel.new` the kernel."""
    owner = getattr(f, "__self__", None)
    return owner if isinstance(owner, Kernel) else f
