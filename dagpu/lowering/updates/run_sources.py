"""How one run reads sources: a plain run reads the values of one snapshot, a run for a feed gets stand-ins for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, final

from dagpu.common.errors import NotReadyError
from dagpu.lowering.arguments.traced_arguments import TracedArguments
from dagpu.lowering.program import Cell, Items
from dagpu.lowering.tracing.deferred import NOT_YET
from dagpu.lowering.tracing.program_builder import ProgramBuilder
from dagpu.lowering.tracing.user_code import Closures, call_closure, describe_closure
from dagpu.lowering.updates.live_inputs import LiveInputs, LiveValue
from dagpu.lowering.updates.shared_buffers import shared_buffer
from dagpu.ops.base import DeviceOp, has_op, refuse_op
from dagpu.ops.compose import Cutoff, HostCall, Map, Shared, Unzip, Zip, sources_of
from dagpu.ops.live.source_op import Source, as_read
from dagpu.ops.live.versions import Snapshot
from dagpu.ops.node_functions import BUILT_IN, Inspect
from dagpu.ops.single_flight import Once

AnyOp = DeviceOp[Any, Any, Any]
Remembering = Shared[Any] | Unzip[Any]


class RunSources(Protocol):
    """The sources of one run, as its evaluation asks for them."""

    has_standins: ClassVar[bool]
    """True if inputs of nodes may be stand-ins, so that `adapt` has to be called for each node."""

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

    def start(self, once: Once) -> None:
        """Record that the value of a `Shared` is evaluated from now on."""
        ...

    def finish(self, node: Remembering, value: Any, builder: ProgramBuilder) -> None:
        """Record that the value of a `Shared` or `Unzip` exists."""
        ...

    def reused(self, once: Once) -> None:
        """Record that the value of a `Shared`, which this run has made, is used again."""
        ...

    def used(self, made_for: Mapping[Any, int]) -> None:
        """Record that a value is used that an earlier run has made for these revisions of sources."""
        ...

    def made_for(self, once: Once) -> Mapping[Any, int] | None:
        """Return the sources on which the value of a `Shared` depends, with their revisions; None for a value that is
        of no use to other runs, because it may contain stand-ins."""
        ...


_Node = TypeVar("_Node", bound=AnyOp)


@final
class SourceLog(Generic[_Node]):
    """The sources that a run has read, in order. Those of a `Shared` are the ones read while it was evaluated; of one
    that waits for host data, all that were read since."""

    __slots__ = ("_found", "_read", "_since")

    def __init__(self) -> None:
        self._read: list[_Node] = []
        self._since: dict[Once, int] = {}
        self._found: dict[Once, list[_Node]] = {}

    def add(self, node: _Node) -> None:
        """Record that a source was read."""
        self._read.append(node)

    def start(self, once: Once) -> None:
        """Record that the value of a `Shared` is evaluated from now on."""
        self._since[once] = len(self._read)

    def finish(self, once: Once) -> None:
        """Record that the value of a `Shared` exists."""
        self._found[once] = self.of(once)

    def reused(self, once: Once) -> None:
        """Record that a `Shared` is used again: what uses it depends on all that was read since it began."""
        self._read += self.of(once)

    def used(self, made_for: Iterable[_Node]) -> None:
        """Record that a value of these sources is used."""
        self._read += made_for

    def all(self) -> Iterable[_Node]:
        """Return all sources that were read."""
        return dict.fromkeys(self._read)

    def of(self, once: Once) -> list[_Node]:
        """Return the sources that were read since the evaluation of a `Shared` began. They contain all of its own."""
        if once in self._found:
            return self._found[once]
        return list(dict.fromkeys(self._read[self._since[once] :]))


def _differ(made_for: Mapping[Any, int], snapshot: Snapshot) -> bool:
    """Return true if one of these sources has another revision in a snapshot."""
    return any(node.cell.history.at(snapshot).revision != revision for node, revision in made_for.items())


@final
@dataclass(slots=True, eq=False)
class SnapshotSources:
    """The sources of a plain run: it reads all of them at the instant at which it reads the first one."""

    _leaves: TracedArguments
    _log: SourceLog[Source[Any]] | None = None
    snapshot: Snapshot | None = None
    """That instant; None before it."""
    has_standins: ClassVar[bool] = False

    def read(self) -> Mapping[Any, int]:
        """Return all sources that the run has read so far, with their revisions."""
        return {} if self._log is None else self._revisions(self._log.all())

    def _revisions(self, sources: Iterable[Source[Any]]) -> Mapping[Any, int]:
        return {node: node.cell.history.at(self.instant()).revision for node in sources}

    def instant(self) -> Snapshot:
        """Return the instant at which the run reads sources."""
        if self.snapshot is None:
            inputs = self._leaves.inputs
            self.snapshot = (None if inputs is None else inputs.snapshot) or Snapshot()
        return self.snapshot

    def _logged(self) -> SourceLog[Source[Any]]:
        if self._log is None:
            self._log = SourceLog()
        return self._log

    def value_of(self, node: Source[Any]) -> Any:
        self._logged().add(node)
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
        return _differ(made_for, self.instant())

    def start(self, once: Once) -> None:
        self._logged().start(once)

    def finish(self, node: Remembering, value: Any, builder: ProgramBuilder) -> None:
        self._logged().finish(node.once)

    def reused(self, once: Once) -> None:
        self._logged().reused(once)

    def used(self, made_for: Mapping[Any, int]) -> None:
        if made_for:
            self._logged().used(made_for)

    def made_for(self, once: Once) -> Mapping[Any, int]:
        if self._log is None:
            return {}
        return self._revisions(self._log.of(once))


_WITH_STANDIN: Final = frozenset((Source, Cutoff))


@final
class LiveSources:
    """The sources of a trace for a feed, which serves later values of them too."""

    __slots__ = ("_below", "_log", "live")
    has_standins: ClassVar[bool] = True

    def __init__(self, live: LiveInputs) -> None:
        self.live = live
        self._log = SourceLog[Source[Any] | Cutoff[Any, Any, Any]]()
        """The sources and cutoffs, which have stand-ins."""
        self._below: dict[AnyOp, bool] = {}

    def value_of(self, node: Source[Any]) -> Any:
        self._log.add(node)
        return self.live.of_source(node)

    def adapt(self, node: AnyOp, inputs: tuple[Any, ...], builder: ProgramBuilder) -> tuple[tuple[Any, ...], Any]:
        live = self.live
        match node:
            case Zip() | Shared() | HostCall():
                return inputs, NOT_YET
            case Cutoff():
                self._log.add(node)
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

        value = self.live.call_of(node, call)(self.live.concrete(argument))
        if has_op(value):
            refuse_op(value, describe_closure(node, f))
        made = self.live.derive(node, call, argument, value)
        return argument if type(f) is Inspect else made

    def call(self, closures: Closures, node: AnyOp, f: Any, argument: Any) -> Any:
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
        return type(node) is Unzip or self._has_standin(node)

    def _has_standin(self, root: AnyOp) -> bool:
        """Return true if a source or cutoff is visible below a node, without calling closures."""
        below, todo = self._below, [root]
        while todo:
            node = todo[-1]
            if node in below:
                todo.pop()
                continue
            missing = [source for source in sources_of(node) if source not in below]
            if missing and type(node) not in _WITH_STANDIN:
                todo += missing
                continue
            made = bool(node.once.made_for) if type(node) is Shared else type(node) in _WITH_STANDIN
            below[node] = made or any(below.get(source, False) for source in sources_of(node))
        return below[root]

    def is_stale(self, made_for: Mapping[Any, int]) -> bool:
        return True  # it would be a constant here: the trace reads the sources itself, through stand-ins

    def start(self, once: Once) -> None:
        self._log.start(once)

    def finish(self, node: Remembering, value: Any, builder: ProgramBuilder) -> None:
        self._log.finish(node.once)
        if type(node) is Shared:
            found = shared_buffer(node, value, self._log.of(node.once), builder)
            if found is not None:
                self.live.shared.append(found)

    def reused(self, once: Once) -> None:
        self._log.reused(once)

    def used(self, made_for: Mapping[Any, int]) -> None:
        self._log.used(made_for)

    def made_for(self, once: Once) -> Mapping[Any, int] | None:
        return None if self._log.of(once) else {}
