"""A plan that is prepared for the driver once, for all its runs: kernels, command lists and graphs."""

from collections.abc import Callable, Sequence
from typing import Final, final

from dagpu.backends.cuda.commands.command_list import CommandListPool, Encoded, Kind
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.encoder import encode
from dagpu.backends.cuda.graphs.captured import CapturedGraph, LaunchGraph, capture
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.graphs.obstacles import cannot_capture
from dagpu.backends.cuda.instruction_selection import select
from dagpu.backends.cuda.kernels.launch_factories import LaunchFactories
from dagpu.backends.cuda.replay.graph_launches import LaunchIdleGraph, idle_graph_launch, launch_captured
from dagpu.backends.cuda.replay.lane_launches import launch_lane
from dagpu.backends.cuda.replay.start import start, start_graph
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.protocol import Bindings, Run
from dagpu.plans.plan import Plan

MOST_KEPT: Final = 64 << 10
"""The most bytes of temporaries that a graph of a plan that keeps memory has between its launches. To take a block from
the pool, and to return it, takes as long as a kernel that fills it."""
KEPT: Final = 32 << 10
"""The most bytes of temporaries that any graph keeps. The numbers between the passes of a reduction are not more."""


@final
class Executable:
    """A plan on its devices. Implements `dagpu.backends.protocol.Prepared`."""

    def __init__(self, plan: Plan, devices: Sequence[CudaDevice], factories: LaunchFactories) -> None:
        for device in devices:
            device.refuse_if_lost()
        self.compiled, self._selected, self._wanted = select(plan, devices, factories)
        self.graphs = GraphInstances(plan, devices)
        self._command_lists: CommandListPool | None = None
        """The command lists; None until every kernel is compiled."""
        compiled = self.compiled
        self._is_simple = not (compiled.reports or len(devices) > 1 or self.graphs.own is not None)
        """True if an idle graph of the plan is launched in any stream: all is on one device, and nothing is read after
        the run."""
        self._keep_arenas(KEPT)
        self._launch_idle: LaunchIdleGraph | None = None
        """Launches an idle graph; None before the first such launch."""
        self._captured: LaunchGraph | None = None
        """The launch of a captured graph that is all of the plan; None for any other plan."""
        self._is_one_lane = False
        """True if a run for which a thread waits may go command by command to an idle stream."""
        self._is_copy = False
        """True if all commands are copies and fills, which a graph does not make quicker."""
        if not self._wanted:
            self._encode()

    @property
    def before_first(self) -> Callable[[], None] | None:
        """Function that compiles the plan's kernels; None once all are compiled."""
        return None if self._command_lists is not None else self._compile

    @property
    def lacks_graph(self) -> str:
        """The reason why no run is one graph; empty if runs may be. See `Prepared.lacks_graph`."""
        graphs = self.graphs
        if graphs.obstacle is not None:
            return str(cannot_capture(*graphs.obstacle)).rstrip(".")
        return graphs.refused or ""

    @property
    def before_graph(self) -> Callable[[], None] | None:
        """Function that instantiates the first graph; None if that is quick or done."""
        return self._prepare_graph if self.graphs.first_is_slow else None

    def submit(self, bindings: Bindings, spin: float = 0.0, *, graph: bool = False) -> Run:
        """Start a run; see `Prepared.submit`."""
        assert not self.compiled.decides, "streams decide nothing"
        for device in self.compiled.devices:
            if device.exchange.arrivals or device.retired.gone:
                device.settle()
                graph = graph and not device.exchange.arrivals  # a graph waits for none of its inputs
        if (graph and self.graphs.idle) or self._captured is not None or self._is_one_lane:
            run = self.launch_again(bindings.memory, spin, graph)
            if run is not None:
                return run
        return start(self.compiled, self._command_lists or self.command_lists, self.graphs, bindings, spin, graph)

    def launch_again(self, memory: list[object], spin: float, graph: bool) -> Run | None:
        """Launch an existing graph, or the commands of one lane; see `Prepared.launch_again`."""
        command_lists = self._command_lists
        if command_lists is None:
            return None
        if graph and self._is_simple and self.graphs.idle:
            launch_idle = self._launch_idle or self._new_idle_launch(command_lists)
            run = launch_idle(memory, spin)
            if run is not None:
                return run
        if self.compiled.decides:
            return start_graph(self.compiled, command_lists, self.graphs, memory, spin)
        if self._captured is not None:
            return launch_captured(self.compiled, command_lists, self._captured, memory, spin)
        if spin and self._is_one_lane and (self._is_copy or not graph or self.graphs.are_left_out):
            return launch_lane(self.compiled, command_lists, memory, spin)
        return None

    def _new_idle_launch(self, command_lists: CommandListPool) -> LaunchIdleGraph:
        """Return the function that launches an idle graph. It launches none if the driver needs a current context."""
        made = idle_graph_launch(self.compiled, command_lists, self.graphs)
        self._launch_idle = made
        return made

    def keep_memory(self) -> None:
        """Let each graph keep larger temporaries between its launches; see `Prepared.keep_memory`."""
        self._keep_arenas(MOST_KEPT)

    def _keep_arenas(self, most: int) -> None:
        """Let each graph keep its temporaries between its launches if they are of at most this number of bytes."""
        nbytes = sum([size for _, size in self.compiled.arenas])
        self.graphs.keeps_arenas = self._is_simple and 0 < nbytes <= most

    def freeze(self, bindings: Bindings) -> CapturedGraph:
        """Return a graph that is bound to this memory permanently; see `Prepared.freeze`."""
        return capture(self.compiled, self.command_lists.encoded, self.graphs, bindings.memory)

    @property
    def command_lists(self) -> CommandListPool:
        """The command lists of the plan's runs. Reading this compiles the kernels first, unless they are compiled."""
        if self._command_lists is None:
            self._compile()
        assert self._command_lists is not None
        return self._command_lists

    def _compile(self) -> None:
        for make in self._wanted.values():
            make()
        if self._command_lists is None:
            self._encode()

    def _prepare_graph(self) -> None:
        self.graphs.prepare_first(self.compiled, self.command_lists.encoded)

    def _encode(self) -> None:
        """Encode the command list. Every kernel must be compiled."""
        compiled = self.compiled
        self._command_lists = CommandListPool(encode(compiled, self._selected), compiled.devices)
        encoded = self._command_lists.encoded
        actions = encoded.actions
        self._is_one_lane = _is_one_lane(compiled, encoded)
        self._is_copy = not (encoded.launches or compiled.calls_user)
        if self._is_copy and compiled.copies_host:
            self._is_simple = False  # it is left to `launch_lane`
        if len(actions) == 1 and isinstance(actions[0].a, LaunchGraph) and not compiled.blocking:
            starts_here = compiled.plan.lanes[actions[0].lane].device == 0
            self._captured = actions[0].a if starts_here and actions[0].a.frozen.cannot_fail else None
        if compiled.calls_user:  # a captured body has the addresses of its temporaries
            self.keep_memory()
        self._wanted.clear()
        self._selected = ()


def _is_one_lane(compiled: CompiledPlan, encoded: Encoded) -> bool:
    """Return True if `launch_lane` may run a plan: it is short, and all of it is submitted to one stream of dagpu's by
    the thread that starts the run."""
    return (
        len(compiled.plan.lanes) == 1
        and len(compiled.devices) == 1
        and isinstance(compiled.plan.lanes[0].key, int)
        and not (compiled.blocking or compiled.reports)
        and all(each.kind is Kind.LAUNCH or each.kind is Kind.DO for each in encoded.actions)
        and not any(isinstance(each.a, LaunchGraph) for each in encoded.actions)
    )
