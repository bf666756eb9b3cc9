"""The ways to start a run that is one copy: from or to the host, within a device, or between two. See `starts` for what
all ways have in common."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dagpu.backends.cuda.commands.buffers import CompiledPlan, bases_of, take_result
from dagpu.backends.cuda.commands.command_list import Command, CommandListPool, Kind
from dagpu.backends.cuda.commands.transfers import CopyIn, CopyOut
from dagpu.backends.cuda.kernels.fill_and_copy import Memcpy
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.backends.cuda.replay.starts import (
    LONG_SPIN,
    interrupted,
    is_idle_within,
    lose_device,
    rows_of_outputs,
    wait_for_work,
)
from dagpu.backends.cuda.replay.submit import follow_launch
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.host.measuring import current_recorder
from dagpu.backends.protocol import COMPLETED, Run, Strategy
from dagpu.common.compiled import READER
from dagpu.common.errors import DeviceError


def lone_copy(compiled: CompiledPlan, actions: Sequence[Command]) -> CopyIn | CopyOut | None:
    """Return the copy from or to the host that is all of a plan of one lane; None if the plan has another command, or
    memory that the copy does not fill or read."""
    copy = actions[0].a if len(actions) == 1 else None
    if not isinstance(copy, CopyIn | CopyOut) or not copy.nbytes or compiled.arenas or compiled.gathers:
        return None
    return copy if all(buffer == copy.there.buffer for buffer, _, _, _ in compiled.outputs) else None


def copy_between(compiled: CompiledPlan, actions: Sequence[Command]) -> Memcpy | None:
    """Return the copy within a device, or between two, that is all of a plan in streams of dagpu's. None if it has
    another command, or memory that the copy does not fill or read."""
    copies = [each.a for each in actions if each.kind is not Kind.SWITCH]
    copy = copies[0] if len(copies) == 1 else None
    if not isinstance(copy, Memcpy) or not copy.nbytes or compiled.arenas or compiled.gathers or compiled.reports:
        return None
    if not all(isinstance(lane.key, int) for lane in compiled.plan.lanes):  # other work of the stream's is in its order
        return None
    bases = {base for _, base in compiled.inputs} | {base for _, base, _, _ in compiled.outputs}
    return copy if bases == {copy.out_base, copy.source_base} else None


def copy_launch(compiled: CompiledPlan, command_lists: CommandListPool, copy: CopyIn | CopyOut) -> Strategy:
    """Return the function that makes a run of this copy, which is all of a plan, for a caller that waits.

    It does what `launch_lane` does, without the objects that commands of any kind may need: to make those takes as long
    as a copy of 64 KiB. It leaves to that a copy which is not prompt, and thus takes longer anyway or is rare.
    """
    device, buffer, offset = compiled.devices[0], copy.there.buffer, copy.place.offset
    gpu, exchange, retired, streams = device.gpu, device.exchange, device.retired, device.streams
    nbytes = sum([size for _, _, _, size in compiled.outputs])

    def launch_copy(memory: list[Any], spin: float) -> Run | None:
        """Make a run of the copy, if that is prompt and nothing is in its way."""
        if not spin or device.lost is not None or retired.gone or exchange.arrivals or current_recorder() is not None:
            return None
        if not copy.is_prompt(memory, device):
            return None
        stream: CudaStream | None = None
        launched = False
        with gpu.entered():
            try:
                block = memory[buffer]
                if block is None:
                    memory[buffer] = block = take_result(compiled, 0, nbytes)
                stream = streams.take_exclusive()
                raw = stream.raw
                copy.submit(memory, block.address + offset, device, raw)
                launched = True
                if not raw.query():
                    wait_for_work(raw, spin)
            except BaseException as error:
                if stream is None:
                    lose_device(compiled, error)
                    raise
                return _failed(compiled, command_lists, stream, memory, error, launched=launched)
        streams.exclusive.append(stream)  # outside of the `try`: whatever interrupts this, it is not given back twice
        return COMPLETED

    return launch_copy


def copy_flight(compiled: CompiledPlan, command_lists: CommandListPool, copy: CopyIn | CopyOut) -> Strategy | None:
    """Return the function of the compiled reader that makes such a run as `copy_launch` does. None if there is no
    compiled reader, or its functions do not reach the device."""
    device, buffer, offset = compiled.devices[0], copy.there.buffer, copy.place.offset
    if READER is None or not device.gpu.is_native:
        return None
    gpu, streams = device.gpu, device.streams
    is_in, nbytes = isinstance(copy, CopyIn), copy.nbytes
    result = sum([size for _, _, _, size in compiled.outputs])

    def prepare(memory: list[Any]) -> tuple[int, int, int] | None:
        """Give a run its memory, and return what the driver copies. Return None if `copy_launch` has to tell."""
        try:
            host = copy.host_address(memory, device)
        except DeviceError:  # it fails the copy, and not the call
            return None
        if not host:
            return None
        block = memory[buffer]
        if block is None:
            try:
                memory[buffer] = block = take_result(compiled, 0, result)
            except BaseException as error:
                lose_device(compiled, error)
                raise
        return (block.address + offset, host, nbytes) if is_in else (host, block.address + offset, nbytes)

    functions = (
        None, None, prepare, streams.take_exclusive, None, None, refusal(compiled, command_lists),
        lambda: gpu.needs_context,
    )  # fmt: skip
    flight: Strategy = READER.Flight(
        compiled.devices, [], streams.exclusive, None, functions, 0, [], [], [], False, None, None,
        1 if is_in else 2,
    )  # fmt: skip
    return flight


def launch_between(compiled: CompiledPlan, command_lists: CommandListPool, copy: Memcpy) -> Strategy:
    """Return the function that makes a run of this copy within a device, or between two, which is all of a plan. It is
    one call of the driver, on a stream of the plan's first device."""
    device = compiled.devices[0]
    gpu, streams = device.gpu, device.streams
    follow = follow_copy(compiled, command_lists)

    def launch_copy(memory: list[Any], spin: float) -> Run | None:
        """Make a run of the copy, if nothing is in its way."""
        for each in compiled.devices:
            if each.lost is not None or each.retired.gone or each.exchange.arrivals:
                return None
        if current_recorder() is not None:
            return None
        stream: CudaStream | None = None
        launched = False
        with gpu.entered():
            try:
                _take_outputs(compiled, memory)
                bases = bases_of(compiled, memory)
                stream = streams.take_exclusive()
                to, source = bases[copy.out_base] + copy.out_offset, bases[copy.source_base] + copy.source_offset
                gpu.copy(to, source, copy.nbytes, stream.raw)
                launched = True
                is_over = bool(spin) and _ends(stream, spin, blocks=len(compiled.devices) == 1)
            except BaseException as error:
                if stream is None:
                    lose_device(compiled, error)
                    raise
                return _failed(compiled, command_lists, stream, memory, error, launched=launched)
        if is_over:
            streams.exclusive.append(stream)
            return COMPLETED
        return follow(None, stream, memory, None)

    return launch_copy


