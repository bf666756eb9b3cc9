"""The nodes of a plan's CUDA graph: what each does, and after which others.

They are read off the plan's actions and not captured from streams: so nothing is submitted, any number of threads may
make graphs, and each node is known by its instruction. A node comes after the last one of its lane, and after what the
events that its lane has waited for had recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from dagpu.backends.cuda.commands.command_list import Command, Encoded, Kind
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.relocation import LaunchParameters, Relocations
from dagpu.backends.cuda.commands.transfers import CopyIn, CopyOut
from dagpu.backends.cuda.driver.driver_protocol import KernelLaunch
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy, Memcpy2D, Memset
from dagpu.lowering.program import Instruction


@final
@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """A launch."""

    instruction: Instruction
    made: KernelLaunch
    """But for the parameters: each graph has its own."""
    launch: int
    """Which of the parameters are its own."""

    def node(self, parameters: bytearray) -> KernelLaunch:
        """With its parameters."""
        return self.made._replace(parameters=parameters)


GraphCommand: TypeAlias = CopyIn | CopyOut | Memcpy | Memset
"""A command that a graph may have as a node: it gives that node."""


@final
@dataclass(frozen=True, slots=True)
class MemoryNode:
    """A contiguous copy, or a constant that is written."""

    instruction: Instruction
    command: GraphCommand


Node: TypeAlias = LaunchTemplate | MemoryNode


@final
@dataclass(frozen=True, slots=True)
class GraphTopology:
    """All nodes of a plan's graph."""

    nodes: list[Node]
    needs: list[tuple[int, ...]]
    """For each node, those that it comes after: all of them stand before it."""
    parameters: LaunchParameters
    """To be copied for each graph. They aim at nothing."""
    concerned: list[tuple[int, ...]]
    """For each source of changes, the nodes that it is in."""


def blueprint(compiled: CompiledPlan, written: Encoded) -> GraphTopology:
    """The nodes of a plan.

    May compile: rows at a pitch are copied by a kernel in a graph, for the driver changes the addresses of
    one-dimensional copies alone (cuGraphExecMemcpyNodeSetParams).
    """
    drawing = _TopologyBuilder(compiled, written)
    for action in written.actions:
        drawing.add(action)
    return drawing.finished()


@final
class _TopologyBuilder:
    """A blueprint that is being made."""

    def __init__(self, compiled: CompiledPlan, written: Encoded) -> None:
        self._device = compiled.devices[0]
        self._launches = written.launches
        parameters = written.parameters
        self._texts = list(parameters.copy().texts)
        before = parameters.patches
        self._patches = Relocations([list(places) for places in before.addresses], before.numbers)
        self._nodes: list[Node] = []
        self._needs: list[tuple[int, ...]] = []
        self._tails: list[frozenset[int]] = [frozenset()] * len(compiled.plan.lanes)
        """Of each lane, the nodes that the next one comes after."""
        self._recorded: dict[int, frozenset[int]] = {}
        """Of each event, what had to be done for it."""

    def add(self, action: Command) -> None:
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

    def _node(self, action: Command, instruction: Instruction) -> Node | None:
        """None where there is nothing to do."""
        if action.kind is Kind.LAUNCH:
            return LaunchTemplate(instruction, self._launches[action.a][0], action.a)
        match action.a:
            case (CopyIn() | CopyOut() | Memcpy() | Memset()) as command:
                return MemoryNode(instruction, command) if command.nbytes else None
            case Memcpy2D(out=out, source=source, by_kernel=by_kernel):
                assert by_kernel is not None
                return self._rows(instruction, by_kernel, (out, source))
            case _:
                raise AssertionError(action)

    def _rows(
        self, instruction: Instruction, builtin: BuiltinWork, places: Sequence[tuple[int, int]]
    ) -> LaunchTemplate:
        launch, function = len(self._texts), self._device.library.builtin(builtin)
        text = bytearray(builtin.arguments)
        self._texts.append(text)
        for at, (base, offset) in zip(builtin.pointers, places, strict=True):
            self._patches.addresses[base].append((launch, at, offset))
        return LaunchTemplate(instruction, KernelLaunch(function, builtin.grid, builtin.block, text, 0), launch)

    def finished(self) -> GraphTopology:
        """All of it."""
        node_of = {node.launch: number for number, node in enumerate(self._nodes) if isinstance(node, LaunchTemplate)}
        concerned = [{node_of[launch] for launch in launches} for launches in self._patches.launches()]
        for number, node in enumerate(self._nodes):
            if isinstance(node, MemoryNode):
                for base in node.command.bases:
                    concerned[base].add(number)
        return GraphTopology(
            self._nodes,
            self._needs,
            LaunchParameters(self._texts, self._patches),
            [tuple(sorted(nodes)) for nodes in concerned],
        )
