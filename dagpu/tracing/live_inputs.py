"""The inputs of an op that a feed observes: sources, host values that closures compute of them, and cutoffs.

A trace for a feed serves later values of the sources too. So where the op reads a source, the trace gets a stand-in:
a `SymbolicNumber`, a `SymbolicArray`, a shared tensor on memory of its own, or a `LiveValue` for any other value.

An input has *bits*: the set of sources and cutoffs that it depends on, as bits of an int. A source has one bit, and so
has a cutoff, whose value changes less often than what it is computed of. An input that a closure computes (`map` of
host values) has the bits of what the closure was given, and the closure is called again only if one of these changed.
A closure that reads a stand-in otherwise (`then`, a `map` that also gets handles) makes the input *structural*: its
next change needs a new trace.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np

from dagpu.common.containers import map_values, own_containers, values_in
from dagpu.common.errors import NotReadyError
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, describe
from dagpu.handles import HANDLES, HandleState, Holders, SharedTensor, live_state
from dagpu.handles.handle_state import Storage
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, standin_of
from dagpu.handles.tensors import make_unwritable
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Cutoff, Map, Shared
from dagpu.ops.source_op import Source
from dagpu.ops.versions import Snapshot, Version
from dagpu.tracing.compare_values import host_values_equal, same_objects
from dagpu.tracing.program_builder import SharedBuffer
from dagpu.tracing.run_memo import Deferred

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Call: TypeAlias = Callable[[Any], Any]


class Sharing(Protocol):
    """What a trace asks about other feeds."""

    def meet(self, node: AnyOp) -> bool:
        """Observe a node that the trace has found. Return true if another feed observes it too, or may do so."""
        ...

    def last_call(self, node: AnyOp, *, below_shared: bool) -> "LastCall | None":
        """Return the last call of a node's closure by any feed; None if the feeds do not share it. With `below_shared`
        a trace has met it below a `shared()` op that another feed observes too."""
        ...


@final
class LiveValue:
    """The stand-in for a host value that is neither a number nor an array. No closure receives it."""

    __slots__ = ("index", "value")

    def __init__(self, index: int, value: Any) -> None:
        self.index = index
        self.value = value


LetThrough: TypeAlias = Mapping[Cutoff[Any, Any, Any], Any]
"""What cutoffs have let through last."""

NOT_CALLED: Final = object()
"""The value of a closure that was not called with an argument."""

_NO_VALUE: Final = object()
_STANDINS: Final = frozenset((SymbolicNumber, SymbolicArray, LiveValue))


@final
class LastCall:
    """The last argument and value of a closure: of a trace, of an earlier one, or of any feed that calls it. The value
    may be an op, as one without handles of its own never changes."""

    __slots__ = ("last",)

    def __init__(self, argument: Any = None, value: Any = NOT_CALLED) -> None:
        self.last = argument, value
        """The argument, without stand-ins, and the value; `NOT_CALLED` before the first call."""

    def find(self, argument: Any, are_equal: Callable[[object, object], bool] = is_) -> Any:
        """Return the last value, if the argument is the same as then; else `NOT_CALLED`. `are_equal` may know that two
        objects have equal contents."""
        given, value = self.last  # one read: another thread may replace the pair
        return value if value is not NOT_CALLED and same_objects(given, argument, are_equal) else NOT_CALLED

    def put(self, argument: Any, value: Any) -> None:
        """Keep what the closure has returned."""
        self.last = argument, value

    def value(self, call: Call, argument: Any) -> Any:
        """Return what `call`, whose value is to be one of the host, gives for an argument; the last value, if the
        argument is the same."""
        value = self.find(argument)
        if value is NOT_CALLED:
            value = call(argument)
            if not any(type(item) in HANDLES or isinstance(item, DeviceOp) for item in values_in(value)):
                value = make_unwritable(value)
                self.put(argument, value)
        return value


Bound: TypeAlias = Mapping[AnyOp, LastCall]
"""The last call of the closure of each node, as earlier traces have made it."""


@final
class LiveInput:
    """One input: where its value comes from, and its value in the newest update."""

    __slots__ = (
        "argument", "bits", "buffer", "call", "cutoff", "decided", "layout", "node", "origin", "own", "source",
        "storage", "value", "version", "watched",
    )  # fmt: skip

    def __init__(self, own: int, bits: int, value: Any) -> None:
        self.own = own
        """The bit of a source or a cutoff; 0 for a value that a closure computes."""
        self.bits = bits
        """The sources and cutoffs on which the value depends."""
        self.value = value
        """The value: of a tensor, the `SharedTensor`; of a cutoff on the device, what `buffer` held last."""
        self.source: Source[Any] | None = None
        self.version: Version | None = None
        """The version of a source that has the value. A part of a tensor may be written in place, so only this says
        that the contents are the same."""
        self.call: Call | None = None
        """The function that computes the value of `argument`; None for a source, and for a cutoff on the device."""
        self.node: Map[Any] | None = None
        """The op whose closure computes the value."""
        self.argument: Any = None
        """What the function is given, with stand-ins of other inputs in it."""
        self.cutoff: Cutoff[Any, Any, Any] | None = None
        self.watched = 0
        """The bits of the value that a cutoff compares."""
        self.decided = True
        """False for a cutoff on the device until its first value exists."""
        self.buffer: int | None = None
        """The buffer whose contents a cutoff on the device compares."""
        self.storage: Storage | None = None
        """The memory by which the trace refers to a tensor."""
        self.layout: Layout | None = None
        """The layout of a tensor."""
        self.origin: Origin = None
        """The place in the user's code that made a tensor."""


