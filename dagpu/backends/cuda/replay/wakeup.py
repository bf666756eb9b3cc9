"""Waking whoever sleeps until a run is over: a pipe whose writing end, the run's *bell*, the driver closes then."""

import os
from collections.abc import Sequence
from threading import Lock
from typing import Protocol

from dagpu.backends.cuda.driver.driver_protocol import RawEvent, RawStream
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.cuda.resources.watchdog import identity
from dagpu.common.errors import DeviceError


class WakingRun(Protocol):
    """The part of a run that wakes the task sleeping on it. Its fields are those of `CudaRun`."""

    lock: Lock
    bell: int | None
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
    def played(self) -> bool: ...
    @property
    def finishing(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    def done(self) -> bool: ...
    def lost_in(self, error: BaseException) -> bool: ...


def open_bell(run: WakingRun) -> int | None:
    """The reading end of a pipe whose other end is closed when the run is over; None where there are many already."""
    if run.devices[0].watch.crowded:
        return None
    try:
        read, write = os.pipe()
    except OSError:  # the process has too many files open
        return None
    pipe = identity(write)
    assert pipe is not None
    with run.lock:
        finishing, played = run.finishing, run.played
        if not finishing:
            run.bell = write
    if finishing:
        os.close(write)
        return read
    try:
        if played:
            with run.devices[0].gpu.current():
                ring(run)
    except BaseException:
        os.close(read)
        raise
    run.devices[0].watch.add(run, write, pipe)
    return read


def ring(run: WakingRun) -> None:
    """Have the driver close the pipe when all lanes are at their end: in the stream itself where the run has one to
    itself, else on a stream that waits for its ends alone. Nothing more of the run will be submitted."""
    device = run.devices[0]
    with run.lock:  # of the driver and the run's end one closes it
        bell, run.bell = run.bell, None
        events = [event for _, event in run.ends]
    if bell is None:
        return
    try:
        if len(run.streams) == 1 and len(run.streams[0].users) == 1:
            device.gpu.close_when_reached(run.raw[0], bell)
            return
        notifier = device.streams.take_notifier()
        for event in events:
            notifier.raw.wait_for_event(event)
        device.gpu.close_when_reached(notifier.raw, bell)
    except BaseException as error:
        os.close(bell)  # whoever sleeps on it waits for the run himself
        if not isinstance(error, DeviceError):
            raise
        run.lost_in(error)
        return
    with run.lock:
        late = run.finished
        if not late:
            run.notifier = notifier
    if late:
        device.streams.give_back_notifier(notifier)
