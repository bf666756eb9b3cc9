"""Launches of whole plans as one graph: of an idle graph, of a captured graph, and of a graph that the run prepares.

Each returns the run, or None where the run must be started in another way, by `dagpu.backends.cuda.replay.start`.
"""

import time
from typing import Any, Protocol

from dagpu.backends.common.measuring import current_recorder
from dagpu.backends.cuda.commands.buffers import RunMemory, allocate_blocks
from dagpu.backends.cuda.commands.command_list import CommandListPool
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.error_context import describe_instruction, instructions_of
from dagpu.backends.cuda.driver.driver_errors import OUT_OF_MEMORY
from dagpu.backends.cuda.driver.driver_protocol import RawEvent, RawStream
from dagpu.backends.cuda.driver.exit_guard import EXIT_GUARD
from dagpu.backends.cuda.graphs.captured import LaunchGraph
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.backends.cuda.replay.graph_run import GraphRun
from dagpu.backends.cuda.replay.submit import follow_launch
from dagpu.backends.cuda.resources.cuda_device import lose_devices
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import COMPLETED, Run
from dagpu.common.errors import CaptureError, DagpuError, DeviceError, DeviceLostError, ForeignError


class LaunchIdleGraph(Protocol):
    """Launches an idle graph of a plan with this memory. Waits for its end if `spin` is not 0.

    It does what `launch_graph` does, without an object for the run if that completes at once. Any context may be
    current, or none. It returns None if the run must be started in another way; it has no effect then.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: the device is lost.
    """

    def __call__(self, memory: list[Any], spin: float, /) -> Run | None: ...


def idle_graph_launch(  # noqa: C901 - of its inner function
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances
) -> LaunchIdleGraph:
    """Return the function that launches an idle graph of a plan on one device.

    This function is most of what a call of a pipeline costs. So it makes no context current, whose two calls take as
    long as the launch: the driver needs none for calls that name a stream and a graph. What it reads of the plan is in
    the cells of a closure.
    """
    device = compiled.devices[0]
    exchange, retired, streams = device.exchange, device.retired, device.streams
    inputs, outputs, has_arenas, gathers = compiled.inputs, compiled.outputs, bool(compiled.arenas), compiled.gathers
    no_bases = [0] * compiled.bases
    copies_host = compiled.copies_host
    enter, leave = EXIT_GUARD.inside.append, EXIT_GUARD.inside.pop
    if device.gpu.needs_context:
        return lambda memory, spin: None

    def launch_idle_graph(  # noqa: C901 - its branches are cheap, and a call for each of them would not be
        memory: list[Any], spin: float
    ) -> Run | None:
        """See `LaunchIdleGraph`."""
        is_lost, must_stop = device.lost is not None, EXIT_GUARD.begun
        if is_lost or must_stop or retired.gone or exchange.arrivals or current_recorder() is not None:
            return None
        bases, is_missing = no_bases.copy(), bool(gathers)
        for buffer, base in inputs:
            bases[base] = memory[buffer].address
        for buffer, base, _, _ in outputs:
            block = memory[buffer]
            if block is None:
                is_missing = True
            else:
                bases[base] = block.address
        buffers: RunMemory | None = None
        if copies_host:
            buffers = RunMemory(compiled, memory, bases)
            if not buffers.submits_quickly():
                return None
        arenas: list[object] = []
        graph: GraphExec | None = None
        stream: CudaStream | None = None
        launched = complete = False
        enter(None)
        try:
            graph = graphs.borrow_idle() or graphs.borrow(compiled, command_lists.encoded, bases)
            if graph is not None and graph.raw is not None and (buffers is None or _is_ready(graph, graphs, buffers)):
                kept = graph.arenas
                if is_missing or (has_arenas and not kept):
                    arenas = _take_memory(compiled, graphs, graph, memory, bases)
                elif has_arenas:
                    bases[0] = kept[0].address
                stream = streams.take_exclusive()
                graph.update_nodes(bases, memory).launch(stream.raw)
                launched = True
                if spin:
                    if not stream.raw.query():
                        wait_for_work(stream.raw, spin)
                    complete = True
        except BaseException as error:
            if graph is None or stream is None:
                _give_up(compiled, graphs, graph, error)
                raise
            run = GraphRun(compiled, command_lists, graphs, graph, memory, stream, arenas, buffers)
            return _failed(run, graph, stream, error, launched=launched)
        finally:
            leave()
        if graph is None or stream is None:
            if graph is not None:
                graphs.give_back(graph)
            return None
        if complete:  # outside of the `try`: whatever interrupts this, neither is given back twice
            graphs.idle.append(graph)
            streams.exclusive.append(stream)
            return COMPLETED
        run = GraphRun(compiled, command_lists, graphs, graph, memory, stream, arenas, buffers)
        device.live.add(run)
        return run

    return launch_idle_graph


