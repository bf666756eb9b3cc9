"""Pipelines: functions from inputs to an op, traced and planned once for each combination of shapes and types."""

import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, final, overload

from typing_extensions import TypeVar

from dagpu.common.compiled import READER
from dagpu.common.pickling import PickledByName
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import check_count, check_flag, format_value, suspended_result, wrong_argument
from dagpu.handles.tensors import move_handles
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Pure, Then, Value, pipeline_numbers
from dagpu.runtime.checked_runs import check_call
from dagpu.runtime.loaded_plan import CALL
from dagpu.runtime.plan_lookup import CacheInfo, PlanCache

_P = ParamSpec("_P")
_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


@final
class Pipeline(PickledByName, Generic[_P, _T_co]):
    """A function from inputs to an op, traced once for each combination of shapes and types of its arguments.

    A call returns an ordinary op; the arguments move into it as into a kernel. Its runs use the plan of an earlier run.
    From the second run on, a plan is launched as one CUDA graph if the device has graphs: new addresses and numbers are
    written into the graph's nodes, and nothing is captured again. The caller owns the result of a call: no later call
    writes to it.
    """

    def __init__(
        self, f: Callable[_P, DeviceOp[_T_co, Any, Any]], cache_size: int, graph_from: int | None, check: bool
    ) -> None:
        self.__name__: str = getattr(f, "__name__", repr(f))
        self._moved_by = f"pipeline {self.__name__}()"
        self.__qualname__: str = getattr(f, "__qualname__", self.__name__)
        self.__module__ = getattr(f, "__module__", __name__)
        self.__doc__ = f.__doc__
        self.__wrapped__ = f
        code = getattr(f, "__code__", None)
        self._declared: Origin = None if code is None else (code, 0)
        self.plans = PlanCache(cache_size, graph_from, of_pipeline=True, check=check_call if check else None)
        self._function = Pure(f, next(pipeline_numbers), repr(self), self.plans)
        self._signature, self._counts = _signature_of(f)
        self.facts_of_call = self._counts, self._moved_by, self._function
        """What the compiled reader needs for a call."""

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[_T_co]:
        """Return an op that runs the pipeline on these arguments: handles, NumPy arrays, numbers, sources, and tuples,
        lists and dicts of them.

        Handles that move do so in this call. Each run of the op reads the NumPy arrays and the sources again; the
        function gets a source itself, as it gets any op. Strings, truth values, types, members of enumerations,
        devices, slices, ranges, sets, frozen dataclasses and functions are allowed too: there is a plan for each such
        value, as far as it holds only such values. The attributes of the program's own classes are read in each call:
        they are a part of the value. Ops without functions of the user's and without tensors of their own are allowed
        as well. By any other argument (an object, a module of the program, a closure over an object) no plan can be
        found: each run of such a call calls the function again, and a `RuntimeWarning` reports this once for each
        place.

        Raises:
            TypeError: the function does not take these arguments. No argument has moved then.
            MovedError: a handle among the arguments has been moved.
        """
        try:
            origin = here()
            if kwargs or len(args) not in self._counts:
                self._check(args, kwargs, origin)
            if kwargs:
                held = move_handles((args, tuple(kwargs.items())), self._moved_by, origin)
            else:
                held = move_handles(args, self._moved_by, origin), ()
            return Then(Value(held, origin), self._function, origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    def _check(self, args: tuple[object, ...], kwargs: dict[str, object], origin: Origin) -> None:
        """Raise in the call if the function does not take these arguments: its own error would come in the run."""
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
            f"@pipeline on {owner.__name__}.{name}, declared at {describe(self._declared)}: a pipeline cannot be a "
            "method, because its result must depend on its arguments alone. Decorate a function, or make one for "
            f"each object: self.{name} = pipeline(self._{name}) in __init__."
        )

    def cache_info(self) -> CacheInfo:
        """Return the statistics: runs that found a plan, calls of the function, and the most and present plans."""
        return self.plans.info()

    @property
    def source(self) -> str:
        """The table by which further calls find the plan of the last call, as text. It has a row for each argument:
        what the argument has to be, and where the program uses it. Empty before the second call, and if only the cache
        can tell which plan serves a call."""
        latest = self.plans.latest
        return "" if latest is None else str(latest.direct[CALL].table)

    def cache_clear(self) -> None:
        """Remove all plans from the cache. Runs under way are not affected."""
        self.plans.clear()

    def __repr__(self) -> str:
        return f"<pipeline {self.__name__} at {describe(self._declared)}>"


