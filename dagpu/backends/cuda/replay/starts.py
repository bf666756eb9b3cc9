"""The ways to start a run of a plan. `dagpu.backends.cuda.executable` chooses those of a plan, and tries them in order.

Each takes the memory and the `spin` of a run last, and starts it and polls it for at most `spin` seconds, 0 for a
caller that does not wait. It returns None, and has no effect but on outputs without memory, if the run must be started
in another way now. Each raises:
    OutOfMemoryError: there is too little memory; nothing has been submitted.
    DeviceLostError: a device is lost.
"""

import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Final

from dagpu.backends.cuda.commands.buffers import CompiledPlan, RunMemory, allocate_blocks
from dagpu.backends.cuda.commands.command_list import (
    CommandList,
    CommandListPool,
    Kind,
    describe_instruction,
    instructions_of,
)
from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD, LAUNCH, OUT_OF_MEMORY, RawEvent, RawStream
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.instances import GraphInstances, LaunchGraph
from dagpu.backends.cuda.replay.cuda_run import CudaRun, EventTiming
from dagpu.backends.cuda.replay.submit import (
    follow_launch,
    submit_commands,
    submit_on_threads,
    submit_rest_on_thread,
)
from dagpu.backends.cuda.resources.cuda_device import lose_devices
from dagpu.backends.cuda.resources.pools import Pool, rounded
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.host.measuring import current_recorder, recorder_variable
from dagpu.backends.host.plan_devices import streams_by_device
from dagpu.backends.protocol import COMPLETED, Run, Strategy
from dagpu.common.compiled import READER, teach
from dagpu.common.errors import CaptureError, DagpuError, DeviceError, DeviceLostError, ForeignError

# ---- an idle graph ----------------------------------------------------------------------------------------------