def _failed(
    run: GraphRun, graph: GraphExec, stream: CudaStream, error: BaseException, *, launched: bool
) -> CudaRun | None:
    """Go on after an error of the launch of a graph, or of the wait after it if the graph is `launched`. Return None if
    the run must be started in another way: a body of the user's cannot be captured."""
    device = run.devices[0]
    if isinstance(error, CaptureError):
        device.streams.give_back_exclusive(stream)
        run.graphs.refuse_capture(graph, error)
        return None
    with device.gpu.current():
        followed = run.follow(None if launched else error)
        if launched and not followed.mark_lost(error, needs=0):
            followed.wait()  # an interrupt: no caller has the run to wait for it
            raise error
        return followed


def _take_memory(
    compiled: CompiledPlan, graphs: GraphInstances, graph: GraphExec, memory: list[Any], bases: list[int]
) -> list[object]:
    """Give a run memory for its outputs and its temporaries, and set the bases. Return the memory of the temporaries:
    what the graph keeps, or memory of the run.

    Raises:
        OutOfMemoryError: there is too little memory.
    """
    arenas = _kept_arenas(compiled, graphs, graph, bases)
    allocate_blocks(compiled, memory, bases, graph.parameters.bases, arenas)
    return arenas


def _kept_arenas(compiled: CompiledPlan, graphs: GraphInstances, graph: GraphExec, bases: list[int]) -> list[object]:
    """Return the memory of temporaries that a graph keeps, and set their bases. It is empty if the graph keeps none, or
    if there is too little memory for them now: then they are allocated for this run, which may make room."""
    if not graphs.keeps_arenas:
        return []
    try:
        kept = graph.arenas or graph.keep_arenas(compiled.arenas)
    except DeviceError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return []
    bases[0] = kept[0].address  # there is one arena, since all memory is on one device
    return list(kept)


def _give_up(compiled: CompiledPlan, graphs: GraphInstances, graph: GraphExec | None, error: BaseException) -> None:
    """Return the graph, if any, of a run that cannot begin because of this error."""
    if graph is not None:
        graphs.give_back(graph)
    lose_device(compiled, error)


def lose_device(compiled: CompiledPlan, error: BaseException) -> None:
    """Mark the device as lost, and end every run on it, if this error of a run that cannot begin says so."""
    if isinstance(error, DeviceLostError):
        lose_devices(compiled.devices, error, [describe_instruction(each) for each in instructions_of(compiled.plan)])


