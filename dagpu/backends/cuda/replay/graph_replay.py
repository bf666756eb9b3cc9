"""One run of a plan that is one CUDA graph, in a stream that no other run uses.

Such a run is over when its stream is idle. So it has no events and no lanes, and while its caller polls it, it consists
of one small object. A run that is waited for in any other way, or that fails, goes on as a `CudaReplay`.
"""

import time
from collections.abc import Callable
from typing import Any, final

from dagpu.backends.common.measuring import current_recorder
from dagpu.backends.cuda.commands.buffers import RunMemory
from dagpu.backends.cuda.commands.command_list import CommandListPool
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.commands.error_context import describe_instruction, instructions_of
from dagpu.backends.cuda.driver.driver_protocol import RawEvent, RawStream
from dagpu.backends.cuda.graphs.captured import LaunchGraph
from dagpu.backends.cuda.graphs.instances import GraphExec, GraphInstances
from dagpu.backends.cuda.replay.cuda_replay import NAP, CudaReplay
from dagpu.backends.cuda.replay.submit import follow_launch
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import COMPLETED, Failure, Replay
from dagpu.common.errors import DagpuError, DeviceLostError


@final
class GraphReplay:
    """A run that is one graph launch in a stream of its own. Implements `dagpu.backends.protocol.Replay`.

    From its launch it is in `device.live`, until one thread *claims* it: the thread that finishes it, or makes it go on
    as a `CudaReplay`.
    """

    __slots__ = (
        "__weakref__", "_buffers", "_cancelled", "_command_lists", "_compiled", "_device", "_followed", "_graph",
        "_graphs", "_memory", "_stream", "finished",
    )  # fmt: skip

    def __init__(
        self,
        compiled: CompiledPlan,
        command_lists: CommandListPool,
        graphs: GraphInstances,
        graph: GraphExec,
        memory: list[object],
        stream: CudaStream,
        buffers: RunMemory | None = None,
    ) -> None:
        """`buffers` are those of the run if it has memory beside `memory`, its inputs."""
        self._compiled = compiled
        self._device = compiled.devices[0]
        self._command_lists = command_lists
        self._graphs = graphs
        self._graph = graph
        self._memory = memory
        self._buffers = buffers
        self._stream = stream
        self._followed: CudaReplay | None = None
        """The run as a `CudaReplay`; None while it is polled by its stream."""
        self._cancelled = False
        self.finished = False
        """True once the run is over and its graph, memory and stream have been returned."""

    # ---- waiting --------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Poll the run, and return True if it is over."""
        if self.finished:
            return True
        with self._device.gpu.current():
            return self.look()

    def poll(self, seconds: float) -> bool:
        """Poll the run for at most this number of seconds. Return True if it is over."""
        if self.finished:
            return True
        with self._device.gpu.current():
            return self._poll_in_context(seconds)

    def poll_first(self, seconds: float) -> None:
        """Poll the run for at most this number of seconds, right after its launch. If that is interrupted, wait for the
        run, since no caller has it. The context must be current."""
        try:
            if not self.look():
                self._poll_in_context(seconds)
        except BaseException:
            self.wait()
            raise

    def _poll_in_context(self, seconds: float) -> bool:
        deadline = time.perf_counter() + seconds
        while not self.look():
            if time.perf_counter() >= deadline:
                return self.finished
        return True

    def look(self) -> bool:
        """Poll the run once, and return True if it is over. The context must be current."""
        followed = self._followed
        if followed is not None:
            return followed.done()
        if self.finished:
            return True
        try:
            idle = self._stream.raw.query()
        except BaseException as error:
            if not self._is_lost(error):
                raise
            return self.finished
        if idle and self._claim():
            try:
                self._graphs.give_back(self._graph)
                if self._buffers is not None:
                    self._buffers.release()
                self._memory = []
                self._device.streams.give_back_exclusive(self._stream)
            finally:  # whatever interrupts this, other threads must not wait for ever
                self.finished = True
        return self.finished

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the run is over, at most `timeout` seconds. Return True if it is over. Other threads run
        meanwhile."""
        if timeout is not None:
            followed = self._follow_now()
            return followed is None or followed.wait(timeout)
        while not self.done():
            followed = self._followed
            if followed is not None:
                return followed.wait()
            with self._device.gpu.current():
                try:
                    self._stream.raw.synchronize()
                except BaseException as error:
                    if not self._is_lost(error):
                        raise
        return True

    def _is_lost(self, error: BaseException) -> bool:
        """Return True if the error of a look or a wait says that the device is lost, and end the run then. The context
        must be current."""
        followed = self._follow()
        if followed is None or not followed.mark_lost(error, required=True):
            return False
        self.finished = followed.finished
        return True

    def readable(self) -> int | None:
        """Return a descriptor that becomes readable when the run is over; see `CudaReplay.readable`."""
        followed = self._follow_now()
        return None if followed is None else followed.readable()

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is over; see `CudaReplay.when_done`."""
        followed = self._follow_now()
        if followed is None:
            wake()
        else:
            followed.when_done(wake)

    @property
    def cancellable(self) -> bool:
        """False: the graph has been launched as a whole."""
        return False

    def cancel(self) -> None:
        """Do nothing to the graph: it has been launched as a whole."""
        self._cancelled = True
        followed = self._followed
        if followed is not None:
            followed.cancel()

    def failures(self) -> list[Failure]:
        """Return the failures of the run. It must be over."""
        followed = self._followed
        return [] if followed is None else followed.failures()

    # ---- for its device -------------------------------------------------------------------------------------------

    @property
    def finishing(self) -> bool:
        """True once a thread has claimed the run."""
        return self not in self._device.live

    def lose(self, error: DeviceLostError) -> None:
        """End the run with this error, because its device is lost."""
        followed = self._follow_now()
        if followed is not None:
            followed.lose(error)

    # ---- as a CudaReplay ------------------------------------------------------------------------------------------

    def _claim(self) -> bool:
        """Return True for the one thread that may finish the run, or make it go on as a `CudaReplay`."""
        try:
            self._device.live.remove(self)  # atomic
        except KeyError:
            return False
        return True

    def _follow_now(self) -> CudaReplay | None:
        """Return the run as a `CudaReplay`; None if it is over. Any context may be current."""
        if self._followed is None and not self.finished:
            with self._device.gpu.current():
                return self._follow()
        return self._followed

    def _follow(self) -> CudaReplay | None:
        """Make the run go on as a `CudaReplay` and return that; None if it is over. The context must be current."""
        if self._claim():
            return self.follow()
        while self._followed is None and not self.finished:
            time.sleep(NAP)  # another thread has claimed the run, and is about to set one of these
        return self._followed

    def follow(self, error: BaseException | None = None) -> CudaReplay:
        """Go on as a `CudaReplay`, which fails with `error` if the launch raised it. Another thread must not have
        claimed the run. The context must be current."""
        buffers = self._buffers or RunMemory(self._compiled, self._memory)
        self._memory = []
        run = CudaReplay(self._compiled, buffers, self._command_lists.give_back, self._graphs.give_back)
        if self._cancelled:
            run.cancel()
        run.graph = self._graph
        run.exclusive = self._stream if self._graphs.own is None else None
        if error is not None:
            run.graph_failed(self._graph, error)
        follow_launch(run, self._stream)
        self._followed = run
        return run