def _ends(stream: CudaStream, spin: float, *, blocks: bool) -> bool:
    """Poll a stream for so many seconds, then wait until it is idle, if the thread `blocks`. Return true if it is."""
    if blocks:
        wait_for_work(stream.raw, spin)
        return True
    return is_idle_within(stream.raw, max(spin, LONG_SPIN))


def _take_outputs(compiled: CompiledPlan, memory: list[Any]) -> None:
    """Give a run memory for the results that have none.

    Raises:
        OutOfMemoryError: there is too little memory.
    """
    for buffer, _, number, nbytes in compiled.outputs:
        if memory[buffer] is None:
            memory[buffer] = take_result(compiled, number, nbytes)


Follow: TypeAlias = Callable[[None, CudaStream, list[Any], None], CudaRun]
"""Follows a copy that has been launched: see `compiled_flight`."""


def follow_copy(compiled: CompiledPlan, command_lists: CommandListPool) -> Follow:
    """Return the function that follows a copy which has been launched in a stream."""

    def follow(graph: None, stream: CudaStream, memory: list[Any], arenas: None) -> CudaRun:
        run = CudaRun(compiled, command_lists, exclusive=stream, kept=memory)
        if len(compiled.devices) == 1:
            run.poll_stream(stream)
        else:
            with compiled.devices[0].gpu.current():
                run.end_by_events()
                follow_launch(run, stream)
        return run

    return follow


def flight_between(compiled: CompiledPlan, command_lists: CommandListPool, copy: Memcpy) -> Strategy | None:
    """Return the function of the compiled reader that makes a run of this copy within a device, or between two, as
    `launch_between` does. None if there is no compiled reader, or its functions do not reach the device."""
    gpu, streams = compiled.devices[0].gpu, compiled.devices[0].streams
    if READER is None or not gpu.is_native:
        return None

    def take_memory(memory: list[Any]) -> None:
        try:
            _take_outputs(compiled, memory)
        except BaseException as error:
            lose_device(compiled, error)
            raise

    functions = (
        None, None, take_memory, streams.take_exclusive, None, follow_copy(compiled, command_lists),
        refusal(compiled, command_lists), lambda: gpu.needs_context,
    )  # fmt: skip
    flight: Strategy = READER.Flight(
        compiled.devices, [], streams.exclusive, None, functions, compiled.bases, compiled.inputs,
        rows_of_outputs(compiled), [], False, None, None,
        (copy.out_base, copy.source_base, copy.out_offset, copy.source_offset, copy.nbytes),
    )  # fmt: skip
    return flight


Refuse: TypeAlias = Callable[[None, CudaStream, list[Any], None, int, str, bool, int], CudaRun]
"""Goes on after the driver has refused a call of a copy, by the compiled reader: see `compiled_flight`."""


def refusal(compiled: CompiledPlan, command_lists: CommandListPool) -> Refuse:
    """Return the function that goes on after the driver has refused a call of a copy."""
    gpu = compiled.devices[0].gpu

    def refuse(
        graph: None,
        stream: CudaStream,
        memory: list[Any],
        arenas: None,
        code: int,
        call: str,
        launched: bool,
        node: int,
    ) -> CudaRun:
        return _failed(compiled, command_lists, stream, memory, gpu.refused(call, code), launched=bool(launched))

    return refuse


def _failed(
    compiled: CompiledPlan,
    command_lists: CommandListPool,
    stream: CudaStream,
    memory: list[Any],
    error: BaseException,
    *,
    launched: bool,
) -> CudaRun:
    """Go on after an error of a copy, or of the wait after it if it is `launched`."""
    run = CudaRun(compiled, command_lists, exclusive=stream, kept=memory)
    with run.devices[0].gpu.current():
        if launched:
            run.poll_stream(stream)
            return interrupted(run, error)
        run.end_by_events()
        run.failed(command_lists.encoded.actions[0], error)
        follow_launch(run, stream)  # with an event after all that has been submitted
        return run