def idle_graph_launch(  # noqa: C901 - of its inner function
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances
) -> Strategy:
    """Return the function that launches an idle graph of a plan on one device, if there is one. Any context may be
    current, or none. It makes no object for a run that completes at once.

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
    needs_context: bool | None = None

    def launch_idle_graph(  # noqa: C901 - its branches are cheap, and a call for each of them would not be
        memory: list[Any], spin: float
    ) -> Run | None:
        """Launch an idle graph, if there is one."""
        nonlocal needs_context
        if not graphs.idle:
            return None
        if needs_context is None:
            needs_context = device.gpu.needs_context  # once there is a graph: to find that out takes a launch
        if needs_context:
            return None
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
            run = CudaRun(compiled, command_lists, graphs, graph, stream, (memory, arenas, buffers))
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
        run = CudaRun(compiled, command_lists, graphs, graph, stream, (memory, arenas, buffers))
        run.poll_stream(stream)
        return run

    return launch_idle_graph


def compiled_flight(compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances) -> Strategy | None:
    """Return the function of the compiled reader that launches an idle graph of kernels, as that of `idle_graph_launch`
    does. None if there is no compiled reader, or the plan copies arrays of the host."""
    if READER is None or compiled.copies_host:
        return None
    device, encoded = compiled.devices[0], command_lists.encoded
    gpu, streams, is_alone = device.gpu, device.streams, len(compiled.devices) == 1

    def take_memory(graph: GraphExec, memory: list[Any], bases: list[int]) -> list[object]:
        try:
            return _take_memory(compiled, graphs, graph, memory, bases)
        except BaseException as error:
            lose_device(compiled, error)
            raise

    def run_of(graph: GraphExec, stream: CudaStream, memory: list[Any], arenas: list[object] | None) -> CudaRun:
        return CudaRun(compiled, command_lists, graphs, graph, stream, (memory, arenas))

    def follow(graph: GraphExec, stream: CudaStream, memory: list[Any], arenas: list[object] | None) -> CudaRun:
        run = run_of(graph, stream, memory, arenas)
        if is_alone:
            run.poll_stream(stream)
        else:
            with gpu.current():
                _follow_graph(run, stream)
        return run

    def refuse(
        graph: GraphExec,
        stream: CudaStream,
        memory: list[Any],
        arenas: list[object] | None,
        code: int,
        call: str,
        launched: bool,
        node: int,
    ) -> CudaRun | None:
        if node >= 0:
            graph.refuse_node(node)
        run = run_of(graph, stream, memory, arenas)
        return _failed(run, graph, stream, gpu.refused(call, code), launched=bool(launched))

    functions = (
        partial(graphs.borrow, compiled, encoded), graphs.give_back, take_memory, streams.take_exclusive,
        GraphExec.describe_nodes, follow, refuse, lambda: gpu.needs_context,
    )  # fmt: skip
    flight: Strategy = READER.Flight(
        compiled.devices, graphs.idle, streams.exclusive, graphs, functions, compiled.bases, compiled.inputs,
        rows_of_outputs(compiled), [(number,) for number, _ in compiled.arenas], bool(compiled.gathers), None, None,
    )  # fmt: skip
    return flight


def rows_of_outputs(compiled: CompiledPlan) -> list[tuple[int, int, Pool, int, int]]:
    """Return what the compiled reader needs to take memory for each result: buffer, base, pool, bytes, and the size of
    the block."""
    return [
        (buffer, base, compiled.devices[number].memory, nbytes, rounded(nbytes))
        for buffer, base, number, nbytes in compiled.outputs
    ]


def captured_flight(
    compiled: CompiledPlan, command_lists: CommandListPool, launch: LaunchGraph, stream: CudaStream
) -> Strategy | None:
    """Return the function of the compiled reader that launches the captured graph that is all of a plan, as
    `launch_captured` does, in this stream. None if there is no compiled reader, or it cannot launch the graph alone."""
    executable = launch.frozen.executable
    if READER is None or executable is None:
        return None
    device = compiled.devices[0]
    gpu, streams = device.gpu, device.streams

    def run_of(memory: list[Any]) -> CudaRun:
        run = CudaRun(compiled, command_lists)
        run.end_by_events(RunMemory(compiled, memory))
        run.buffers.launched.append(launch)
        return run

    def follow(end: RawEvent, stream: CudaStream, memory: list[Any], arenas: None) -> CudaRun:
        run = run_of(memory)
        run.is_launch = True
        with gpu.current():
            stream.count_entries(1)
            follow_launch(run, stream, end)
        return run

    def refuse(
        end: RawEvent,
        stream: CudaStream,
        memory: list[Any],
        arenas: None,
        code: int,
        call: str,
        launched: bool,
        node: int,
    ) -> CudaRun:
        run = run_of(memory)
        with gpu.current():
            streams.give_back(end)
            run.failed(command_lists.encoded.actions[0], gpu.refused(call, code))
            follow_launch(run, stream)  # with an event after all that has been submitted
        return run

    functions = (None, streams.give_back, None, streams.take_event, None, follow, refuse, lambda: gpu.needs_context)
    flight: Strategy = READER.Flight(
        compiled.devices, [], [], None, functions, 0, [], [], [], False, executable, stream
    )  # fmt: skip
    return flight


def _failed(
    run: CudaRun, graph: GraphExec, stream: CudaStream, error: BaseException, *, launched: bool
) -> CudaRun | None:
    """Go on after an error of the launch of a graph, or of the wait after it if the graph is `launched`. Return None if
    the run must be started in another way: a body of the user's cannot be captured."""
    device, graphs = run.devices[0], run.graphs
    assert graphs is not None
    if isinstance(error, CaptureError):
        if run.exclusive is not None:
            device.streams.give_back_exclusive(stream)
        graphs.refuse_capture(graph, error)
        return None
    with device.gpu.current():
        if not launched:
            run.end_by_events()
            run.graph_failed(graph, error)
            follow_launch(run, stream)
            return run
        _follow_graph(run, stream)
        return interrupted(run, error)


def _follow_graph(run: CudaRun, stream: CudaStream, buffers: RunMemory | None = None) -> None:
    """Follow a run whose graph has been launched in this stream: by the stream if that is enough, else by an event.
    `buffers` is its memory, if it has reports. The first device's context must be current."""
    # Other work may follow in the stream, reports have to be read, or every device has to know the run.
    if run.exclusive is None or run.compiled.reports or len(run.devices) > 1:
        run.end_by_events(buffers)
        follow_launch(run, stream)
    else:
        run.poll_stream(stream)


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
    for (number, _), block in zip(compiled.arenas, kept, strict=True):
        bases[number] = block.address
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