def launch_captured(
    compiled: CompiledPlan, command_lists: CommandListPool, launch: LaunchGraph, memory: list[object], spin: float
) -> Run | None:
    """Launch the captured graph that is all of a plan, in the user's stream. Wait for its end if `spin` is not 0.

    Return None if the run must be started in another way; it has no effect then.
    """
    device = compiled.devices[0]
    if device.retired.gone or current_recorder() is not None:
        return None
    for used in compiled.devices:
        if used.lost is not None:
            return None
    with device.gpu.current():
        stream = device.streams.take(compiled.keys)[0]
        try:
            if stream.congested():
                return None
            end = device.streams.take_event()
        except DeviceLostError as error:
            lose_device(compiled, error)
            raise
        failed: BaseException | None = None
        complete = False
        try:
            launch.frozen.launch(stream.raw)
            end.record(stream.raw)
            stream.count_entries(1)
            if spin:
                wait_for_work(end, spin)
                complete = True
        except BaseException as error:
            failed = error
        if complete:  # outside of the `try`: whatever interrupts this, the event is not given back twice
            device.streams.give_back(end)
            return COMPLETED
        run = CudaRun(compiled, RunMemory(compiled, memory), command_lists.give_back, no_graph_borrowed)
        run.buffers.launched.append(launch)
        if failed is None:
            follow_launch(run, stream, end)
            return run
        device.streams.give_back(end)
        run.failed(command_lists.encoded.actions[0], failed)
        follow_launch(run, stream)  # with an event after all that has been submitted
        return run


def no_graph_borrowed(_graph: GraphExec) -> None:
    """Do nothing: a run that launches a captured graph has borrowed none."""


def wait_for_work(work: RawStream | RawEvent, seconds: float) -> None:
    """Wait until the work of a stream or an event is complete: poll it for this number of seconds, then block."""
    deadline = time.perf_counter() + seconds
    while not work.query():
        if time.perf_counter() >= deadline:
            work.synchronize()
            return


def launch_graph(
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances, memory: list[object], spin: float
) -> GraphRun | CudaRun | None:
    """Launch a plan with this memory as one graph, and poll it for at most `spin` seconds. Return None if the run must
    be submitted as a command list; it has no effect then.

    A graph is not used if each instruction is measured, or if a copy from or to the host would delay the submitting
    thread: with a command list, other work starts meanwhile. The context must be current.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: the device is lost.
    """
    if current_recorder() is not None:
        return None
    buffers = RunMemory(compiled, memory)
    if compiled.copies_host and not buffers.submits_quickly():
        return None
    device, streams, own = compiled.devices[0], compiled.devices[0].streams, graphs.own
    if own is not None and streams.take((own,))[0].congested():
        return None
    graph = graphs.borrow(compiled, command_lists.encoded, buffers.bases)
    if graph is None:
        return None
    try:
        if compiled.allocates:
            buffers.kept_alive += _kept_arenas(compiled, graphs, graph, buffers.bases)
            buffers.allocate(graph.parameters.bases)
        if (compiled.copies_host or graph.raw is None) and not _is_ready(graph, graphs, buffers):
            graphs.give_back(graph)
            return None
        stream = streams.take_exclusive() if own is None else streams.take((own,))[0]
    except BaseException as error:
        _give_up(compiled, graphs, graph, error)
        raise
    run = GraphRun(compiled, command_lists, graphs, graph, memory, stream, buffers=buffers)
    try:
        graph.update_nodes(buffers.bases, memory).launch(stream.raw)
    except CaptureError as refused:
        if own is None:
            streams.give_back_exclusive(stream)
        graphs.refuse_capture(graph, refused)
        return None
    except BaseException as error:
        return run.follow(error)
    # Other work may follow in the stream, reports have to be read, or every device has to know the run.
    if own is not None or compiled.reports or len(compiled.devices) > 1:
        return run.follow()
    device.live.add(run)  # now that an idle stream means that the run is over
    if spin:
        run.poll_first(spin)
    return run


def _is_ready(graph: GraphExec, graphs: GraphInstances, buffers: RunMemory) -> bool:
    """Allocate the page-locked memory of a run through a graph, and instantiate the graph if it is new. Return False if
    that fails: through a command list, only the instructions that depend on the failure fail.

    Raises:
        DeviceLostError: the device is lost.
        ForeignError: a user's body does not do what its declaration says.
    """
    try:
        buffers.allocate_host_memory(graph.parameters.bases, graph.staged_arrays)
        return graph.raw is not None or graphs.instantiated(
            graph, lambda new: new.update_nodes(buffers.bases, buffers.bound)
        )
    except (CaptureError, DeviceLostError, ForeignError):
        raise
    except DagpuError:
        return False