def launch_idle_graph(
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances, memory: list[object], spin: float
) -> Replay | None:
    """Launch an idle graph of a plan whose inputs are all of its memory, and poll it for at most `spin` seconds.

    It does what `launch_graph` does, without an object for the run if that completes at once. Return None if the run
    must be started in another way; it has no effect then.
    """
    device = compiled.devices[0]
    if device.lost is not None or device.retired.gone or current_recorder() is not None:
        return None
    bases = [0] * compiled.bases
    for buffer, base in compiled.inputs:
        block: Any = memory[buffer]
        bases[base] = block.address
    streams = device.streams
    graph: GraphExec | None = None
    stream: CudaStream | None = None
    launched = complete = False
    with device.gpu.current():
        try:
            graph = graphs.borrow_idle() or graphs.borrow(compiled, command_lists.encoded, bases)
            if graph is not None and graph.raw is not None:
                stream = streams.take_exclusive()
                graph.update_nodes(bases, memory).launch(stream.raw)
                launched = True
                if spin:
                    complete = stream.raw.query() or _poll(stream.raw, spin)
        except BaseException as error:
            if graph is None or stream is None:
                _give_up(compiled, graphs, graph, error)
                raise
            run = GraphReplay(compiled, command_lists, graphs, graph, memory, stream)
            followed = run.follow(None if launched else error)
            if launched and not followed.mark_lost(error, required=True):
                followed.wait()  # an interrupt: no caller has the run to wait for it
                raise
            return followed
    if graph is None or stream is None:
        if graph is not None:
            graphs.give_back(graph)
        return None
    if complete:  # outside of the `try`: whatever interrupts this, neither is given back twice
        graphs.idle.append(graph)
        streams.exclusive.append(stream)
        return COMPLETED
    run = GraphReplay(compiled, command_lists, graphs, graph, memory, stream)
    device.live.add(run)
    return run