@final
class LiveInputs:
    """The inputs of one trace, in the order in which it found them."""

    def __init__(self, snapshot: Snapshot, reads: set[int], before: "LetThrough | None" = None) -> None:
        self._snapshot: Snapshot | None = snapshot
        self.reads = reads
        """The indices of the structural inputs. The set also identifies the trace to its stand-ins."""
        self.inputs: list[LiveInput] = []
        self.bit_names: list[Source[Any] | Cutoff[Any, Any, Any]] = []
        """The source or cutoff of each bit."""
        self.storages: dict[Storage, int] = {}
        """The memory by which the trace refers to tensors, each with the index of its input."""
        self.shared: list[SharedBuffer] = []
        """The `shared()` nodes whose tensors the stage that is traced makes of sources."""
        self.constants: set[Storage] = set()
        """The memory of `shared()` nodes that depend on nothing, and that were made before the trace."""
        self.open: dict[Shared[Any], None] = {}
        """The `shared()` nodes that are evaluated and that another feed observes too, or may do so."""
        self.met: set[AnyOp] = set()
        """All `shared()` nodes that the trace has evaluated."""
        self.sharing: Sharing | None = None
        """What other feeds observe too; None for a trace that shares nothing, and after the trace."""
        self._standins: dict[object, Any] = {}
        self.bound_before: Bound = MappingProxyType({})
        """What closures have returned in earlier traces."""
        self.are_equal: Callable[[object, object], bool] = is_
        """Returns true for two objects whose contents are known to be equal; one may be of an earlier trace."""
        self._calls: dict[AnyOp, tuple[Any, LastCall]] = {}
        """The last call of each closure, with what it was given, stand-ins included."""
        self._built: list[tuple[LastCall, AnyOp]] = []
        """The nodes whose closures have built ops that other feeds may not have yet, with their shared calls."""
        self._before = before or {}

    @property
    def snapshot(self) -> Snapshot:
        """The instant at which the trace reads sources."""
        assert self._snapshot is not None, "the trace is over"
        return self._snapshot

    def sources(self) -> tuple[Source[Any], ...]:
        """Return the sources that the trace has read."""
        return tuple([made.source for made in self.inputs if made.source is not None])

    def end_trace(self) -> None:
        """Let the versions of the snapshot go, and what is known of earlier traces: the trace is over."""
        self._snapshot, self.bound_before, self.are_equal, self.sharing = None, MappingProxyType({}), is_, None
        self.constants.clear()

    def cutoff_values(self) -> LetThrough:
        """Return the values of the cutoffs, with which a later trace compares its own."""
        return {made.cutoff: made.value for made in self.inputs if made.cutoff is not None and made.decided}

    # ---- calls of closures

    def bound_value(self, node: AnyOp, argument: Any) -> Any:
        """Return what the closure of a node has returned for this argument last, in an earlier trace, or for another
        feed; `NOT_CALLED` if it was not called with it."""
        own, before = self._calls.get(node, (None, None))[1], self.bound_before.get(node)
        for last in (own, before, self._shared_call(node)):
            value = NOT_CALLED if last is None else last.find(argument, self.are_equal)
            if value is not NOT_CALLED:
                return value
        return NOT_CALLED

    def _shared_call(self, node: AnyOp) -> LastCall | None:
        return None if self.sharing is None else self.sharing.last_call(node, below_shared=bool(self.open))

    def called(self) -> set[AnyOp]:
        """Return the nodes whose closures were called, or whose values were found."""
        return set(self._calls)

    def bind(self, node: AnyOp, argument: Any, concrete: Any, value: Any) -> None:
        """Record what a closure has returned. `concrete` is its argument without stand-ins."""
        self._calls[node] = argument, LastCall(concrete, value)
        last = self._shared_call(node)
        if last is not None:
            if isinstance(value, DeviceOp):
                self._built.append((last, node))
            else:
                last.put(concrete, value)

    def share_built(self) -> None:
        """Let other feeds have the ops that closures have built: those that hold no stand-in which serves later values,
        as in `bound`."""
        built, self._built = self._built, []
        for last, node in built:
            argument, own = self._calls[node]
            if self.reads.issuperset(self._indices_in(argument)):
                last.put(*own.last)
            else:
                self._built.append((last, node))

    def bound(self, stale: int, *, in_each_update: bool = False) -> dict[AnyOp, LastCall]:
        """Return the last call of each closure, for a later trace. The bits `stale` have changed since the values of
        the inputs were computed. Traces that come `in_each_update` lose nothing by what is structural: a constant of
        it has its bits, so what is kept stays the same.

        An op that a closure has returned may hold a stand-in of what the closure was given, which is a constant in a
        later trace. So what the closure was given must be structural: it is already, or that trace makes it so. As a
        constant an array has the same contents; a number would be another argument of a kernel, which then runs again.
        """
        found = {
            node: last
            for node, (argument, last) in self._calls.items()
            if not isinstance(last.last[1], DeviceOp)
            or all(
                index in self.reads or (in_each_update and type(self.inputs[index].value) is np.ndarray)
                for index in self._indices_in(argument)
            )
        }
        for made in self.inputs:
            if made.node is not None and not made.bits & stale:
                found[made.node] = LastCall(self.concrete(made.argument), made.value)
        return found

    # ---- the trace

    def of_source(self, node: Source[Any]) -> Any:
        """Return the stand-in for the value of a source."""
        found = self._standins.get(node)
        if found is not None:
            return self._again(found)
        version = node.cell.history.at(self.snapshot)
        made = self._new_bit(node, version.value)
        made.source, made.version = node, version
        return self._keep(node, self._stand_in(len(self.inputs) - 1))

    def of_cutoff(self, node: Cutoff[Any, Any, Any], value: Any, buffer_of: Callable[[Any], int]) -> Any:
        """Return the stand-in for the value of a cutoff. `buffer_of` returns the buffer of a tensor's memory.

        Raises:
            NotReadyError: the value is a tensor, and the cutoff has an `equal` for values of the host.
        """
        found = self._standins.get(node)
        if found is not None:
            return self._again(found)
        before = self._before.get(node, _NO_VALUE)
        if type(value) is SharedTensor:
            if node.equal is not None:
                raise NotReadyError(
                    f"cutoff at {describe(node.origin)} got `equal` for {value!r}: equal compares values of the host, "
                    "and the contents of a tensor are on its device, where their bits are compared. Leave equal out, "
                    "or bring the result to the host: cutoff(op.to_host(), equal)."
                )
            made = self._new_bit(node, value)
            made.buffer, made.decided = buffer_of(value), False
        elif self.derivable(value):
            new = self.concrete(value)
            kept = before is not _NO_VALUE and host_values_equal(node, before, new)
            made = self._new_bit(node, before if kept else new)
            made.call, made.argument, made.watched = _same, value, self.bits_in(value)
        else:
            return self._keep(node, value)
        made.cutoff = node
        standin = self._keep(node, self._stand_in(len(self.inputs) - 1))
        if not made.decided:
            made.value = None if before is _NO_VALUE else before
        return standin

    def derivable(self, value: Any) -> bool:
        """Return true for a value that consists of host values alone, with a live one among them."""
        kinds = set(map(type, values_in(value)))
        return not _STANDINS.isdisjoint(kinds) and HANDLES.isdisjoint(kinds) and Deferred not in kinds

    def derive(self, node: Map[Any], call: Call, argument: Any, value: Any) -> Any:
        """Return the stand-in for `value`, which is what `call(argument)` has returned for the concrete argument.

        A value that holds handles or ops has none: what it was computed of is structural then.
        """
        if any(type(item) in HANDLES or isinstance(item, DeviceOp) for item in values_in(value)):
            self.read(argument)
            return value
        made = LiveInput(0, self.bits_in(argument), make_unwritable(value))
        made.node, made.call, made.argument = node, call, argument
        self.inputs.append(made)
        self.bind(node, argument, self.concrete(argument), made.value)
        return self._stand_in(len(self.inputs) - 1)

    def concrete(self, value: Any) -> Any:
        """Return a value with the present values in place of stand-ins. It reads nothing."""
        return map_values(self._value_of, value, _STANDINS)

    def read(self, value: Any) -> Any:
        """Return a value with the present values in place of stand-ins, which become structural."""
        self.reads.update(self._indices_in(value))
        return self.concrete(value)

    def read_opaque(self, value: Any) -> Any:
        """Return a value with the present values in place of stand-ins that no closure may see."""
        return map_values(self.read, value, _OPAQUE)

    def bits_in(self, value: Any) -> int:
        """Return the bits of all inputs in a value."""
        bits = 0
        for index in self._indices_in(value):
            bits |= self.inputs[index].bits
        return bits

    def index_of(self, item: Any) -> int | None:
        """Return the index of the input that a stand-in stands for; None for any other object."""
        if type(item) is LiveValue:
            return item.index
        if type(item) is SymbolicNumber or type(item) is SymbolicArray:
            return item.index_in(self.reads)
        return None

    def known_bits(self) -> int:
        """Return the bits of all sources and cutoffs that the trace has found so far."""
        return (1 << len(self.bit_names)) - 1

    def structural_bits(self) -> int:
        """Return the bits whose change needs a new trace."""
        bits = 0
        for index in self.reads:
            bits |= self.inputs[index].bits
        return bits

    def structural_bits_of(self, array: object) -> int:
        """Return the bits of the structural inputs that have this array, which is a constant of the trace."""
        bits = 0
        for index in self.reads:
            if self.inputs[index].value is array:
                bits |= self.inputs[index].bits
        return bits

    def _indices_in(self, value: Any) -> Iterator[int]:
        for item in values_in(value):
            index = self.index_of(item)
            if index is not None:
                yield index

    def _value_of(self, standin: Any) -> Any:
        index = self.index_of(standin)
        if index is not None:
            return own_containers(self.inputs[index].value)
        return standin.number if type(standin) is SymbolicNumber else standin.source  # left over from another trace

    def _new_bit(self, node: Any, value: Any) -> LiveInput:
        bit = 1 << len(self.bit_names)
        self.bit_names.append(node)
        made = LiveInput(bit, bit, value)
        self.inputs.append(made)
        return made

    def _stand_in(self, index: int) -> Any:
        """Return the stand-in for an input."""
        made = self.inputs[index]
        value = made.value
        kind = type(value)
        if kind is int or kind is float or kind is np.ndarray:
            return standin_of(index, value, self.reads)
        if kind is SharedTensor:
            state = live_state(value)
            # Memory of its own, so that two sources that hold one tensor stay two inputs. The source holds it too: no
            # closure can become its owner.
            made.storage = Storage(state.storage.device, state.storage.nbytes, memory=_NO_VALUE)
            made.layout, made.origin = state.layout, state.origin
            self.storages[made.storage] = index
            return SharedTensor(
                HandleState(
                    SharedTensor, made.storage, state.layout, state.origin, holders=Holders(held_elsewhere=True)
                )
            )
        return LiveValue(index, value)

    def _keep(self, node: object, standin: Any) -> Any:
        self._standins[node] = standin
        return self._again(standin)

    def _again(self, standin: Any) -> Any:
        return standin.clone() if type(standin) is SharedTensor else standin


_OPAQUE: Final = frozenset((LiveValue,))


def _same(value: Any) -> Any:
    """Return the value: the function of a cutoff of host values."""
    return value
