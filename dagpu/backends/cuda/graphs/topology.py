"""The topology of a plan's CUDA graph: its nodes and their dependencies.

It is derived from the plan's commands, not captured from streams. So nothing is submitted, several threads may create
graphs at once, and the instruction of each node is known. A node depends on the previous node of its lane, and on the
nodes before the records of the events for which its lane has waited.

An `If` is a kernel, which sets a condition, and a conditional node after it. All that a node of its body depends on
outside of the body, the conditional node depends on; what comes after such a node, comes after the conditional node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard, final

from dagpu.backends.cuda.commands.buffers import CompiledPlan
from dagpu.backends.cuda.commands.command_list import BaseOffset, Command, Encoded, Kind, LaunchParameters, Relocations
from dagpu.backends.cuda.commands.library_calls import LibraryCall
from dagpu.backends.cuda.commands.transfers import CopyIn, CopyOut
from dagpu.backends.cuda.driver.driver_protocol import KernelLaunch
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy, Memcpy2D, Memset, PlacedWork
from dagpu.common.errors import CaptureError
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.program import CopyDtoD, GraphLaunch, HostCall, If, Instruction, Launch, bodies_of

# ---- why a plan cannot be one CUDA graph ------------------------------------------------------------------------


def obstacle(plan: Plan) -> tuple[Instruction | None, str] | None:
    """Return the reason why a plan cannot be one graph: the instruction that prevents it, if there is one, and the
    cause with its cure. None if the plan can be one graph."""
    for step in plan.steps:
        if isinstance(step, Execute):
            instruction = step.instruction
            if isinstance(instruction, HostCall):
                return instruction, "it calls a function of the host. Take the host_map out of the captured op"
            if isinstance(instruction, GraphLaunch):
                return instruction, "it launches a graph itself. Launch both, one after the other"
            library = instruction.kernel.library if isinstance(instruction, Launch) else None
            if library is not None and library.no_graph:
                return instruction, library.no_graph
    own = {(lane.device, lane.key) for lane in plan.lanes if not isinstance(lane.key, int)}
    if len(own) > 1:
        return None, "it is on several streams of your own, and a graph is launched on one stream. Use only one of them"
    if any(device for device, _ in own):
        return None, "it is on a stream of your own, and begins on another device. Use a stream of the first device"
    return None


def cannot_capture(instruction: Instruction | None, why: str) -> CaptureError:
    """Return the error for a plan that cannot be one graph. The arguments are those that `obstacle` returns."""
    where = f" at {describe(instruction.origin)}" if instruction is not None else ""
    what = f"{type(instruction).__name__}{where}" if instruction is not None else "the op"
    return CaptureError(f"{what} cannot be part of a CUDA graph: {why}.")


def body_of(instruction: Instruction) -> UserBody | None:
    """Return the user's body that an instruction calls; None if it calls none."""
    body = instruction.kernel.library if isinstance(instruction, Launch) else None
    return body if isinstance(body, UserBody) else None


@final
@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """A kernel's node, without its parameters: each graph has its own."""

    instruction: Instruction
    made: KernelLaunch
    """The launch. Its parameters are replaced by those of a graph."""
    launch: int
    """The number of the launch, which is the index of its parameters."""

    @property
    def device(self) -> int:
        """The number in the plan of the device that works on it."""
        return self.instruction.device

    def node(self, parameters: bytearray | memoryview) -> KernelLaunch:
        """Return the launch with these parameters."""
        return self.made._replace(parameters=parameters)


GraphCommand: TypeAlias = CopyIn | CopyOut | Memcpy | Memset | LibraryCall
"""A command that has an equivalent node in a graph."""


@final
@dataclass(frozen=True, slots=True)
class CommandNode:
    """A contiguous copy, a memset, or the work of a library."""

    instruction: Instruction
    command: GraphCommand
    device: int = 0
    """The number in the plan of the device that works on it. A copy between devices is pushed: a small one takes half
    as long as one that its target pulls."""
    target: int = 0
    """The number of the device of the memory that it writes."""


@final
@dataclass(frozen=True, slots=True)
class ConditionalNode:
    """The conditional node of an `If`."""

    instruction: If

    @property
    def device(self) -> int:
        """The number in the plan of the device that works on its body."""
        return self.instruction.device


Node: TypeAlias = LaunchTemplate | CommandNode | ConditionalNode


