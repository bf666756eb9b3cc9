"""The text of a direct call: a function that makes one more run with a plan, written out for this plan.

A direct call compares its inputs with those of an earlier run, locks and moves them, submits, and builds the result, in
straight-line code. Each part writes its own lines: the guards of arguments (dagpu.lowering.arguments.call_guard), the
other inputs and the result of a program (dagpu.lowering.reuse). dagpu.runtime.calls.direct_call puts them together.

The text depends on the structure of the plan alone. Layouts, devices and all other objects are constants, which the
function closes over. So plans of one structure share one text.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

from dagpu.common.errors import KernelArgumentError
from dagpu.handles import HANDLES, HandleState, Partition
from dagpu.handles.storage import Lock, Storage, no_graph
from dagpu.kernels.declaration import ScalarCheck
from dagpu.ops.base import DeviceOp

MISS: Final = object()
"""Returned for a call that a direct call refuses. The call has had no effect; the general way runs it."""

_KNOWN: Final = frozenset((HandleState, Storage))
"""The classes beside handles that have their own names in a text."""

_FEW: Final = 3
"""The most memories that are compared in pairs. For more, a set of them is quicker."""


class HandleNames(NamedTuple):
    """The names by which the text refers to one handle."""

    value: str
    """The handle."""
    state: str
    """Its state, as the guard has read it."""
    storage: str
    kind: type[Any]
    """The class of the handle."""
    layout: object
    """The layout that the guard requires."""
    alias: int
    """The number of its memory among the memories of the call, in order of appearance."""


@final
class CallText:
    """The text of one direct call while it is written: the lines of its guards, and the names that they bind."""

    __slots__ = ("_distinct", "arrays", "cells", "constants", "handles", "leaves", "lines", "locks", "taken")

    def __init__(self) -> None:
        self.lines: list[str] = []
        """The lines of the guards, without indentation. A line that refuses returns `MISS`."""
        self.constants: dict[str, object] = {
            "KernelArgumentError": KernelArgumentError,
            "MISS": MISS,
            "NO_GRAPH": no_graph,
        }
        """The objects that the function closes over, by their names in the text."""
        self.leaves: list[str] = []
        """The name of each leaf."""
        self.handles: dict[int, HandleNames] = {}
        """The names of those leaves that are handles, by their indices."""
        self.cells: dict[int, str] = {}
        """For each buffer that the call binds, the name of its memory or value."""
        self.taken: dict[int, str] = {}
        """For each leaf that moves into the run, by its index, an expression that makes the handle of the run."""
        self.locks: list[tuple[str, bool]] = []
        """The name of each lock that the call takes, and true for an exclusive one."""
        self.arrays: list[str] = []
        """The names of those leaves that are arrays."""
        self._distinct: list[str] = []
        """The names of the memories of the handles so far, each memory once."""

    def constant(self, name: str, value: object) -> str:
        """Return the name of a constant in the text. `name` is the kind of the constant, in capital letters."""
        full = f"{name}_{len(self.constants)}"
        self.constants[full] = value
        return full

    def class_name(self, kind: type[Any]) -> str:
        """Return the name of a class in the text."""
        if kind in HANDLES or kind in _KNOWN or issubclass(kind, DeviceOp):
            self.constants[kind.__name__] = kind
            return kind.__name__
        return self.constant("KIND", kind)

    def function_name(self, function: Callable[..., object]) -> str:
        """Return the name of a function of dagpu in the text."""
        name = function.__name__.strip("_").upper()
        self.constants[name] = function
        return name

    def refuse_if(self, condition: str) -> None:
        """Write a line that refuses the call if this condition is true."""
        self.lines.append(f"if {condition}: return MISS")

    def new_name(self, letter: str) -> str:
        """Return a name for a variable that no other line binds."""
        return f"{letter}{len(self.lines)}"

    def add_leaf(self, value: str) -> int:
        """Add a leaf by its name, and return its index."""
        self.leaves.append(value)
        return len(self.leaves) - 1

    def read_handle(self, value: str, *, borrows: bool, buffer: int, lock: bool | None, reads: bool) -> tuple[str, str]:
        """Write the lines that read the state and the memory of a handle, and refuse one that is gone. Return the names
        of its state and storage.

        Args:
            value: the name of the handle.
            borrows: true if the handle may have a lender.
            buffer: the buffer of its memory; -1 if the program does not use it.
            lock: true to lock the memory for writing, false for reading, None not to lock it.
            reads: true if the memory must exist, although no buffer is bound to it.
        """
        state, storage, memory, lock_name = (self.new_name(letter) for letter in "tsml")
        self.lines.append(f"{state} = {value}._state")
        void = f" or ({state}.lender is not None and {state}.lender._state is None)" if borrows else ""
        self.refuse_if(f"{state} is None{void}")
        self.lines.append(f"{storage} = {state}.storage")
        if buffer >= 0 or reads:
            self.lines.append(f"{memory} = {storage}.memory")
            self.refuse_if(f"{memory} is None")
        if buffer >= 0:
            self.cells[buffer] = memory
        if lock is not None:
            self.lines.append(f"{lock_name} = {storage}.lock")
            self.locks.append((lock_name, lock))
        return state, storage

    def bind_number(self, cell: int, value: str, check: Callable[[float], object]) -> None:
        """Write the lines that bind the number with this name to a cell, and refuse one that does not fit."""
        self.cells[cell] = self.check_number(value, check)

    def check_number(self, value: str, check: Callable[[float], object]) -> str:
        """Write the lines that refuse a number that does not fit, and return the name of what `check` gives."""
        number = self.new_name("n")
        checked = [
            "try:", f"    {number} = {self.constant('CHECK', check)}({value})", "except KernelArgumentError:",
            "    return MISS",
        ]  # fmt: skip
        if isinstance(check, ScalarCheck):  # nearly all numbers need no call
            condition = f"if not ({check.fits(number)}):"
            checked = [f"{number} = {value}", condition, *[f"    {line}" for line in checked]]
        self.lines += checked
        return number

    def add_lock(self, lock: Lock) -> None:
        """Let the call take a lock for reading."""
        self.locks.append((self.constant("LOCK", lock), False))

    def add_memory(self, storage: str, alias: int) -> None:
        """Add the memory of a handle. `alias` is its number among the memories of the call, in order of appearance."""
        if alias < len(self._distinct):
            self.refuse_if(f"{storage} is not {self._distinct[alias]}")
        else:
            self._distinct.append(storage)

    def refuse_aliases(self) -> None:
        """Write the lines that refuse a call in which two memories are one that were two in the earlier call."""
        self.refuse_same(self._distinct)

    def refuse_same(self, names: Sequence[str]) -> None:
        """Write the lines that refuse a call in which two of the objects with these names are one."""
        if len(names) > _FEW:
            self.refuse_if(f"len({{{', '.join(names)}}}) != {len(names)}")
        elif len(names) > 1:
            pairs = [f"{one} is {other}" for at, one in enumerate(names) for other in names[:at]]
            self.refuse_if(" or ".join(pairs))

    def take_leaf(self, index: int) -> None:
        """Let a leaf, which is a handle, move into the run."""
        names = self.handles[index]
        cut = f", {names.value}._cut" if names.kind is Partition else ""
        self.taken[index] = f"{self.class_name(names.kind)}({names.state}{cut})"

    def leaf_in_run(self, index: int) -> str:
        """Return the expression of a leaf once those that move have moved into the run."""
        return self.taken.get(index, self.leaves[index])

    def refuse_memory_in(self, others: str) -> None:
        """Write a line that refuses a call one of whose handles has memory in the set `others`."""
        if self._distinct:
            self.refuse_if(f"not {others}.isdisjoint(({', '.join(self._distinct)},))")
