"""Calls of the user's functions in a trace, and the record of whether later runs may skip the trace."""

from dataclasses import dataclass
from typing import Any, Final, final

from dagpu.common.critical import call_user
from dagpu.common.env_vars import MAX_CLOSURES
from dagpu.common.errors import DagpuError
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import SUSPENDED, refuse_stop_iteration, refuse_suspended
from dagpu.handles.symbolic import read_standins
from dagpu.ops.base import DeviceOp, has_op, refuse_op
from dagpu.ops.compose import BUILT_IN, HostCall, Inspect, Map, Pure, Then
from dagpu.plans.program import Cell, Items
from dagpu.tracing.traced_arguments import TracedArguments
from dagpu.tracing.value_tokens import is_fixed


@final
@dataclass(slots=True, eq=False)
class Closures:
    """Calls closures in the trace of an op with these leaves."""

    _leaves: TracedArguments
    _called: int = 0
    _limit: int = 0
    """The most closures that the run may call; known from the first call on."""

    def call(self, node: DeviceOp[Any, Any, Any], f: Any, argument: Any) -> Any:
        """Call a closure. An exception keeps its type, and gets a note that names the closure.

        Raises:
            DagpuError: the run has called more closures than its limit.
            RuntimeError: the closure has raised `StopIteration`.
            TypeError: the closure returned a coroutine or a generator, which would never run.
        """
        if not self._leaves.pure:
            self._leaves.forbid_reuse()
        if not self._called:
            self._limit = MAX_CLOSURES.get()
        self._called += 1
        if self._called > self._limit:
            raise self._endless_error(node, f)
        if type(f) is Pure:
            f.plans.called()
        return call_closure(node, f, argument)

    def _endless_error(self, node: DeviceOp[Any, Any, Any], f: Any) -> DagpuError:
        """Return the error for a run that has called more closures than its limit."""
        return DagpuError(
            f"{describe_closure(node, f)} would be closure number {self._called:,} of one run, which seems to have no "
            "end: each closure returns an op with a further one. Let the last one return an op without .then; or where "
            f"there is an end, set {MAX_CLOSURES.name}={10 * self._limit}."
        )

    def host_argument(self, node: HostCall[Any], argument: Any) -> Any:
        """Return the argument for a function of `host_map`. Every run of the plan passes this same object. So each run
        needs a trace, unless the object is immutable and contains nothing that belongs to one run."""
        if not self._leaves.pure:
            self._leaves.forbid_reuse()
            return argument
        if not self._leaves.keep_function(node.f):
            self._leaves.forbid_reuse(f"the function of .host_map at {describe(node.origin)} {MAY_DIFFER}")
        return self._checked_argument(node, argument)

    def _checked_argument(self, node: HostCall[Any], argument: Any) -> Any:
        """Return the argument without stand-ins, for whose numbers alone the plan holds then. If the argument can be
        changed in place, record that each run needs a trace."""
        if type(argument) is Items:
            return Items(tuple([self._checked_argument(node, item) for item in argument.items]))
        if type(argument) is Cell:
            return argument
        argument = read_standins(argument)
        if not is_fixed(argument):
            self._leaves.forbid_reuse(
                f"the function of .host_map at {describe(node.origin)} gets a {type(argument).__name__}, and may "
                "change it in place. Give it results of ops, numbers and texts, and tuples of these"
            )
        return argument


MAY_DIFFER: Final = (
    "may differ from call to call: it closes over an object, has attributes, or is not found under its name in a "
    "module. Define it at the top level of a module, and give it what it reads as its argument"
)
"""Why no plan keeps a function that is not stateless, and the cure."""


def call_closure(node: DeviceOp[Any, Any, Any], f: Any, argument: Any) -> Any:
    """Call a closure of a node. An exception keeps its type, and gets a note that names the closure.

    Raises:
        RuntimeError: the closure has raised `StopIteration`.
        TypeError: the closure returned a coroutine or a generator, which would never run.
    """
    function = user_function(f)
    try:
        result = call_user(function, argument)
    except StopIteration as error:
        refuse_stop_iteration(error, describe_closure(node, f))
    except Exception as error:
        error.add_note(f"dagpu: in {describe_closure(node, f)}")
        raise
    if type(result) in SUSPENDED:
        refuse_suspended(result, describe_closure(node, f), _method_name(node, f))
    return result if function is f else argument


def reads_array(where: Origin) -> str:
    """Return why no plan is kept of a trace whose program may depend on the contents of an array, and the cure."""
    return f"the op at {describe(where)} is given an array of the host. Copy it to the device first, with from_host(x)"


def user_function(f: Any) -> Any:
    """Return the function of the user's in the function of a node."""
    return f.f if type(f) is Inspect else f


def apply_map(node: Map[Any], argument: Any) -> Any:
    """Apply the function of a `Map` to host values. An exception keeps its type, and gets a note that names the place.

    Raises:
        TypeError: the function returned an op, or a value that contains one.
    """
    f: Any = node.f
    if type(f) in BUILT_IN:
        try:
            return f.apply(argument, node.origin)
        except Exception as error:
            error.add_note(f"dagpu: in {node!r}")
            raise
    made = call_closure(node, f, argument)
    if has_op(made):
        refuse_op(made, describe_closure(node, f))
    return made


def not_an_op_error(node: Then[Any], result: object) -> TypeError:
    """Return the error for a function of `then` or of a pipeline whose result is not an op."""
    cure = "Return an op (value(x) makes one of a value)" + ("" if type(node.f) is Pure else ", or use .map")
    return TypeError(
        f"{describe_closure(node, node.f)} returned {result.__class__.__name__}, which is not an op. {cure}."
    )


def describe_closure(node: DeviceOp[Any, Any, Any], f: Any) -> str:
    """Return a description of a closure with the place of its op."""
    called = f"pipeline {f!r}, called" if type(f) is Pure else f"the closure of .{_method_name(node, f)}"
    return f"{called} at {describe(node.origin)}"


def _method_name(node: DeviceOp[Any, Any, Any], f: Any) -> str:
    """Return the name of the method that received a closure."""
    return "then" if isinstance(node, Then) else "inspect" if isinstance(f, Inspect) else "map"