@final
@dataclass(frozen=True, slots=True)
class GraphTopology:
    """All nodes of a plan's graph, and their dependencies."""

    nodes: list[Node]
    needs: list[tuple[int, ...]]
    """For each node the numbers of the nodes on which it depends. All are smaller than its own."""
    bodies: list[int]
    """For each node the number of the conditional node in whose body it is, -1 for none; empty if no node is in one."""
    parameters: LaunchParameters
    """The launch parameters, which each graph copies. They are not written for any base."""
    dependents: list[tuple[int, ...]]
    """For each source of changes the nodes that depend on it; see `Relocations`."""
    movable: frozenset[int]
    """The bases of operands of users' bodies that may be staged, and are not."""
    staged: frozenset[int]
    """The bases of operands of users' bodies that are staged."""
    staging: list[tuple[int, int]]
    """The device and the bytes of each operand that is staged. Each has a base of its own, after those of the plan."""
    crossed: tuple[int, ...]
    """The bases of the copies between two devices."""


def build_topology(compiled: CompiledPlan, encoded: Encoded, staged: frozenset[int] = frozenset()) -> GraphTopology:
    """Return the topology of a plan's graph. Small operands of users' bodies that are counted from the bases `staged`
    are copied from and to where they are in each run, so that the body's work need not be captured again.

    It may compile a kernel: in a graph, a kernel copies pitched rows, because the driver can update the addresses only
    of one-dimensional copies (cuGraphExecMemcpyNodeSetParams).
    """
    drawing = _TopologyBuilder(compiled, encoded, staged)
    for action in encoded.actions:
        drawing.add(action)
    return drawing.finished()


def _ifs_around(plan: Plan) -> dict[int, int]:
    """Return the number of the `If` in whose body each instruction is, for those in a body, by their ids."""
    instructions = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    ifs = [index for index, instruction in enumerate(instructions) if type(instruction) is If]
    bodies = zip(instructions, bodies_of(instructions), strict=True) if ifs else ()
    return {id(instruction): ifs.index(body) for instruction, body in bodies if body >= 0}


def _library_cells(encoded: Encoded) -> list[int]:
    """Return the cells with numbers that libraries are called with."""
    return [cell for action in encoded.actions if isinstance(action.a, LibraryCall) for cell in action.a.cells]