# ---- a captured graph -------------------------------------------------------------------------------------------


def launch_captured(
    compiled: CompiledPlan, command_lists: CommandListPool, launch: LaunchGraph, memory: list[object], spin: float
) -> Run | None:
    """Launch the captured graph that is all of a plan, in the user's stream. With `spin`, wait for its end."""
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
        run = CudaRun(compiled, command_lists)
        run.end_by_events(RunMemory(compiled, memory))
        run.buffers.launched.append(launch)
        if failed is None:
            run.is_launch = True
            follow_launch(run, stream, end)
            return run
        device.streams.give_back(end)
        run.failed(command_lists.encoded.actions[0], failed)
        follow_launch(run, stream)  # with an event after all that has been submitted
        return run


def wait_for_work(work: RawStream | RawEvent, seconds: float) -> None:
    """Wait until the work of a stream or an event is complete: poll it for this number of seconds, then block."""
    if not is_idle_within(work, seconds):
        work.synchronize()


LONG_SPIN: Final = 2e-3
"""Seconds for which work of several devices is polled at least, before Python waits for it in turns: a thread that
blocks sees no device that is lost, and after so long a wait the turns cost little."""


def is_idle_within(work: RawStream | RawEvent, seconds: float) -> bool:
    """Poll the work of a stream or an event for this number of seconds. Return True if it is complete."""
    deadline = time.perf_counter() + seconds
    while not work.query():
        if time.perf_counter() >= deadline:
            return False
    return True


# ---- one stream -------------------------------------------------------------------------------------------------


def launch_lane(
    compiled: CompiledPlan,
    command_lists: CommandListPool,
    graphs: GraphInstances | None,
    memory: list[object],
    spin: float,
) -> Run | None:
    """Run a short plan command by command in an idle stream of dagpu's, for a caller that waits, and wait for its end:
    poll for `spin` seconds, then block. With `graphs`, only where the run would be one of them and none can be lent.

    Such a run is over when its stream is idle, so nothing but the stream is polled. A run that fails, or whose wait is
    interrupted, goes on as a `CudaRun`.
    """
    if not spin or (graphs is not None and not graphs.are_left_out):
        return None
    device = compiled.devices[0]
    if device.lost is not None or device.retired.gone or current_recorder() is not None or device.exchange.arrivals:
        return None
    buffers = RunMemory(compiled, memory)
    buffers.may_wait = True
    streams = device.streams
    end: RawEvent | None = None
    stream: CudaStream | None = None
    commands = command_lists.borrow()
    number = 0  # of the next command
    complete = False
    with device.gpu.current():
        try:
            if compiled.allocates:
                buffers.allocate(commands.parameters.bases)
            commands.parameters.relocate(buffers.bases, memory)
            end = streams.take_event()
            stream = streams.take_exclusive()
            raw = stream.raw
            launches = commands.launches
            launches.set_streams([raw])
            for kind, _, _, a in commands.encoded.actions:
                if kind is not Kind.LAUNCH:
                    a(buffers, device, raw)
                elif code := launches.each[a]():
                    raise device.gpu.refused(LAUNCH, code)
                number += 1
            wait_for_work(raw, spin)
            complete = True
        except BaseException as error:
            if end is None or stream is None:
                command_lists.give_back(commands)
                if end is not None:
                    streams.give_back(end)
                lose_device(compiled, error)
                raise
            run = CudaRun(compiled, command_lists, exclusive=stream)
            run.end_by_events(buffers)
            return _followed(run, commands, stream, end, number, error)
    if complete:  # outside of the `try`: whatever interrupts this, nothing is given back twice
        command_lists.give_back(commands)
        streams.give_back(end)
        streams.exclusive.append(stream)
    return COMPLETED


