"""The nodes of a plan's CUDA graph: what each does, and after which others.

They are read off the plan's actions and not captured from streams: so nothing is submitted, any number of threads may
make graphs, and each node is known by its instruction. A node comes after the last one of its lane, and after what the
events that its lane has waited for had recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from dagpu.backends.cuda.builtin import Memset
from dagpu.backends.cuda.driver import CopyNode, FillNode, KernelLaunch
from dagpu.backends.cuda.parameters import Parameters, Patches, Place
from dagpu.backends.cuda.script import Action, Kind
from dagpu.backends.cuda.transfers import CopyIn, CopyOut, DeviceCopy, DeviceFill, RowsCopy
from dagpu.lowering.program import Instruction

if TYPE_CHECKING:
    from dagpu.backends.cuda.prepared import PreparedPlan


@final
@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch."""

    instruction: Instruction
    made: KernelLaunch
    """But for the parameters: each graph has its own."""
    launch: int
    """Which of the parameters are its own."""

    def node(self, parameters: bytearray) -> KernelLaunch:
        """With its parameters."""
        return self.made._replace(parameters=parameters)


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """A contiguous copy."""

    instruction: Instruction
    kind: Literal["in", "out", "within"]
    target: Place
    source: Place
    nbytes: int

    def node(self, bases: Sequence[int]) -> CopyNode:
        """With addresses."""
        target, source = self.target, self.source
        return CopyNode(
            self.kind, bases[target.base] + target.offset, bases[source.base] + source.offset, self.nbytes
        )  # fmt: skip

    def placeholder(self, device: int, host: int) -> CopyNode:
        """With addresses that will be replaced before it is launched: of so many bytes of memory of either kind."""
        target, source = host if self.kind == "out" else device, host if self.kind == "in" else device
        return CopyNode(self.kind, target, source, self.nbytes)


@final
@dataclass(frozen=True, slots=True)
class Fill:
    """A constant."""

    instruction: Instruction
    out: Place
    made: Memset

    @property
    def nbytes(self) -> int:
        """What it writes."""
        return self.made.width * self.made.count

    def node(self, bases: Sequence[int]) -> FillNode:
        """With its address."""
        return self.placeholder(bases[self.out.base] + self.out.offset)

    def placeholder(self, device: int) -> FillNode:
        """With an address that will be replaced before it is launched."""
        return FillNode(device, self.made.width, self.made.value, self.made.count)


Node: TypeAlias = Kernel | Copy | Fill


@final
@dataclass(frozen=True, slots=True)
class Blueprint:
    """All nodes of a plan's graph."""

    nodes: list[Node]
    needs: list[tuple[int, ...]]
    """For each node, those that it comes after: all of them stand before it."""
    parameters: Parameters
    """To be copied for each graph. They aim at nothing."""
    concerned: list[tuple[int, ...]]
    """For each source of changes, the nodes that it is in."""


def blueprint(prepared: "PreparedPlan") -> Blueprint:
    """The nodes of a plan.

    May compile: rows at a pitch are copied by a kernel in a graph, for the driver changes the addresses of
    one-dimensional copies alone (cuGraphExecMemcpyNodeSetParams).
    """
    drawing = _Drawing(prepared)
    for action in prepared.written.actions:
        drawing.add(action)
    return drawing.finished()


@final
class _Drawing:
    """A blueprint that is being made."""

    def __init__(self, prepared: "PreparedPlan") -> None:
        self._prepared = prepared
        parameters = prepared.written.parameters
        self._texts = list(parameters.copy().texts)
        before = parameters.patches
        self._patches = Patches([list(places) for places in before.addresses], before.numbers)
        self._nodes: list[Node] = []
        self._needs: list[tuple[int, ...]] = []
        self._tails: list[frozenset[int]] = [frozenset()] * len(prepared.plan.lanes)
        """Of each lane, the nodes that the next one comes after."""
        self._recorded: dict[int, frozenset[int]] = {}
        """Of each event, what had to be done for it."""

    def add(self, action: Action) -> None:
        """What an action becomes."""
        if action.kind is Kind.RECORD:
            self._recorded[action.a] = self._tails[action.lane]
        elif action.kind is Kind.WAIT:
            self._tails[action.lane] |= self._recorded[action.a]
        elif action.instruction is not None:
            node = self._node(action, action.instruction)
            if node is not None:
                self._needs.append(tuple(sorted(self._tails[action.lane])))
                self._tails[action.lane] = frozenset((len(self._nodes),))
                self._nodes.append(node)

    def _node(self, action: Action, instruction: Instruction) -> Node | None:
        """None where there is nothing to do."""
        if action.kind is Kind.LAUNCH:
            return Kernel(instruction, self._prepared.written.launches[action.a][0], action.a)
        match action.a:
            case CopyIn(instruction=copied, out=out, host=host):
                nbytes = copied.out.layout.nbytes
                return Copy(instruction, "in", out, Place(host, 0), nbytes) if nbytes else None
            case CopyOut(layout=layout, source=source, host=host):
                return Copy(instruction, "out", Place(host, 0), source, layout.nbytes) if layout.nbytes else None
            case DeviceCopy(nbytes=nbytes, out=out, source=source):
                return Copy(instruction, "within", out, source, nbytes) if nbytes else None
            case DeviceFill(made=made, out=out):
                return Fill(instruction, out, made) if made.count else None
            case RowsCopy():
                return self._rows(instruction, action.a)
            case _:
                raise AssertionError(action)

    def _rows(self, instruction: Instruction, copy: RowsCopy) -> Kernel:
        made, launch = copy.by_kernel, len(self._texts)
        function = self._prepared.devices[0].library.builtin(made)
        text = bytearray(made.arguments)
        self._texts.append(text)
        for at, place in zip(made.pointers, (copy.out, copy.source), strict=True):
            self._patches.addresses[place.base].append((launch, at, place.offset))
        return Kernel(instruction, KernelLaunch(function, made.grid, made.block, text, 0), launch)

    def finished(self) -> Blueprint:
        """All of it."""
        node_of = {node.launch: number for number, node in enumerate(self._nodes) if isinstance(node, Kernel)}
        concerned = [{node_of[launch] for launch in launches} for launches in self._patches.launches()]
        for number, node in enumerate(self._nodes):
            if isinstance(node, Copy):
                concerned[node.target.base].add(number)
                concerned[node.source.base].add(number)
            elif isinstance(node, Fill):
                concerned[node.out.base].add(number)
        return Blueprint(
            self._nodes,
            self._needs,
            Parameters(self._texts, self._patches),
            [tuple(sorted(nodes)) for nodes in concerned],
        )
