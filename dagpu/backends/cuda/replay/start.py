"""Starts a run: takes memory and streams, chooses between a graph and a command list, and submits."""

from collections.abc import Hashable, Sequence
from functools import partial

from dagpu.backends.common.lanes import streams_by_device
from dagpu.backends.common.measuring import current_recorder
from dagpu.backends.cuda.commands.buffers import RunMemory
from dagpu.backends.cuda.commands.command_list import CommandListPool
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.backends.cuda.replay.graph_launches import launch_graph
from dagpu.backends.cuda.replay.graph_run import GraphRun
from dagpu.backends.cuda.replay.submit import submit_commands, submit_on_threads, submit_rest_on_thread
from dagpu.backends.cuda.replay.timing import EventTiming
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import Bindings


def start(
    compiled: CompiledPlan,
    command_lists: CommandListPool,
    graphs: GraphInstances,
    bindings: Bindings,
    spin: float,
    graph: bool,
) -> CudaRun | GraphRun:
    """Take memory, streams and events, submit the run, and poll it for at most `spin` seconds.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: a device is lost.
    """
    devices = compiled.devices
    for device in devices:
        if device.lost is not None:
            device.refuse_if_lost()
    with devices[0].gpu.current():
        if graph and graphs.bodies:
            graphs.check_required()
        if graph and (graphs.idle or graphs.can_lend):
            launched = launch_graph(compiled, command_lists, graphs, bindings.memory, spin)
            if launched is not None:
                return launched
        buffers = RunMemory(compiled, bindings.memory)
        run = CudaRun(compiled, buffers, command_lists.give_back, graphs.give_back)
        _submit(run, command_lists, may_wait=spin > 0)
        if spin and run.submitted:
            try:
                run.poll_in_context(spin)
            except BaseException:  # an interrupt: no caller has the run to wait for it
                run.cancel()
                run.wait()
                raise
    return run


def start_graph(
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances, memory: list[object], spin: float
) -> CudaRun | GraphRun | None:
    """Start a run of a plan that can only be a graph, and poll it for at most `spin` seconds. Return None, without any
    effect, if no graph can be launched now.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: a device is lost.
    """
    device = compiled.devices[0]
    device.refuse_if_lost()
    if device.exchange.arrivals or device.retired.gone:
        device.settle()
    if len(compiled.devices) > 1 or device.exchange.arrivals or not (graphs.idle or graphs.can_lend):
        return None
    with device.gpu.current():
        return launch_graph(compiled, command_lists, graphs, memory, spin)


def _submit(run: CudaRun, command_lists: CommandListPool, may_wait: bool) -> None:
    """Submit a run as a command list. With `may_wait`, this thread waits for the run anyway, and runs no event loop."""
    try:
        _take_streams(run)
        _take_command_list(run, command_lists)
        _take_ends(run)
        congested = run.congested()  # it may find that the device is lost
    except BaseException as error:
        run.return_command_list()
        if run.timing is not None:
            run.timing.collect()  # no times, but the recording waits for this run
        run.mark_lost(error)
        raise
    for stream in run.streams:  # from here on the run has to end
        stream.users.add(run)
    for device in run.devices:
        device.live.add(run)
    if run.compiled.blocking or not run.buffers.submits_quickly():
        run.submit_elsewhere(submit_on_threads)
    elif congested or (run.compiled.calls_user and not may_wait):
        run.submit_elsewhere(partial(submit_rest_on_thread, begin=0))
    else:
        submit_commands(run, 0)


def _take_streams(run: CudaRun) -> None:
    """Take a stream for each lane. If the run is measured, take its timing events too."""
    compiled, devices, lanes = run.compiled, run.devices, run.compiled.plan.lanes
    if len(devices) == 1:
        run.streams = devices[0].streams.take(compiled.keys)
    else:

        def take(number: int, keys: Sequence[Hashable]) -> Sequence[CudaStream]:
            with devices[number].gpu.current():
                return devices[number].streams.take(keys)

        run.streams = streams_by_device(lanes, len(devices), take)
    recorder = current_recorder()
    measured = None if recorder is None else recorder.begin(compiled.plan, run.streams)
    if measured is not None:
        run.timing = EventTiming(measured, devices, [lane.device for lane in lanes])


def _take_command_list(run: CudaRun, command_lists: CommandListPool) -> None:
    """Take a command list and memory, and write this run's addresses into the command list."""
    run.command_list = command_list = command_lists.borrow()
    run.buffers.allocate(command_list.parameters.bases)
    command_list.parameters.relocate(run.buffers.bases, run.buffers.bound)
    run.actions, run.unmarked = command_list.encoded.actions, command_list.encoded.unmarked
    if run.timing is not None:
        run.actions, run.unmarked = run.timing.actions(run.actions, command_list.launch), run.timing.unmarked


def _take_ends(run: CudaRun) -> None:
    """Take an event for each lane's end, and pass the raw streams to the launches."""
    run.raw = [stream.raw for stream in run.streams]
    if run.command_list is not None:
        run.command_list.launches.set_streams(run.raw)
    for device in run.devices:
        if device.exchange.arrivals:
            device.exchange.delay_run(run.buffers.bound, run.raw)
    if len(run.devices) == 1:
        streams = run.devices[0].streams
        run.ends = [(0, streams.take_event()) for _ in run.streams]
    else:
        run.ends = [(lane.device, run.devices[lane.device].new_event()) for lane in run.compiled.plan.lanes]
