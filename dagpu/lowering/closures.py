"""Calling the user's functions in a trace, and what that says of later traces."""

from typing import Any, final

from dagpu.critical import call_user
from dagpu.lowering.leaves import Leaves
from dagpu.lowering.program import Items
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall, Inspect, Pure, Then
from dagpu.origin import describe
from dagpu.ownership import handles_in
from dagpu.standins import has_arrays, is_self_contained, without_standins


@final
class Closures:
    """Calls closures, for a trace with these leaves."""

    __slots__ = ("_leaves",)

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves

    def call(self, node: DeviceOp[Any, Any, Any], f: Any, argument: Any) -> Any:
        """Call a closure. An exception keeps its type, and gets a note that says whose closure it was."""
        if not self._leaves.pure:
            self._leaves.forbid()
        try:
            return call_user(f, argument)
        except Exception as error:
            error.add_note(f"dagpu: in {_whose(node, f)} at {describe(node.origin)}")
            raise

    def host_argument(self, node: HostCall[Any], argument: Any) -> Any:
        """What a function of `host_map` gets. It is called in every run of the plan, with this very object."""
        if not self._leaves.pure:
            self._leaves.forbid()
            return argument
        assert self._leaves.inputs is not None
        if not is_self_contained(node.f) or any(True for _ in handles_in(argument)):
            self._leaves.forbid()
        self._leaves.reads.update(self._leaves.inputs.numbers())  # the function may have any of them in its closure
        return self._without_standins(argument)

    def _without_standins(self, argument: Any) -> Any:
        if type(argument) is Items:
            return Items(tuple(map(self._without_standins, argument.items)))
        if has_arrays(argument):
            self._leaves.forbid()
        return without_standins(argument)


def _whose(node: DeviceOp[Any, Any, Any], f: Any) -> str:
    """A closure, in words."""
    if type(f) is Pure:
        return f"pipeline {f.owner!r}, called"
    return f"the closure of .{'then' if isinstance(node, Then) else 'inspect' if isinstance(f, Inspect) else 'map'}"