@final
class _TopologyBuilder:
    """Builds the topology of one plan's graph."""

    def __init__(self, compiled: CompiledPlan, encoded: Encoded, staged: frozenset[int]) -> None:
        self._staged = staged
        self._staging: list[tuple[int, int]] = []
        self._moving = {base for _, base in compiled.inputs} | {base for _, base, _, _ in compiled.outputs}
        """The bases that differ between runs, also where the pools give the same memory again."""
        self._movable: set[int] = set()
        self._plan = compiled.plan
        self._devices = compiled.devices
        self._launches = encoded.launches
        parameters = encoded.parameters
        self._texts = list(parameters.copy().texts)
        before = parameters.relocations
        numbers = before.numbers | {cell: [] for cell in _library_cells(encoded) if cell not in before.numbers}
        self._relocations = Relocations([list(places) for places in before.addresses], numbers)
        self._nodes: list[Node] = []
        self._needs: list[frozenset[int]] = []
        self._bodies: list[int] = []
        self._if_of = _ifs_around(compiled.plan)
        """The number of the `If` in whose body an instruction is, by the id of the instruction."""
        self._ifs: list[int] = []
        """The number of the conditional node of each `If`."""
        self._body = -1
        """The number of the conditional node in whose body the present command is; -1 for none."""
        self._tails: list[frozenset[int]] = [frozenset()] * len(compiled.plan.lanes)
        """For each lane the nodes on which its next node depends."""
        self._recorded: dict[int, frozenset[int]] = {}
        """For each event the nodes on which its record depends."""

    def add(self, action: Command) -> None:
        """Add a command: its node, or its effect on later dependencies."""
        if action.kind is Kind.RECORD:
            self._recorded[action.a] = self._tails[action.lane]
        elif action.kind is Kind.WAIT:
            self._tails[action.lane] |= self._recorded[action.a]
        elif action.instruction is not None:
            around = self._if_of.get(id(action.instruction), -1)
            self._body = self._ifs[around] if around >= 0 else -1
            node = self._node(action, action.instruction)
            if isinstance(action.instruction, If):
                self._if(node, action.instruction, action.lane)
            elif isinstance(node, CommandNode) and isinstance(node.command, LibraryCall):
                self._call(node.command, action.lane, node.device)
            elif node is not None:
                self._tails[action.lane] = frozenset((self._put(node, self._tails[action.lane]),))

    def _put(self, node: Node, needs: frozenset[int]) -> int:
        """Append a node, and return its number."""
        body = self._body
        if self._ifs:
            # Seen from here, a node in another body is over when its conditional node is.
            needs = frozenset([at if self._bodies[at] in (body, -1) else self._bodies[at] for at in needs])
            if body >= 0:
                inside = frozenset([at for at in needs if self._bodies[at] == body])
                self._needs[body] |= needs - inside
                needs = inside
        self._needs.append(needs)
        self._nodes.append(node)
        self._bodies.append(body)
        return len(self._nodes) - 1

    def _if(self, decides: Node | None, instruction: If, lane: int) -> None:
        """Append the kernel that decides, and the conditional node."""
        assert isinstance(decides, LaunchTemplate)
        number = len(self._nodes) + 1
        made = replace(decides, made=decides.made._replace(decides=number))
        decided = frozenset((self._put(made, self._tails[lane]),))
        self._ifs.append(self._put(ConditionalNode(instruction), decided))
        self._tails[lane] = decided

    def _call(self, call: LibraryCall, lane: int, device: int) -> None:
        """Append the call of a library, between the copies of its staged operands."""
        instruction, needs, operands = call.instruction, self._tails[lane], list(call.operands)
        self._movable.update(operand.start.base for operand in call.staged_operands(self._moving - self._staged))
        copies: list[Memcpy] = []
        for operand in call.staged_operands(self._staged):
            base = len(self._relocations.addresses)
            self._relocations.addresses.append([])
            self._staging.append((device, operand.nbytes))
            operands[operand.number] = BaseOffset(base, operand.first)
            copy = Memcpy(operand.nbytes, 0, 0)
            if operand.reads:
                node = CommandNode(instruction, copy.placed((base, 0), operand.start), device, device)
                needs |= {self._put(node, self._tails[lane])}
            if operand.writes:
                copies.append(copy.placed(operand.start, (base, 0)))
        if operands != list(call.operands):
            call = replace(call, operands=operands)
        tail = frozenset((self._put(CommandNode(instruction, call, device, device), needs),))
        puts = [self._put(CommandNode(instruction, each, device, device), tail) for each in copies]
        self._tails[lane] = frozenset(puts) or tail

    def _node(self, action: Command, instruction: Instruction) -> Node | None:
        """Return the node of a command; None if it copies or writes no bytes."""
        if action.kind is Kind.LAUNCH:
            return LaunchTemplate(instruction, self._launches[action.a][0], action.a)
        device = instruction.device
        match action.a:
            case Memcpy(by_kernel=PlacedWork(work=work, places=places)):
                return self._builtin(instruction, work, places)
            case (CopyIn() | CopyOut() | Memcpy() | Memset() | LibraryCall()) as command:
                works = device
                if isinstance(instruction, CopyDtoD):
                    works = self._plan.buffers[instruction.source.buffer].device
                return CommandNode(instruction, command, works, device) if command.nbytes else None
            case Memcpy2D(out=out, source=source, by_kernel=by_kernel):
                assert by_kernel is not None
                return self._builtin(instruction, by_kernel, (out, source))
            case _:
                raise AssertionError(action)

    def _builtin(
        self, instruction: Instruction, builtin: BuiltinWork, places: Sequence[tuple[int, int]]
    ) -> LaunchTemplate:
        """Return the node of one of dagpu's own kernels in the place of a command."""
        launch, function = len(self._texts), self._devices[instruction.device].library.load_builtin(builtin)
        text = bytearray(builtin.arguments)
        self._texts.append(text)
        for at, (base, offset) in zip(builtin.pointers, places, strict=True):
            self._relocations.addresses[base].append((launch, at, offset))
        return LaunchTemplate(instruction, KernelLaunch(function, builtin.grid, builtin.block, text, 0), launch)

    def finished(self) -> GraphTopology:
        """Return the topology. All commands must have been added."""
        node_of = {node.launch: number for number, node in enumerate(self._nodes) if isinstance(node, LaunchTemplate)}
        sources = {cell: len(self._relocations.addresses) + n for n, cell in enumerate(self._relocations.numbers)}
        dependents = [{node_of[launch] for launch in launches} for launches in self._relocations.launches()]
        for number, node in enumerate(self._nodes):
            if isinstance(node, CommandNode):
                for base in node.command.bases:
                    dependents[base].add(number)
                if isinstance(node.command, LibraryCall):
                    for cell in node.command.cells:
                        dependents[sources[cell]].add(number)
        return GraphTopology(
            self._nodes,
            [tuple(sorted(needs)) for needs in self._needs],
            self._bodies if self._ifs else [],
            LaunchParameters(self._texts, self._relocations),
            [tuple(sorted(nodes)) for nodes in dependents],
            frozenset(self._movable),
            self._staged,
            self._staging,
            tuple(sorted({base for node in self._nodes if _crosses(node) for base in node.command.bases})),
        )


def _crosses(node: Node) -> TypeGuard[CommandNode]:
    """Return True if a node copies from one device to another."""
    return isinstance(node, CommandNode) and node.device != node.target