def _give_up(compiled: CompiledPlan, graphs: GraphInstances, graph: GraphExec | None, error: BaseException) -> None:
    """Return the graph, if any, of a run that cannot begin because of this error."""
    if graph is not None:
        graphs.give_back(graph)
    _lose_device(compiled, error)


def _lose_device(compiled: CompiledPlan, error: BaseException) -> None:
    """Mark the device as lost, and end every run on it, if this error of a run that cannot begin says so."""
    if isinstance(error, DeviceLostError):
        compiled.devices[0].lose(error, [describe_instruction(each) for each in instructions_of(compiled.plan)])


def launch_captured(
    compiled: CompiledPlan, command_lists: CommandListPool, launch: LaunchGraph, memory: list[object], spin: float
) -> Replay | None:
    """Launch the captured graph that is all of a plan, in the user's stream, and poll it for at most `spin` seconds.

    Return None if the run must be started in another way; it has no effect then.
    """
    device = compiled.devices[0]
    if device.lost is not None or device.retired.gone or current_recorder() is not None:
        return None
    with device.gpu.current():
        stream = device.streams.take(compiled.keys)[0]
        try:
            if stream.congested():
                return None
            end = device.streams.take_event()
        except DeviceLostError as error:
            _lose_device(compiled, error)
            raise
        failed: BaseException | None = None
        complete = False
        try:
            launch.frozen.launch(stream.raw)
            end.record(stream.raw)
            stream.count_entries(1)
            if spin:
                complete = end.query() or _poll(end, spin)
        except BaseException as error:
            failed = error
        if complete:  # outside of the `try`: whatever interrupts this, the event is not given back twice
            device.streams.give_back(end)
            return COMPLETED
        run = CudaReplay(compiled, RunMemory(compiled, memory), command_lists.give_back, _no_graph)
        run.buffers.launched.append(launch)
        if failed is None:
            follow_launch(run, stream, end)
            return run
        device.streams.give_back(end)
        run.failed(command_lists.encoded.actions[0], failed)
        follow_launch(run, stream)  # with an event after all that has been submitted
        return run


def _no_graph(_graph: GraphExec) -> None:
    """Do nothing: a run that launches a captured graph has borrowed none."""


def _poll(work: RawStream | RawEvent, seconds: float) -> bool:
    """Poll a stream or an event for at most this number of seconds. Return True if its work is complete."""
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        if work.query():
            return True
    return False


def launch_graph(
    compiled: CompiledPlan, command_lists: CommandListPool, graphs: GraphInstances, memory: list[object], spin: float
) -> GraphReplay | CudaReplay | None:
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
            buffers.allocate(graph.parameters.bases)
        if (compiled.copies_host or graph.raw is None) and not _is_ready(graph, graphs, buffers):
            graphs.give_back(graph)
            return None
        stream = streams.take_exclusive() if own is None else streams.take((own,))[0]
    except BaseException as error:
        _give_up(compiled, graphs, graph, error)
        raise
    run = GraphReplay(compiled, command_lists, graphs, graph, memory, stream, buffers)
    try:
        graph.update_nodes(buffers.bases, memory).launch(stream.raw)
    except BaseException as error:
        return run.follow(error)
    if own is not None or compiled.reports:  # other work may follow in the stream, or reports have to be read
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
    """
    try:
        buffers.allocate_host_memory(graph.parameters.bases)
        return graph.raw is not None or graphs.instantiated(
            graph, lambda new: new.update_nodes(buffers.bases, buffers.bound)
        )
    except DeviceLostError:
        raise
    except DagpuError:
        return False
