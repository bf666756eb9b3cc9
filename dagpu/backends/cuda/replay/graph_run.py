"""One run of a plan that is one CUDA graph, in a stream that no other run uses.

Such a run is over when its stream is idle. So it has no events and no lanes, and while its caller polls it, it consists
of one small object. A run that is waited for in any other way, or that fails, goes on as a `CudaRun`.
"""

import time
from collections.abc import Callable, Sequence
from typing import final

from dagpu.backends.cuda.commands.buffers import CompiledPlan, RunMemory
from dagpu.backends.cuda.commands.command_list import CommandListPool
from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD, RawEvent
from dagpu.backends.cuda.graphs.graph_exec import GraphExec
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.replay.cuda_run import NAP, CudaRun, open_pipe_after
from dagpu.backends.cuda.replay.submit import follow_launch
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import Failure
from dagpu.common.errors import DeviceError, DeviceLostError


@final
class GraphRun:
    """A run that is one graph launch in a stream of its own. Implements `dagpu.backends.protocol.Run`.

    It cannot be cancelled: the graph has been launched as a whole. From its launch it is in `device.live`, until one
    thread *claims* it: the thread that finishes it, or makes it go on as a `CudaRun`.
    """

    __slots__ = (
        "__weakref__", "_arenas", "_buffers", "_cancelled", "_command_lists", "_compiled", "_device", "_end",
        "_followed", "_graph", "_memory", "_stream", "finished", "graphs",
    )  # fmt: skip

    cancellable: bool = False

    def __init__(
        self,
        compiled: CompiledPlan,
        command_lists: CommandListPool,
        graphs: GraphInstances,
        graph: GraphExec,
        memory: list[object],
        stream: CudaStream,
        arenas: list[object] | None = None,
        buffers: RunMemory | None = None,
    ) -> None:
        """`arenas` is what the run has beside `memory`, its inputs and outputs; `buffers` has all of it, where a
        `RunMemory` has allocated it."""
        self._compiled = compiled
        self._device = compiled.devices[0]
        self._command_lists = command_lists
        self.graphs = graphs
        self._graph = graph
        self._memory = memory
        self._arenas = arenas
        self._buffers = buffers
        self._stream = stream
        self._followed: CudaRun | None = None
        """The run as a `CudaRun`; None while it is polled by its stream."""
        self._end: RawEvent | None = None
        """The event after the launch, once a task sleeps on the run. The driver closes a pipe after it."""
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
            return self.look() or self._poll_in_context(seconds)

    def succeeds(self, seconds: float) -> bool:
        """Poll the run as `poll` does. Return True if it is over without a failure."""
        gpu = self._device.gpu
        if self._followed is None and not (self.finished or gpu.needs_context or EXIT_GUARD.begun):
            EXIT_GUARD.inside.append(None)  # the first look, without the calls of `poll` and `look`
            try:
                if (self._end or self._stream.raw).query():
                    self._finish()
            except BaseException as error:
                with gpu.current():
                    if not self._is_lost(error):
                        raise
            finally:
                EXIT_GUARD.inside.pop()
        is_over = self.finished or self.poll(seconds)
        followed = self._followed
        return is_over and (followed is None or followed.succeeds(0.0))

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
            idle = (self._end or self._stream.raw).query()
        except BaseException as error:
            if not self._is_lost(error):
                raise
            return self.finished
        if idle:
            self._finish()
        return self.finished

    def _finish(self) -> None:
        """Return the graph, the memory and the stream of the run, which is over, unless another thread does."""
        device = self._device
        try:
            device.live.remove(self)  # as `_claim` does, without a call
        except KeyError:
            return
        try:
            self.graphs.idle.append(self._graph)  # as `give_back` does: it is neither new nor broken
            if self._buffers is not None:
                self._buffers.release()
            self._memory, self._arenas = [], None
            if self._end is not None:
                device.streams.give_back(self._end)
            device.streams.exclusive.append(self._stream)
        finally:  # whatever interrupts this, other threads must not wait for ever
            self.finished = True

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
                else:
                    self._finish()  # no other run uses the stream
        return True

    def _is_lost(self, error: BaseException) -> bool:
        """Return True if the error of a look or a wait says that the device is lost, and end the run then. The context
        must be current."""
        followed = self._follow()
        if followed is None or not followed.mark_lost(error, needs=0):
            return False
        self.finished = followed.finished
        return True

    def readable(self) -> int | None:
        """Return a descriptor that becomes readable when the run is over; see `CudaRun.readable`."""
        if self._followed is None and not self.finished:
            with self._device.gpu.current():
                if self._claim():
                    return self._sleep()
        followed = self._follow_now()
        return None if followed is None else followed.readable()

    def woken(self) -> None:
        """Finish the run without a look, because its pipe is closed: by the watchdog if the device is lost, else by the
        driver after the event. The driver calls no host function in a context with an error."""
        if self._end is not None and self._device.lost is None:
            self._finish()

    def _sleep(self) -> int | None:
        """Open a pipe for a task that sleeps on the run, which this thread has claimed; see `readable`. The context
        must be current.

        An event ends the run then, and the pipe is closed after that. So the task that wakes finds the run over.
        """
        device, stream = self._device, self._stream
        try:
            if self._end is None:
                end = device.streams.take_event()
                end.record(stream.raw)
                self._end = end
            readable = open_pipe_after(self, device, stream.raw)
        except DeviceError:  # a `CudaRun` records its own event, and reports what the driver says
            return self.follow().readable()
        except BaseException:
            device.live.add(self)
            raise
        device.live.add(self)
        if device.lost is not None:  # that was noticed meanwhile
            self.lose(device.lost)
        return readable

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` when the run is over; see `CudaRun.when_done`."""
        followed = self._follow_now()
        if followed is None:
            wake()
        else:
            followed.when_done(wake)

    def cancel(self) -> None:
        """Do nothing to the graph: it has been launched as a whole."""
        self._cancelled = True
        followed = self._followed
        if followed is not None:
            followed.cancel()

    def failures(self) -> list[Failure]:
        """Return the failures of the run. It must be over."""
        if not self.finished:
            self.wait()  # it is over, but not polled yet, or another thread is polling it
        followed = self._followed
        return [] if followed is None else followed.failures()

    def spoilt(self) -> frozenset[int] | None:
        """Return the buffers that were not completed; None if that is not known. The run must be over."""
        followed = self._followed
        return frozenset() if followed is None else followed.spoilt()

    @property
    def devices(self) -> Sequence[CudaDevice]:
        """The device of the run, for the watchdog."""
        return self._compiled.devices

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

    # ---- as a CudaRun ------------------------------------------------------------------------------------------

    def _claim(self) -> bool:
        """Return True for the one thread that may finish the run, or make it go on as a `CudaRun`."""
        try:
            self._device.live.remove(self)  # atomic
        except KeyError:
            return False
        return True

    def _follow_now(self) -> CudaRun | None:
        """Return the run as a `CudaRun`; None if it is over. Any context may be current."""
        if self._followed is None and not self.finished:
            with self._device.gpu.current():
                return self._follow()
        return self._followed

    def _follow(self) -> CudaRun | None:
        """Make the run go on as a `CudaRun` and return that; None if it is over. The context must be current."""
        while not self._claim():
            if self._followed is not None or self.finished:
                return self._followed
            time.sleep(NAP)  # another thread has claimed the run, and is about to set one of these or to give it back
        return self.follow()

    def follow(self, error: BaseException | None = None) -> CudaRun:
        """Go on as a `CudaRun`, which fails with `error` if the launch raised it. Another thread must not have
        claimed the run. The context must be current."""
        buffers = self._buffers or RunMemory(self._compiled, self._memory)
        buffers.kept_alive += self._arenas or ()
        self._memory, self._arenas = [], None
        run = CudaRun(self._compiled, buffers, self._command_lists.give_back, self.graphs.give_back)
        if self._cancelled:
            run.cancel()
        run.graph = self._graph
        run.exclusive = self._stream if self.graphs.own is None else None
        if error is not None:
            run.graph_failed(self._graph, error)
        follow_launch(run, self._stream, self._end)
        self._followed = run
        return run
