"""Wakes a task that sleeps until a run is over: the driver closes the write end of a pipe then."""

import os
from collections.abc import Sequence
from threading import Lock
from typing import Protocol

from dagpu.backends.cuda.driver.driver_protocol import RawEvent, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.cuda.resources.watchdog import SleptOn, identity
from dagpu.common.errors import DeviceError


class WakingRun(Protocol):
    """The part of a run that wakes the task sleeping on it. Its fields are those of `CudaRun`."""

    lock: Lock
    wakeup_fd: int | None
    notifier: CudaStream | None

    @property
    def devices(self) -> Sequence[CudaDevice]: ...
    @property
    def streams(self) -> Sequence[CudaStream]: ...
    @property
    def raw(self) -> Sequence[RawStream]: ...
    @property
    def ends(self) -> Sequence[tuple[int, RawEvent]]: ...
    @property
    def submitted(self) -> bool: ...
    @property
    def finishing(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    def done(self) -> bool: ...
    def mark_lost(self, error: BaseException) -> bool: ...


def open_pipe_after(run: SleptOn, device: CudaDevice, stream: RawStream) -> int | None:
    """Return the read end of a pipe whose write end the driver closes when all work in a stream is complete; None if
    there are too many pipes. The run is over before, unless the device is lost. The context must be current.

    Raises:
        DeviceError: the driver refuses.
    """
    if device.watchdog.pipes_exhausted:
        return None
    try:
        read, write = os.pipe()
    except OSError:  # the process has too many files open
        return None
    try:
        pipe = identity(write)
        assert pipe is not None
        try:
            device.gpu.close_when_reached(stream, write)
        except DeviceError:
            os.close(write)
            raise
        device.watchdog.add(run, write, pipe)
    except BaseException:
        os.close(read)
        raise
    return read


def open_wakeup_pipe(run: WakingRun) -> int | None:
    """Return the read end of a pipe whose write end is closed when the run is over; None if there are too many
    pipes."""
    if run.devices[0].watchdog.pipes_exhausted:
        return None
    try:
        read, write = os.pipe()
    except OSError:  # the process has too many files open
        return None
    pipe = identity(write)
    assert pipe is not None
    with run.lock:
        finishing, submitted = run.finishing, run.submitted
        if not finishing:
            run.wakeup_fd = write
    if finishing:
        os.close(write)
        return read
    try:
        if submitted:
            with run.devices[0].gpu.current():
                signal_when_done(run)
    except BaseException:
        os.close(read)
        raise
    run.devices[0].watchdog.add(run, write, pipe)
    return read


def signal_when_done(run: WakingRun) -> None:
    """Have the driver close the pipe when all lanes have ended. Everything must be submitted.

    The driver closes it in the run's stream if the run alone uses one, else in a stream that waits for all ends.
    """
    device = run.devices[0]
    with run.lock:  # either the driver or the run's end closes it
        wakeup_fd, run.wakeup_fd = run.wakeup_fd, None
        events = [event for _, event in run.ends]
    if wakeup_fd is None:
        return
    try:
        if len(run.streams) == 1 and len(run.streams[0].users) == 1:
            device.gpu.close_when_reached(run.raw[0], wakeup_fd)
            return
        notifier = device.streams.take_exclusive()
        for event in events:
            notifier.raw.wait_for_event(event)
        device.gpu.close_when_reached(notifier.raw, wakeup_fd)
    except BaseException as error:
        os.close(wakeup_fd)  # this wakes the task, which waits for the run itself
        if not isinstance(error, DeviceError):
            raise
        run.mark_lost(error)
        return
    with run.lock:
        late = run.finished
        if not late:
            run.notifier = notifier
    if late:
        device.streams.give_back_exclusive(notifier)
