"""How one run reads sources, and on which of them its values depend.

A plain run reads the values of one snapshot, a run for a feed gets stand-ins for them. `Reads` has the sources and
cutoffs on which the values of one run depend, as its DAG says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, final

from dagpu.common.containers import own_containers, values_in
from dagpu.common.errors import NotReadyError
from dagpu.handles import HANDLES, live_state
from dagpu.handles.tensors import handles_in, make_unwritable
from dagpu.ops.base import DeviceOp, has_op, refuse_op
from dagpu.ops.compose import (
    BUILT_IN,
    Cutoff,
    HostCall,
    Inspect,
    Launch,
    Map,
    Shared,
    Then,
    Unzip,
    Value,
    Zip,
    nodes_of,
    sources_of,
)
from dagpu.ops.creation import Copy
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.single_flight import NOTHING, Once
from dagpu.ops.source_op import Source, as_read, differ, revisions_at
from dagpu.ops.versions import Snapshot
from dagpu.plans.program import Cell, Items
from dagpu.tracing.live_inputs import NOT_CALLED, LiveInputs, LiveValue
from dagpu.tracing.program_builder import ProgramBuilder, shared_buffer
from dagpu.tracing.run_memo import NOT_YET, Deferred
from dagpu.tracing.traced_arguments import TracedArguments
from dagpu.tracing.user_code import Closures, call_closure, describe_closure

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Remembering: TypeAlias = Shared[Any] | Unzip[Any]
Read: TypeAlias = Source[Any] | Cutoff[Any, Any, Any]


@final
class _Below:
    """What is below an op. It refers to no op that a closure has built: that keeps handles, whose memory the run would
    have to give out as a result."""

    __slots__ = ("inside", "reads")

    def __init__(self) -> None:
        self.reads: dict[Read, None] = {}
        self.inside: list[_Below | Once] = []
        """What is below the ops that closures have returned, and the remembered values, which are looked up."""


@final
class Reads:
    """What the `Shared` and `Unzip` values of one run depend on. Ask for a value only when it is made: no closure below
    it is still to be called."""

    __slots__ = ("_below", "_found", "_new", "_waiting")

    def __init__(self) -> None:
        self._below: dict[Once | AnyOp, _Below] = {}
        """What is below each remembered value, and below each op that is watched."""
        self._found: dict[Once | AnyOp, tuple[Read, ...]] = {}
        """The values that earlier runs have made, and those that were asked for."""
        self._waiting: dict[AnyOp, list[_Below]] = {}
        """The ops whose closures are still to be called, with what they are parts of: one on the host may be part of
        several."""
        self._new: list[tuple[AnyOp, AnyOp | None, tuple[Read, ...] | None]] = []
        """What has been recorded and not been looked at: a node that is evaluated, or whose closure has returned an
        op, or that has run by a plan of its own."""

    def start(self, node: AnyOp) -> None:
        """Record a `Shared` or `Unzip` that the run evaluates, or before the run another op for which `of` is asked."""
        self._new.append((node, None, None))

    def built(self, node: AnyOp, op: AnyOp) -> None:
        """Record the op that the closure of a node has returned."""
        self._new.append((node, op, None))

    def ran(self, node: AnyOp, reads: Iterable[Read]) -> None:
        """Record an op that ran by a plan of its own, and what its value depends on."""
        self._new.append((node, None, tuple(reads)))

    def settle(self, *, depends: bool) -> None:
        """Let go of the ops that closures have built, once all closures have been called: the handles in them would
        count as results. Without `depends` no value of the run depends on a source, and nothing is looked at."""
        if depends:
            self._look()
        self._new.clear()

    def used(self, once: Once, reads: Iterable[Read]) -> None:
        """Record a value that an earlier run has made, and what it depends on."""
        self._found[once] = tuple(reads)

    def of(self, value: Once | AnyOp) -> tuple[Read, ...]:
        """Return the sources and cutoffs on which a value depends, each once."""
        self._look()
        found = self._found.get(value)
        if found is None:
            reads: dict[Read, None] = {}
            todo: list[_Below | Once | AnyOp] = [value]
            seen: set[_Below | Once | AnyOp] = set()
            while todo:
                each = todo.pop()
                if each in seen:
                    continue
                seen.add(each)
                if isinstance(each, _Below):
                    reads.update(each.reads)
                    todo += each.inside
                elif each in self._found:
                    reads.update(dict.fromkeys(self._found[each]))
                else:
                    todo.append(self._below[each])
            found = self._found[value] = tuple(reads)
        return found

    def _look(self) -> None:
        """Look at what has been recorded since. A run that reads no source never does."""
        for node, op, reads in self._new:
            if op is not None:
                for below in self._waiting.pop(node, ()):
                    self._walk(op, below)
            elif reads is not None:
                self._put_reads(node, reads)
            elif type(node) is not Shared and type(node) is not Unzip:
                if node not in self._below:
                    self._walk(node, self._open(node))
            elif node.once not in self._below:
                self._walk(_source(node), self._open(node.once))
        self._new.clear()

    def _put_reads(self, node: AnyOp, reads: tuple[Read, ...]) -> None:
        """Let whatever has closures below this node depend on these reads: they were called in another run."""
        inside = _Below()
        inside.reads.update(dict.fromkeys(reads))
        todo, seen = [node], {node}
        while todo:
            each = todo.pop()
            for below in self._waiting.pop(each, ()):
                below.inside.append(inside)
            more = [source for source in sources_of(each) if source not in seen]
            seen.update(more)
            todo += more

    def _open(self, value: Once | AnyOp) -> _Below:
        below = self._below[value] = _Below()
        return below

    def _walk(self, root: AnyOp, below: _Below) -> None:
        """Find what is below an op, for each remembered value that is met for the first time apart."""
        todo = [(root, below)]
        seen: set[tuple[AnyOp, _Below]] = set()
        while todo:
            node, below = todo.pop()
            if type(node) is Shared or type(node) is Unzip:
                below.inside.append(node.once)
                if node.once not in self._below:
                    todo.append((_source(node), self._open(node.once)))
                continue
            if (node, below) in seen:
                continue
            seen.add((node, below))
            if type(node) is Source or type(node) is Cutoff:
                below.reads[node] = None
            elif type(node) is Then:
                self._waiting.setdefault(node, []).append(below)
            todo += [(source, below) for source in sources_of(node)]


def _source(node: Remembering) -> AnyOp:
    """Return the op whose value a node remembers."""
    return node.split.source if isinstance(node, Unzip) else node.source


# ---- run sources
#
# How one run reads sources: a plain run reads the values of one snapshot, a run for a feed gets stand-ins for them.


class RunSources(Protocol):
    """The sources of one run, as its evaluation asks for them."""

    has_standins: ClassVar[bool]
    """True if inputs of nodes may be stand-ins, so that `adapt` has to be called for each node."""

    @property
    def reads(self) -> Reads | None:
        """What values depend on; None if nothing has been recorded."""
        ...

    def value_of(self, node: Source[Any]) -> Any:
        """Return the value of a source, or its stand-in."""
        ...

    def adapt(self, node: AnyOp, inputs: tuple[Any, ...], builder: ProgramBuilder) -> tuple[tuple[Any, ...], Any]:
        """Return the inputs as the node may see them; and the node's value, or `NOT_YET` if it is to be evaluated."""
        ...

    def call(self, closures: Closures, node: AnyOp, f: Any, argument: Any) -> Any:
        """Call a closure, whose value depends on handles, or is an op."""
        ...

    def host_argument(self, template: Any, builder: ProgramBuilder) -> Any:
        """Return the argument of a `HostCall`, with cells in place of stand-ins."""
        ...

    def is_private(self, node: Remembering) -> bool:
        """Return true for a `Shared` or `Unzip` that this run evaluates for itself, and remembers for no other run."""
        ...

    def is_stale(self, made_for: Mapping[Any, int]) -> bool:
        """Return true if this run cannot use a value that was made for these revisions of sources."""
        ...

    def start(self, node: Remembering) -> None:
        """Record that the value of a `Shared` or `Unzip` is evaluated from now on."""
        ...

    def built(self, node: AnyOp, op: AnyOp) -> None:
        """Record the op that the closure of a node has returned."""
        ...

    def settle(self) -> None:
        """Record that all closures have been called."""
        ...

    def finish(self, node: Remembering, value: Any, builder: ProgramBuilder) -> None:
        """Record that the value of a `Shared` or `Unzip` exists."""
        ...

    def ran(self, part: AnyOp, made_for: Mapping[Any, int]) -> None:
        """Record that a run of its own has made the value of a part of the op, of these sources."""
        ...

    def used(self, once: Once, made_for: Mapping[Any, int]) -> None:
        """Record that a value is used that an earlier run has made for these revisions of sources."""
        ...

    def made_for(self, once: Once) -> Mapping[Any, int]:
        """Return the sources on which the value of a `Shared` depends, with their revisions."""
        ...


