"""Beginning a run: its memory, its streams, and whether it is launched as a graph or played from a script."""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Final

from dagpu.backends.common.lanes import streams_by_device
from dagpu.backends.common.measuring import recording
from dagpu.backends.cuda.commands.command_list import ScriptPool
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.replay.cuda_replay import CudaReplay
from dagpu.backends.cuda.replay.submit import hand_over, play, play_graph, play_on_threads
from dagpu.backends.cuda.replay.timing import EventTiming
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import Bindings
from dagpu.common.errors import DagpuError, DeviceLostError


def start(
    compiled: CompiledPlan, scripts: ScriptPool, graphs: GraphInstances, bindings: Bindings, spin: float, graph: bool
) -> CudaReplay:
    """Take memory, streams and events, submit, and look for the end for at most `spin` seconds.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: a device was lost before.
    """
    devices = compiled.devices
    for device in devices:
        if device.lost is not None:
            device.refuse_if_lost()
    with devices[0].gpu.current():
        run = CudaReplay(compiled, bindings, scripts.give_back, graphs.give_back)
        try:
            if devices[0].retired:
                devices[0].destroy_retired()
            run.held.look()
            _take_streams(run)
            if not (graph and _take_graph(run, graphs, scripts)):
                _take_script(run, scripts)
            _take_ends(run)
        except BaseException as error:
            run.let_go_of_graph()
            run.let_go_of_script()
            if run.timing is not None:
                run.timing.collect()  # nothing, but whoever measures waits for it
            run.lost_in(error)
            raise
        for stream in run.streams:  # from here on the run has to end
            stream.users.add(run)
        for device in devices:
            device.live.add(run)
        _submit(run)
        if spin and run.played:
            try:
                run.look_for(spin)
            except BaseException:  # an interrupt: nobody else could wait for the run
                run.cancel()
                run.wait()
                raise
    return run


def _submit(run: CudaReplay) -> None:
    if run.graph is None and (run.compiled.blocking or not run.held.prompt()):
        run.begin_elsewhere(play_on_threads)
    elif run.congested():
        run.begin_elsewhere(partial(hand_over, begin=0))
    elif run.graph is not None:
        play_graph(run)
    else:
        play(run, 0)


def _take_streams(run: CudaReplay) -> None:
    """A stream for each lane; if somebody measures the run, what it takes for that."""
    compiled, devices, lanes = run.compiled, run.devices, run.compiled.plan.lanes
    if len(devices) == 1:
        run.streams = devices[0].streams.take(compiled.keys)
    else:

        def take(number: int, keys: Sequence[Hashable]) -> Sequence[CudaStream]:
            with devices[number].gpu.current():
                return devices[number].streams.take(keys)

        run.streams = streams_by_device(lanes, len(devices), take)
    measured = recording(compiled.plan, run.streams)
    if measured is not None:
        run.timing = EventTiming(measured, devices, [lane.device for lane in lanes])


def _take_graph(run: CudaReplay, graphs: GraphInstances, scripts: ScriptPool) -> bool:
    """A graph for the run, with memory where it had some before, and one stream in the place of all.

    Not where each instruction is measured, nor where a copy from or to the host would hold up whoever submits it: then
    what can be under way meanwhile had better be.
    """
    held = run.held
    if not graphs.left or run.timing is not None or not run.streams or not held.prompt():
        return False
    run.graph = graph = graphs.borrow(run.compiled, scripts.written, held.bases)
    if graph is None:
        return False
    held.take(graph.bases)
    try:
        held.take_host_memory(graph.bases)
        ready = graph.raw is not None or graphs.instantiated(graph, lambda new: new.aim(held.bases, held.bound))
    except DeviceLostError:
        raise
    except DagpuError:
        ready = False  # as a script the run fails where it has to, and no further
    if not ready:
        run.let_go_of_graph()
        return False
    run.streams = [run.streams[graphs.lane]]
    run.puts = _ONE
    return True


_ONE: Final = (1,)
"""What a graph puts into its stream."""


def _take_script(run: CudaReplay, scripts: ScriptPool) -> None:
    """A script with this run's addresses, and memory unless it was taken for a graph that came to nothing."""
    run.script = script = scripts.borrow()
    if not run.held.taken:
        run.held.take(script.parameters.bases)
    script.parameters.aim(run.held.bases, run.held.bound)
    run.actions, run.puts = script.written.actions, script.written.puts
    if run.timing is not None:
        run.actions, run.puts = run.timing.actions(run.actions, script.launch), run.timing.puts


def _take_ends(run: CudaReplay) -> None:
    """The streams as the driver knows them, and an event for each lane's end."""
    run.raw = [stream.raw for stream in run.streams]
    if run.script is not None:
        run.script.launches.aim(run.raw)
    if len(run.devices) == 1:
        streams = run.devices[0].streams
        run.ends = [(0, streams.event()) for _ in run.streams]
    else:
        run.ends = [(lane.device, run.devices[lane.device].new_event()) for lane in run.compiled.plan.lanes]