if READER is not None:  # as `DeviceOp.sync`
    Pipeline.__call__ = READER.call_method(Pipeline, Pipeline.__call__)  # type: ignore[method-assign]  # the same, in C


def _signature_of(f: Callable[..., object]) -> tuple[inspect.Signature | None, range]:
    """Return the signature of a function, or None if Python does not know it, and a range.

    A call with a number of positional arguments in this range, and no others, always fits the signature.
    """
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
def pipeline(f: Callable[_P, DeviceOp[_T, Any, Any]]) -> Pipeline[_P, _T]: ...
@overload
def pipeline(
    *, cache_size: int = ..., graph_from: int | None = ..., check: bool = ...
) -> Callable[[Callable[_P, DeviceOp[_T, Any, Any]]], Pipeline[_P, _T]]: ...
@leaves_run
def pipeline(
    f: Callable[_P, DeviceOp[_T, Any, Any]] | None = None,
    *,
    cache_size: int = 32,
    graph_from: int | None = 2,
    check: bool = False,
) -> Pipeline[_P, _T] | Callable[[Callable[_P, DeviceOp[_T, Any, Any]]], Pipeline[_P, _T]]:
    """Decorate a typed function from inputs to an op, to trace and plan it once for each combination of shapes, types
    and devices of its arguments.

    In the trace the function gets handles, symbolic arrays for NumPy arrays, which have only shape and type, and
    symbolic numbers. A number that is passed to kernels, or as a seed, may differ from call to call; any other use of a
    number (a shape, a branch) makes a plan for that value. Ask for its type with `isinstance(k, float)`: `type(k)` is
    the symbolic type. Other values that it uses (globals, closed-over variables) are read only in the trace, so its
    result must depend on its arguments alone. Closed-over tensors live as long as the function's plans.

    A plan keeps a function for `host_map` only if calls cannot differ in it. Such a function is found under its name in
    a module, or closes over numbers, strings and such functions alone, assigns to no outer variable and has no
    attributes; and all of its mutable arguments are results of the device or of the host. With any other function, each
    run calls `f` again.

    Args:
        f: the function.
        cache_size: the most combinations whose plans are kept, those used last.
        graph_from: the call of one combination, counted from 1, from which on it is launched as one CUDA graph; None
            for never. A plan that contains `host_map` is never launched as a graph.
        check: true to run each call from scratch too, on copies of what it owns or writes, and to compare the results
            bit for bit. A function that reads a global that has changed is found then: each run raises an
            `UpdateError`. Random numbers need a seed. For tests: the function is called in each run, and a call that is
            a part of another op is traced with that.

    Raises:
        TypeError: `f` is not a function.
        ValueError: `cache_size` or `graph_from` is below 1.
    """
    checked = check_flag(check, "pipeline", here(), "check")

    @leaves_run
    def decorate(f: Callable[_P, DeviceOp[_T, Any, Any]]) -> Pipeline[_P, _T]:
        origin = here()
        if not callable(f):
            cure = "Write @pipeline above a def that returns an op"
            raise wrong_argument("pipeline", origin, "f", f, "a function from inputs to an op", cure)
        if (gives := suspended_result(f)) is not None:
            raise TypeError(
                f"pipeline at {describe(origin)}: a call of {format_value(f)} returns {gives}, and an op is wanted. "
                "Write a plain def that returns the op, with no await and no yield."
            )
        count = check_count(cache_size, "pipeline", origin, "cache_size")
        graphs = graph_from if graph_from is None else check_count(graph_from, "pipeline", origin, "graph_from")
        return Pipeline(f, count, graphs, checked)

    return decorate if f is None else decorate(f)