def _followed(
    run: CudaRun, commands: CommandList, stream: CudaStream, end: RawEvent, number: int, error: BaseException
) -> CudaRun:
    """Return the run after an error of the command with this number, or of the wait after the last one. The commands
    that do not depend on the failure are submitted. The context must be current."""
    device, actions = run.devices[0], commands.encoded.actions
    run.command_list, run.actions, run.unmarked = commands, actions, commands.encoded.unmarked
    run.streams, run.raw, run.ends = [stream], [stream.raw], [(0, end)]
    stream.users.add(run)
    device.live.add(run)
    waited = number == len(actions)
    if not waited:
        number += not run.failed(actions[number], error)
    submit_commands(run, number, may_block=True)
    return interrupted(run, error) if waited else run


def interrupted(run: CudaRun, error: BaseException) -> CudaRun:
    """Return a run whose wait has ended with this error of a lost device. Raise any other error once the run is over:
    it is an interrupt, and no caller has the run to wait for it."""
    if not run.mark_lost(error, needs=0):
        run.wait()
        raise error
    return run


# ---- any graph --------------------------------------------------------------------------------------------------


def launch_any_graph(
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances, memory: list[object], spin: float
) -> Run | None:
    """Launch a plan that can only be a graph, if a graph can be launched now. Any context may be current."""
    device = compiled.devices[0]
    device.refuse_if_lost()
    if device.exchange.arrivals or device.retired.gone:
        device.settle()
    if len(compiled.devices) > 1 or device.exchange.arrivals or not (graphs.idle or graphs.can_lend):
        return None
    with device.gpu.current():
        return launch_graph(compiled, command_lists, graphs, memory, spin)


def launch_graph(
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances, memory: list[object], spin: float
) -> Run | None:
    """Launch a plan as one graph, an idle one or a new one. The first device's context must be current.

    A graph is not used if each instruction is measured, or if a copy from or to the host would delay the submitting
    thread: with a command list, other work starts meanwhile.
    """
    if graphs.bodies:
        graphs.check_required()
    if not (graphs.idle or graphs.can_lend) or current_recorder() is not None:
        return None
    buffers = RunMemory(compiled, memory)
    if compiled.copies_host and not buffers.submits_quickly():
        return None
    streams, own = compiled.devices[0].streams, graphs.own
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
    run = CudaRun(compiled, command_lists, graphs, graph, stream if own is None else None, (buffers,))
    try:
        graph.update_nodes(buffers.bases, memory).launch(stream.raw)
    except BaseException as error:
        return _failed(run, graph, stream, error, launched=False)
    if spin and own is None and len(compiled.devices) > 1 and not compiled.reports:
        try:
            complete = is_idle_within(stream.raw, spin)
        except BaseException as error:
            return _failed(run, graph, stream, error, launched=True)
        if complete:  # no other device has waited for the run, which takes as long as a short run
            graphs.give_back(graph)
            streams.give_back_exclusive(stream)
            return COMPLETED
    _follow_graph(run, stream, buffers)
    return _polled(run, spin)


def _polled(run: CudaRun, spin: float) -> CudaRun:
    """Poll a run for at most `spin` seconds, and return it. If that is interrupted, cancel the run and wait for it,
    since no caller has it. The context must be current."""
    try:
        if spin and run.submitted:
            run.poll_in_context(spin)
    except BaseException:
        run.cancel()
        run.wait()
        raise
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


# ---- a command list ---------------------------------------------------------------------------------------------


def submit_run(compiled: CompiledPlan, command_lists: CommandListPool, memory: list[object], spin: float) -> Run:
    """Submit a run as a command list: the way that is left to every run. The first device's context must be current."""
    run = CudaRun(compiled, command_lists)
    run.end_by_events(RunMemory(compiled, memory))
    _submit(run, command_lists, may_wait=spin > 0)
    return _polled(run, spin)


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


teach(
    cuda_stream=CudaStream, inside=EXIT_GUARD.inside, exit_guard=EXIT_GUARD,
    recorder=recorder_variable, long_spin=LONG_SPIN, completed=COMPLETED,
)  # fmt: skip
