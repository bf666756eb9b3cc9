"""Calling the user's functions in a trace, and what that says of later traces."""

from typing import Any, final

from dagpu.common.critical import call_user
from dagpu.common.env_vars import MAX_CLOSURES
from dagpu.common.errors import DagpuError
from dagpu.common.origin import describe
from dagpu.common.wrong_arguments import SUSPENDED, refuse_stop_iteration, refuse_suspended
from dagpu.handles.symbolic import without_standins
from dagpu.lowering.arguments.cache_key import is_fixed
from dagpu.lowering.arguments.stateless_functions import is_stateless
from dagpu.lowering.arguments.traced_arguments import TracedArguments
from dagpu.lowering.program import Cell, Items
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall, Inspect, Pure, Then


@final
class Closures:
    """Calls closures, for a trace with these leaves."""

    __slots__ = ("_called", "_leaves", "_limit")

    def __init__(self, leaves: TracedArguments) -> None:
        self._leaves = leaves
        self._called = 0
        self._limit = MAX_CLOSURES.get()

    def call(self, node: DeviceOp[Any, Any, Any], f: Any, argument: Any) -> Any:
        """Call a closure. An exception keeps its type, and gets a note with the owner of the closure.

        Raises:
            DagpuError: the run has called more closures than its limit.
            RuntimeError: the closure has raised `StopIteration`.
            TypeError: the closure returned a coroutine or a generator, which would never run.
        """
        if not self._leaves.pure:
            self._leaves.forbid()
        self._called += 1
        if self._called > self._limit:
            raise self._endless(node, f)
        if type(f) is Pure:
            f.owner.plans.called()
        function = f.f if type(f) is Inspect else f
        try:
            made = call_user(function, argument)
        except StopIteration as error:
            refuse_stop_iteration(error, whose(node, f))
        except Exception as error:
            error.add_note(f"dagpu: in {whose(node, f)}")
            raise
        if type(made) in SUSPENDED:
            refuse_suspended(made, whose(node, f), _call_of(node, f))
        return made if function is f else argument

    def _endless(self, node: DeviceOp[Any, Any, Any], f: Any) -> DagpuError:
        return DagpuError(
            f"{whose(node, f)} would be closure number {self._called:,} of one run, which seems to have no end: each "
            "closure gives an op with a further one. Let the last one return an op without .then; or where there is an "
            f"end, set {MAX_CLOSURES.name}={10 * self._limit}."
        )

    def host_argument(self, node: HostCall[Any], argument: Any) -> Any:
        """The argument of a function of `host_map`. Every run of the plan calls the function with this very object. So
        each run needs a trace, unless the object is immutable and has nothing in it that belongs to one run."""
        if not self._leaves.pure:
            self._leaves.forbid()
            return argument
        assert self._leaves.inputs is not None
        if not is_stateless(node.f):
            self._leaves.forbid()
        self._leaves.reads.update(self._leaves.inputs.numbers())  # the function may have any of them in its closure
        return self._kept(argument)

    def _kept(self, argument: Any) -> Any:
        if type(argument) is Items:
            return Items(tuple(map(self._kept, argument.items)))
        if type(argument) is Cell:
            return argument
        argument = without_standins(argument)
        if not is_fixed(argument):
            self._leaves.forbid()
        return argument


def whose(node: DeviceOp[Any, Any, Any], f: Any) -> str:
    """A closure in words, with its place."""
    called = f"pipeline {f.owner!r}, called" if type(f) is Pure else f"the closure of .{_call_of(node, f)}"
    return f"{called} at {describe(node.origin)}"


def _call_of(node: DeviceOp[Any, Any, Any], f: Any) -> str:
    """The method that was given a closure."""
    return "then" if isinstance(node, Then) else "inspect" if isinstance(f, Inspect) else "map"
