"""Pipelines: functions from inputs to an op, traced and planned once for each combination of shapes and types."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any, Final, Generic, ParamSpec, final, overload

from typing_extensions import TypeVar

from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import check_count, shown, suspended_by, wrong_argument
from dagpu.handles.handle_trees import moved_in
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Pure, Then, Value
from dagpu.runtime.plan_cache import CacheInfo, PlanCache

_P = ParamSpec("_P")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_numbers: Final = itertools.count()


@final
class Pipeline(Generic[_P, _T_co]):
    """A function from inputs to an op, traced once for each combination of shapes and types of its arguments.

    `pipeline(...)` gives an op like any other; the arguments move into it as into a kernel. Its runs take the plan that
    an earlier one left, and from the second on they are launched as one CUDA graph where the device has graphs: new
    addresses and numbers are written into the nodes concerned, and nothing is captured again. What a call returns is
    the caller's: no later call writes to it.
    """

    def __init__(self, f: Callable[_P, DeviceOp[_T_co, Any, Any]], cache_size: int, graph_from: int | None) -> None:
        self._f = f
        self.number = next(_numbers)
        """No other pipeline has had it."""
        self.plans = PlanCache(cache_size, graph_from, of_pipeline=True)
        self.__name__: str = getattr(f, "__name__", repr(f))
        self.__qualname__: str = getattr(f, "__qualname__", self.__name__)
        self.__module__ = getattr(f, "__module__", __name__)
        self.__doc__ = f.__doc__
        self.__wrapped__ = f
        code = getattr(f, "__code__", None)
        self._declared: Origin = None if code is None else (code, 0)
        self._signature, self._counts = _signature_of(f)

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[_T_co]:
        """An op that runs it on these arguments: handles, NumPy arrays, numbers, and tuples, lists and dicts of them.

        Handles that move do so now. A NumPy array is read when the op runs, anew in each run. Texts, truth values,
        types, members of enumerations and devices are welcome as well: each makes a plan of its own. By any other
        argument (a set, a dataclass, a function, an op) no plan can be found: the function is called again in each run
        of such a call, which a `RuntimeWarning` says, once for each place.

        Raises:
            TypeError: the function does not take these arguments. None has moved then.
            MovedError: a handle among them has been moved.
        """
        origin = here()
        if kwargs or len(args) not in self._counts:
            self._check(args, kwargs, origin)
        held = moved_in((args, tuple(kwargs.items())), f"pipeline {self.__name__}()", origin)
        return Then(Value(held, origin), Pure(self._f, self), origin)

    def _check(self, args: tuple[object, ...], kwargs: dict[str, object], origin: Origin) -> None:
        """Refuse arguments that the function does not take, where it is called: its own error would come in the run."""
        if self._signature is None:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"pipeline {self.__name__} called at {describe(origin)}: {error}. It is declared at "
                f"{describe(self._declared)}: call {self.__name__}{_without_types(self._signature)}."
            ) from None

    def __set_name__(self, owner: type, name: str) -> None:
        raise TypeError(
            f"@pipeline on {owner.__name__}.{name}, declared at {describe(self._declared)}: a pipeline is no method, "
            "for its result must follow from its arguments. Make it of a function, or for each object: "
            f"self.{name} = pipeline(self._{name}) in __init__."
        )

    def cache_info(self) -> CacheInfo:
        """How many runs found a plan, how many called the function, and how many plans there may be and are."""
        return self.plans.info()

    def cache_clear(self) -> None:
        """Forget all plans; those under way are not touched."""
        self.plans.clear()

    def __reduce_ex__(self, _protocol: object) -> str:
        # As a function's: a copy is itself, and a pickle has the name by which it is found in its module.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<pipeline {self.__name__} at {describe(self._declared)}>"


def _signature_of(f: Callable[..., object]) -> tuple[inspect.Signature | None, range]:
    """The signature of a function, None where Python knows none; and with how many positional arguments alone it can
    be called beyond doubt."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # some functions of C
        return None, range(0)
    positional, needed = 0, 0
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional += 1
            needed += parameter.default is parameter.empty
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            return signature, range(0)
    return signature, range(needed, positional + 1)


def _without_types(signature: inspect.Signature) -> inspect.Signature:
    empty = inspect.Signature.empty
    parameters = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=empty)


@overload
def pipeline(f: Callable[_P, DeviceOp[_T, Any, Any]], /) -> Pipeline[_P, _T]: ...
@overload
def pipeline(
    *, cache_size: int = ..., graph_from: int | None = ...
) -> Callable[[Callable[_P, DeviceOp[_T, Any, Any]]], Pipeline[_P, _T]]: ...
def pipeline(
    f: Callable[_P, DeviceOp[_T, Any, Any]] | None = None, /, *, cache_size: int = 32, graph_from: int | None = 2
) -> Pipeline[_P, _T] | Callable[[Callable[_P, DeviceOp[_T, Any, Any]]], Pipeline[_P, _T]]:
    """Decorate a typed function from inputs to an op: it is traced and planned once for each combination of shapes,
    types and devices of its arguments.

    While it is traced it gets handles, stand-ins for NumPy arrays, which know shape and type alone, and stand-ins for
    numbers. A number that is passed on to kernels, or as a seed, may differ from call to call; whatever else is done
    with one (a shape, a branch) makes a plan for that value. Ask for its type with `isinstance(k, float)`: `type(k)` is
    the stand-in's own. Other things that the function reads (globals, what it closes over) are read in the trace alone:
    let its result follow from its arguments. Tensors that it closes over are kept as long as its plans are.

    A function for `host_map` is kept with the plan where it makes no difference which call made it: one that is found
    under its name in a module, or that closes over numbers, texts and such functions alone, assigns to no variable from
    outside and has no attributes, and gets nothing that can be changed in place but results of the device and of the
    host. With any other, `f` is called in each run.

    Args:
        f: the function.
        cache_size: for how many combinations plans are kept: the latest used.
        graph_from: the call of one combination, counted from 1, from which on it is launched as one CUDA graph; None
            for never. A plan with `host_map` in it, and one that uses several devices, is never a graph.

    Raises:
        TypeError: `f` is no function.
        ValueError: `cache_size` or `graph_from` is below 1.
    """

    def decorate(f: Callable[_P, DeviceOp[_T, Any, Any]]) -> Pipeline[_P, _T]:
        origin = here()
        if not callable(f):
            cure = "Write @pipeline above a def that returns an op"
            raise wrong_argument("pipeline", origin, "f", f, "a function from inputs to an op", cure)
        if (gives := suspended_by(f)) is not None:
            raise TypeError(
                f"pipeline at {describe(origin)}: a call of {shown(f)} gives {gives}, and an op is wanted. Write a "
                "plain def that returns the op, with no await and no yield."
            )
        count = check_count(cache_size, "pipeline", origin, "cache_size")
        return Pipeline(
            f, count, graph_from if graph_from is None else check_count(graph_from, "pipeline", origin, "graph_from")
        )

    return decorate if f is None else decorate(f)