@final
@dataclass(slots=True, eq=False)
class SnapshotSources:
    """The sources of a plain run: it reads all of them at the instant at which it reads the first one."""

    _leaves: TracedArguments
    reads: Reads | None = None
    """What values depend on; None while nothing is remembered and no closure is called."""
    snapshot: Snapshot | None = None
    """That instant; None before it."""
    _read: dict[Source[Any], None] = field(default_factory=dict)
    """The sources that the run has read, and those of values that it has used of earlier runs."""
    has_standins: ClassVar[bool] = False

    def watch(self, ops: Iterable[AnyOp]) -> None:
        """Let `read_by` be asked for these ops. Call this before the run."""
        for op in ops:
            self._recorded().start(op)

    def read_by(self, op: AnyOp) -> Mapping[Any, int]:
        """Return the sources on which the value of an op depends that is watched, with their revisions."""
        if not self._read:
            return {}
        key = op.once if type(op) is Shared or type(op) is Unzip else op
        return revisions_at(self.instant(), (node for node in self._recorded().of(key) if type(node) is Source))

    def instant(self) -> Snapshot:
        """Return the instant at which the run reads sources."""
        if self.snapshot is None:
            inputs = self._leaves.inputs
            self.snapshot = (None if inputs is None else inputs.snapshot) or Snapshot()
        return self.snapshot

    def value_of(self, node: Source[Any]) -> Any:
        self._read[node] = None
        value, inputs = node.cell.history.at(self.instant()).value, self._leaves.inputs
        if inputs is not None and node in inputs.source_values:
            return self._leaves.standin_of_source(node, value)
        self._leaves.forbid_reuse(
            f"its function uses {node!r}, which is not among its arguments. Pass it the source, as its function gets "
            "the source itself"
        )
        return as_read(value)

    def adapt(self, node: AnyOp, inputs: tuple[Any, ...], builder: ProgramBuilder) -> tuple[tuple[Any, ...], Any]:
        return inputs, NOT_YET

    def call(self, closures: Closures, node: AnyOp, f: Any, argument: Any) -> Any:
        return closures.call(node, f, argument)

    def host_argument(self, template: Any, builder: ProgramBuilder) -> Any:
        return template

    def is_private(self, node: Remembering) -> bool:
        return False

    def is_stale(self, made_for: Mapping[Any, int]) -> bool:
        self._leaves.forbid_reuse()
        return differ(made_for, self.instant())

    def start(self, node: Remembering) -> None:
        self._recorded().start(node)

    def built(self, node: AnyOp, op: AnyOp) -> None:
        self._recorded().built(node, op)

    def settle(self) -> None:
        if self.reads is not None:
            self.reads.settle(depends=bool(self._read))

    def _recorded(self) -> Reads:
        if self.reads is None:
            self.reads = Reads()
        return self.reads

    def finish(self, node: Remembering, value: Any, builder: ProgramBuilder) -> None:
        pass

    def used(self, once: Once, made_for: Mapping[Any, int]) -> None:
        self._read.update(dict.fromkeys(made_for))
        self._recorded().used(once, made_for)

    def ran(self, part: AnyOp, made_for: Mapping[Any, int]) -> None:
        """Record that a run of its own has made the value of a part, of these sources."""
        self._read.update(dict.fromkeys(made_for))
        if type(part) is Shared or type(part) is Unzip:
            self._recorded().used(part.once, made_for)
        else:
            self._recorded().ran(part, made_for)

    def made_for(self, once: Once) -> Mapping[Any, int]:
        if not self._read:
            return {}
        return revisions_at(self.instant(), (node for node in self._recorded().of(once) if type(node) is Source))


