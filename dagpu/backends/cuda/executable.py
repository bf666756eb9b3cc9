"""A plan that is prepared for the driver once, for all its runs: kernels, command lists, graphs and ways to start."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Final, final

from dagpu.backends.cuda.commands.buffers import CompiledPlan
from dagpu.backends.cuda.commands.command_list import Command, CommandListPool, Encoded, Kind
from dagpu.backends.cuda.commands.encoder import encode
from dagpu.backends.cuda.graphs.instances import CapturedGraph, GraphInstances, LaunchGraph, capture
from dagpu.backends.cuda.graphs.topology import cannot_capture
from dagpu.backends.cuda.instruction_selection import LaunchFactories, select
from dagpu.backends.cuda.replay.lone_copies import (
    copy_between,
    copy_flight,
    copy_launch,
    flight_between,
    launch_between,
    lone_copy,
)
from dagpu.backends.cuda.replay.starts import (
    captured_flight,
    compiled_flight,
    idle_graph_launch,
    launch_any_graph,
    launch_captured,
    launch_graph,
    launch_lane,
    submit_run,
)
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import OwnedStream
from dagpu.backends.protocol import Run, Strategy
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
        self._is_plain = not (self.compiled.reports or self.graphs.own is not None)
        """True if nothing is read after a run, and its graph is no other plan's."""
        self._is_simple = self._is_plain and len(devices) == 1
        """True if an idle graph of the plan is launched in any stream: all is on one device, and nothing is read after
        the run."""
        self.flight: Strategy | None = None
        """The launch of idle graphs by the compiled reader, if it serves the plan; see `Prepared.flight`."""
        self._keep_arenas(KEPT)
        self._again: tuple[Sequence[Strategy], Sequence[Strategy]] = (), ()
        """The ways to start a short run, or what is launched as a whole, without a graph and with one; none until
        every kernel is compiled."""
        self._launch_graph: Strategy
        self._submit_run: Callable[[list[object], float], Run]
        """The ways that are left after these, in the context of the first device: one for runs with a graph, and one
        for all runs."""
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

    def submit(self, memory: list[object], spin: float = 0.0, graph: bool = False) -> Run:
        """Start a run; see `Prepared.submit`."""
        assert not self.compiled.decides, "streams decide nothing"
        for start in self._again[graph]:
            run = start(memory, spin)
            if run is not None:
                return run
        devices, settled = self.compiled.devices, False
        for device in devices:
            if device.exchange.arrivals or device.retired.gone:
                device.settle()
                settled = True
                graph = graph and not device.exchange.arrivals  # a graph waits for none of its inputs
        if settled and (run := self.launch_whole(memory, spin, graph)) is not None:
            return run
        if self._command_lists is None:
            self._compile()
        for device in devices:
            if device.lost is not None:
                device.refuse_if_lost()
        with devices[0].gpu.current():
            run = self._launch_graph(memory, spin) if graph else None
            return self._submit_run(memory, spin) if run is None else run

    def launch_whole(self, memory: list[object], spin: float, graph: bool) -> Run | None:
        """Launch a graph, if one can be launched now; see `Prepared.launch_whole`."""
        for start in self._again[graph]:
            run = start(memory, spin)
            if run is not None:
                return run
        return None

    def keep_memory(self) -> None:
        """Let each graph keep larger temporaries between its launches; see `Prepared.keep_memory`."""
        self._keep_arenas(MOST_KEPT)

    def _keep_arenas(self, most: int) -> None:
        """Let each graph keep its temporaries between its launches if they are of at most this number of bytes."""
        nbytes = sum(map(itemgetter(1), self.compiled.arenas))
        self.graphs.keeps_arenas = self._is_plain and 0 < nbytes <= most

    def freeze(self, memory: list[object]) -> CapturedGraph:
        """Return a graph that is bound to this memory permanently; see `Prepared.freeze`."""
        return capture(self.compiled, self.command_lists.encoded, self.graphs, memory)

    @property
    def command_lists(self) -> CommandListPool:
        """The command lists of the plan's runs. Reading this compiles the kernels first, unless they are compiled."""
        if self._command_lists is None:
            self._compile()
        assert self._command_lists is not None
        return self._command_lists

    def _compile(self) -> None:
        for make in self._wanted.values():  # another thread may give this plan another table meanwhile
            make()
        self._encode()

    def _prepare_graph(self) -> None:
        self.graphs.prepare_first(self.compiled, self.command_lists.encoded)

    def _encode(self) -> None:
        """Encode the command list, and choose the ways to start a run, unless another thread has. Every kernel must be
        compiled."""
        compiled, selected = self.compiled, self._selected
        if self._command_lists is not None:  # asked after the read above: it is set before `_selected` is dropped
            return
        command_lists = CommandListPool(encode(compiled, selected), compiled.devices)
        encoded = command_lists.encoded
        is_copy = not (encoded.launches or compiled.calls_user)
        if is_copy and compiled.copies_host:
            self._is_simple = False  # it is left to `launch_lane`
        self._choose(command_lists, is_copy)
        self._command_lists = command_lists
        if compiled.calls_user:  # a captured body has the addresses of its temporaries
            self.keep_memory()
        self._wanted, self._selected = {}, ()

    def _choose(self, command_lists: CommandListPool, is_copy: bool) -> None:
        """Choose the ways to start a run. If the plan `is_copy`, a graph does not make it quicker: all of it is copies
        and fills."""
        compiled, graphs, actions = self.compiled, self.graphs, command_lists.encoded.actions
        captured = _captured_graph(compiled, actions[0]) if len(actions) == 1 else None
        plain: Sequence[Strategy] = ()
        with_graph: Sequence[Strategy] = ()
        if compiled.decides:
            with_graph = (partial(launch_any_graph, compiled, command_lists, graphs),)
        elif captured is not None:
            plain = with_graph = (partial(launch_captured, compiled, command_lists, captured),)
        elif _is_one_lane(compiled, command_lists.encoded):
            plain = (partial(launch_lane, compiled, command_lists, None),)
            with_graph = plain if is_copy else (partial(launch_lane, compiled, command_lists, graphs),)
            copy = lone_copy(compiled, actions) if is_copy and compiled.copies_host else None
            if copy is not None:
                self.flight = copy_flight(compiled, command_lists, copy)
                ways = [] if self.flight is None else [self.flight]
                plain = with_graph = (*ways, copy_launch(compiled, command_lists, copy), *plain)
        between = copy_between(compiled, actions) if is_copy and not compiled.copies_host else None
        if between is not None:
            self.flight = flight_between(compiled, command_lists, between)
            ways = [] if self.flight is None else [self.flight]
            plain = with_graph = (*ways, launch_between(compiled, command_lists, between), *plain)
        if self._is_simple and between is None:
            with_graph = (idle_graph_launch(compiled, command_lists, graphs), *with_graph)
        if captured is not None:
            self.flight = self._captured_flight(command_lists, captured)
        elif (
            self.flight is None and graphs.own is None and not (compiled.reports or (compiled.copies_host and is_copy))
        ):
            self.flight = compiled_flight(compiled, command_lists, graphs)
        if self.flight is not None and self.flight not in plain:
            with_graph = self.flight, *with_graph
            plain = (self.flight, *plain) if captured is not None else plain
        self._again = plain, with_graph
        self._launch_graph = partial(launch_graph, compiled, command_lists, graphs)
        self._submit_run = partial(submit_run, compiled, command_lists)

    def _captured_flight(self, command_lists: CommandListPool, captured: LaunchGraph) -> Strategy | None:
        """Return the launch of a captured graph by the compiled reader; None if it is left to `launch_captured`."""
        (key,) = self.compiled.keys
        return (
            captured_flight(self.compiled, command_lists, captured, key.stream)
            if isinstance(key, OwnedStream)
            else None
        )


def _captured_graph(compiled: CompiledPlan, only: Command) -> LaunchGraph | None:
    """Return the captured graph that the only command of a plan launches; None if the plan must be run as others."""
    if not isinstance(only.a, LaunchGraph) or compiled.blocking or compiled.plan.lanes[only.lane].device != 0:
        return None
    return only.a if only.a.frozen.cannot_fail else None


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
