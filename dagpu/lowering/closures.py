"""Calling the user's functions in a trace, and what that says of later traces."""

from typing import Any, final

from dagpu.critical import call_user
from dagpu.lowering.leaves import Leaves
from dagpu.lowering.program import Cell, Items
from dagpu.lowering.stateless import is_stateless
from dagpu.lowering.structure import is_fixed
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall, Inspect, Pure, Then
from dagpu.origin import describe
from dagpu.standins import without_standins


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
        if type(f) is Pure:
            f.owner.plans.called()
        try:
            return call_user(f, argument)
        except Exception as error:
            error.add_note(f"dagpu: in {_whose(node, f)} at {describe(node.origin)}")
            raise

    def host_argument(self, node: HostCall[Any], argument: Any) -> Any:
        """What a function of `host_map` gets. It is called in every run of the plan, with this very object: so another
        trace is needed unless nobody can change that, and nothing in it is a run's own."""
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


def _whose(node: DeviceOp[Any, Any, Any], f: Any) -> str:
    """A closure, in words."""
    if type(f) is Pure:
        return f"pipeline {f.owner!r}, called"
    return f"the closure of .{'then' if isinstance(node, Then) else 'inspect' if isinstance(f, Inspect) else 'map'}"