@final
class LiveSources:
    """The sources of a trace for a feed, which serves later values of them too."""

    __slots__ = ("live", "reads")
    has_standins: ClassVar[bool] = True

    def __init__(self, live: LiveInputs) -> None:
        self.live = live
        self.reads = Reads()

    def value_of(self, node: Source[Any]) -> Any:
        return self.live.of_source(node)

    def adapt(self, node: AnyOp, inputs: tuple[Any, ...], builder: ProgramBuilder) -> tuple[tuple[Any, ...], Any]:
        live = self.live
        match node:
            case Zip() | Shared() | HostCall():
                return inputs, NOT_YET
            case Cutoff() if not self.made_for(node.source.once):
                return inputs, inputs[0]  # it never changes
            case Cutoff():
                return inputs, live.of_cutoff(node, inputs[0], lambda tensor: builder.read_view(tensor).buffer)
            case Map() if live.derivable(inputs[0]):
                return inputs, self._derive(node, inputs[0])
            case _:
                return tuple([live.read_opaque(item) for item in inputs]), NOT_YET

    def _derive(self, node: Map[Any], argument: Any) -> Any:
        """Return the stand-in for the value of a `Map` of host values alone."""
        f: Any = node.f
        if type(f) in BUILT_IN:
            if type(argument) is not LiveValue:
                return NOT_YET

            def call(given: Any) -> Any:
                return f.apply(given, node.origin)
        else:

            def call(given: Any) -> Any:
                return call_closure(node, f, given)

        concrete = self.live.concrete(argument)
        value = self.live.bound_value(node, concrete)
        if value is NOT_CALLED:
            value = call(concrete)
        if has_op(value):
            refuse_op(value, describe_closure(node, f))
        made = self.live.derive(node, call, argument, value)
        return argument if type(f) is Inspect else made

    def call(self, closures: Closures, node: AnyOp, f: Any, argument: Any) -> Any:
        live = self.live
        if _holds_handles(argument):
            return self._call(closures, node, f, argument)
        concrete = live.concrete(argument)
        found = live.bound_value(node, concrete)
        if found is not NOT_CALLED:
            live.read(argument)  # as the call did, or the op that it returned would not be bound
            live.bind(node, argument, concrete, found)
            return own_containers(found)
        made = self._call(closures, node, f, argument)
        if isinstance(made, DeviceOp):
            if not _op_holds_handles(made):
                live.bind(node, argument, live.concrete(argument), made)
        elif not has_op(made) and not _holds_handles(made):
            made = make_unwritable(made)  # later traces get these objects, so this one does too
            live.bind(node, argument, live.concrete(argument), made)  # not what the closure may have changed
            return own_containers(made)
        return made

    def _call(self, closures: Closures, node: AnyOp, f: Any, argument: Any) -> Any:
        try:
            return closures.call(node, f, argument)
        except NotReadyError:
            concrete = self.live.concrete(argument)
            if concrete is argument:
                raise
        # It has read the contents of an array: the trace is then valid for this value alone.
        return closures.call(node, f, self.live.read(argument))

    def host_argument(self, template: Any, builder: ProgramBuilder) -> Any:
        if type(template) is Items:
            return Items(tuple([self.host_argument(item, builder) for item in template.items]))
        index = self.live.index_of(template)
        if index is not None:
            return Cell(builder.live_cell(self.live.inputs[index].value, index))
        if type(template) is tuple and self.live.derivable(template):
            return Items(tuple([self.host_argument(item, builder) for item in template]))
        return self.live.read(template)

    def is_private(self, node: Remembering) -> bool:
        # A trace claims nothing: its updates claim what they make, when they make it. A value that depends on no source
        # is a constant of the trace.
        value, made_for = node.once.remembered()
        return type(node) is Unzip or value is NOTHING or bool(made_for)

    def is_stale(self, made_for: Mapping[Any, int]) -> bool:
        return True  # it would be a constant here: the trace reads the sources itself, through stand-ins

    def start(self, node: Remembering) -> None:
        self.reads.start(node)
        if type(node) is Shared:
            if self.live.sharing is not None and self.live.sharing.meet(node):
                self.live.open[node] = None
            self.live.met.add(node)

    def built(self, node: AnyOp, op: AnyOp) -> None:
        self.reads.built(node, op)

    def settle(self) -> None:
        self.reads.settle(depends=True)

    def finish(self, node: Remembering, value: Any, builder: ProgramBuilder) -> None:
        if type(node) is Shared:
            self.live.open.pop(node, None)
            found = shared_buffer(node, value, self.reads.of(node.once), builder)
            if found is not None:
                self.live.shared.append(found)

    def ran(self, part: AnyOp, made_for: Mapping[Any, int]) -> None:
        self.reads.ran(part, made_for)

    def used(self, once: Once, made_for: Mapping[Any, int]) -> None:
        self.reads.used(once, made_for)
        if not made_for:
            self.live.constants.update([live_state(handle).storage for handle in handles_in(once.value)])

    def made_for(self, once: Once) -> Mapping[Any, int]:
        return revisions_at(self.live.snapshot, (node for node in self.reads.of(once) if type(node) is Source))


def _holds_handles(value: Any) -> bool:
    """Return true for a value with handles in it, or with values that do not exist yet."""
    kinds = set(map(type, values_in(value)))
    return Deferred in kinds or not HANDLES.isdisjoint(kinds)


def _op_holds_handles(op: AnyOp) -> bool:
    """Return true for an op that holds handles or a graph, as far as visible: a run takes them out of it."""
    for node in nodes_of(op):
        match node:
            case Value(content=held) | Launch(args=held):
                if _holds_handles(held):
                    return True
            case Copy() | GraphLaunch():
                return True
            case _:
                pass
    return False
