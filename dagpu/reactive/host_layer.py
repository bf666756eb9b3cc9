"""The host layer of a feed: what closures compute of host values, as rows that one loop reads.

A row says which bits its value depends on, how its argument is read from the inputs before it, and what is called. Rows
of the same bits follow each other, so one test leaves all of them out.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, final

import numpy as np

from dagpu.common.containers import is_container, own_containers, values_in
from dagpu.common.critical import call_user
from dagpu.common.places import add_note
from dagpu.common.wrong_arguments import refuse_stop_iteration
from dagpu.handles import HANDLES
from dagpu.handles.tensors import make_unwritable
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Cutoff, Inspect, Map
from dagpu.tracing.compare_values import host_values_equal, same_kind
from dagpu.tracing.live_inputs import LiveInput, LiveInputs, Sharing
from dagpu.tracing.user_code import describe_closure
from dagpu.tracing.value_tokens import PLAIN

Mark = Callable[[int], None]
"""Records that the bit of a cutoff is stale."""

_UNCHANGEABLE: Final = PLAIN | {np.ndarray}
"""The types of values that no closure can change: a kept array is read-only."""


class NewTraceNeeded(Exception):
    """An input has a value that the trace does not serve."""


@final
class _Row(NamedTuple):
    """One value that is computed: of a closure, or what a cutoff lets through."""

    made: LiveInput
    argument: LiveInput | None
    """The input that is its argument; None if `read` reads it."""
    read: Callable[[], Any]
    call: Callable[[Any], Any]
    kind: type[Any] | None
    """The type of the value, if it says all that another trace would; else None."""
    cutoff: Cutoff[Any, Any, Any] | None


@final
class HostLayer:
    """The host layer of one trace. The values of inputs that depend on the bits `stale` are not the newest."""

    def __init__(self, live: LiveInputs, stale: int, sharing: Sharing | None = None) -> None:
        """With `sharing`, other feeds may share calls of its closures."""
        self._live = live
        self._sharing = sharing
        self._bits: list[int] = []
        """The bits on which each row depends; those of the value that a cutoff compares."""
        self._rows = [self._row(made) for made in live.inputs if made.call is not None]
        self.computes = bool(self._rows)
        """True if the trace computes host values."""
        self._following = [len(self._rows)] * len(self._rows)
        """For each row the next one with other bits."""
        for at in range(len(self._rows) - 2, -1, -1):
            same = self._bits[at] == self._bits[at + 1]
            self._following[at] = self._following[at + 1] if same else at + 1
        self._at = 0
        """The row that is computed."""
        self._stale = [(0, stale)]
        """The bits on which values depend that are not the newest, from one row to the next that is here: a closure
        that fails leaves the values before it as they are to be."""

    def refresh(self, newer: int, mark: Mark) -> None:
        """Compute again what depends on the bits `newer`, which have changed since the last call, and what that did not
        compute if it failed. `mark` adds the bits of cutoffs whose values differ.

        Raises:
            NewTraceNeeded: a value has another type or shape than in the trace.
        """
        pieces = self._stale = [(start, stale | newer) for start, stale in self._stale]
        ends, marked = [*[start for start, _ in pieces[1:]], len(self._rows)], 0

        def note(bits: int) -> None:
            nonlocal marked
            marked |= bits
            mark(bits)

        for number, ((start, stale), end) in enumerate(zip(pieces, ends, strict=True)):
            try:
                call_user(partial(self._compute, start, end, note), stale | marked)
            except NewTraceNeeded:
                raise
            except Exception as error:
                self._name_closure(error)
                left = [(at, bits | marked) for at, bits in [(self._at, stale), *pieces[number + 1 :]]]
                self._stale = left if not self._at else [(0, 0), *left]
                raise
        self._stale = [(0, 0)]

    def _compute(self, start: int, end: int, mark: Mark, stale: int) -> None:
        """Compute those of these rows again that depend on stale bits."""
        rows, bits, at = self._rows, self._bits, start
        while at < end:
            if not stale & bits[at]:
                at = self._following[at]
                continue
            self._at = at
            made, argument, read, call, kind, cutoff = rows[at]
            value = call(read() if argument is None else argument.value)
            if cutoff is None:
                made.value = value if type(value) is kind else _unlike(made, value)
            elif not host_values_equal(cutoff, made.value, value):
                stale |= made.own
                mark(made.own)
                made.value = _unlike(made, value)
            at += 1

    def _row(self, made: LiveInput) -> _Row:
        """Return the row of an input, and note its bits."""
        self._bits.append(made.bits if made.cutoff is None else made.watched)
        argument = self._input(made.argument)
        items = [self._input(item) for item in made.argument] if type(made.argument) is tuple else []
        flat = [item for item in items if item is not None]
        if type(made.argument) is tuple and len(flat) == len(items):
            read: Callable[[], Any] = partial(_values, flat)
        else:
            read = partial(self._live.concrete, made.argument)
        kind = type(made.value) if type(made.value) in PLAIN else None
        return _Row(made, argument, read, self._call_of(made), kind, made.cutoff)

    def _input(self, item: Any) -> LiveInput | None:
        """Return the input for which a stand-in stands; None for any other object."""
        index = self._live.index_of(item)
        return None if index is None else self._live.inputs[index]

    def _call_of(self, made: LiveInput) -> Callable[[Any], Any]:
        """Return the function that computes a value of its argument."""
        call = made.call
        assert call is not None
        if made.node is None:
            return call
        f: Any = made.node.f
        call = f if type(f) not in BUILT_IN and type(f) is not Inspect else call
        if not self._is_plain(made.argument):
            call = partial(_call_on_own, call)
        last = None if self._sharing is None else self._sharing.last_call(made.node, below_shared=False)
        return call if last is None else partial(last.value, call)

    def _is_plain(self, argument: Any) -> bool:
        """Return true for an argument that holds nothing which a closure could change in place."""
        for item in values_in(argument):
            found = self._live.index_of(item)
            if type(item if found is None else self._live.inputs[found].value) not in _UNCHANGEABLE:
                return False
        return type(argument) is tuple or not is_container(argument)

    def _name_closure(self, error: Exception) -> None:
        """Add the note that names the closure which raised an error."""
        node: Map[Any] | None = self._rows[self._at].made.node
        if node is not None:
            whose = describe_closure(node, node.f)
            if isinstance(error, StopIteration):
                refuse_stop_iteration(error, whose)
            add_note(error, f"dagpu: in {whose}")


def _values(inputs: list[LiveInput]) -> tuple[Any, ...]:
    return tuple([made.value for made in inputs])


def _call_on_own(call: Callable[[Any], Any], argument: Any) -> Any:
    """Call a closure with containers of its own: what it is given is kept for later calls."""
    return call(own_containers(argument))


def _unlike(made: LiveInput, value: Any) -> Any:
    """Return a value of another type than before, or whose type says too little, in the form in which it is kept.

    Raises:
        NewTraceNeeded: the trace does not serve it.
    """
    held = any(type(item) in HANDLES or isinstance(item, DeviceOp) for item in values_in(value))
    if held or not same_kind(made.value, value):
        raise NewTraceNeeded
    return make_unwritable(value)
