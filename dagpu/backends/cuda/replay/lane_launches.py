"""Runs of short plans with one lane, command by command in an idle stream, while the caller waits.

Such a run is over when its stream is idle, so nothing but the stream is polled. A run that fails, or whose wait is
interrupted, goes on as a `CudaRun`, which dagpu.backends.cuda.replay.start makes for all other runs.
"""

from dagpu.backends.common.measuring import current_recorder
from dagpu.backends.cuda.commands.buffers import RunMemory
from dagpu.backends.cuda.commands.command_list import CommandList, CommandListPool, Kind
from dagpu.backends.cuda.commands.compiled_plan import CompiledPlan
from dagpu.backends.cuda.driver.driver_protocol import LAUNCH, RawEvent
from dagpu.backends.cuda.replay.cuda_run import CudaRun
from dagpu.backends.cuda.replay.graph_launches import lose_device, no_graph_borrowed, wait_for_work
from dagpu.backends.cuda.replay.submit import submit_commands
from dagpu.backends.cuda.resources.streams import CudaStream
from dagpu.backends.protocol import COMPLETED, Run


def launch_lane(
    compiled: CompiledPlan, command_lists: CommandListPool, memory: list[object], spin: float
) -> Run | None:
    """Run a plan whose commands all go to one stream of dagpu's, submitted by the thread that starts the run, and wait
    for its end: poll for `spin` seconds, then block.

    Return None if the run must be started in another way; it has no effect then.

    Raises:
        OutOfMemoryError: there is too little memory; nothing has been submitted.
        DeviceLostError: the device is lost.
    """
    device = compiled.devices[0]
    if device.lost is not None or device.retired.gone or current_recorder() is not None or device.exchange.arrivals:
        return None
    buffers = RunMemory(compiled, memory)
    if compiled.copies_host and not buffers.submits_quickly():
        return None
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
            run = CudaRun(compiled, buffers, command_lists.give_back, no_graph_borrowed)
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
    run.streams, run.raw, run.ends, run.exclusive = [stream], [stream.raw], [(0, end)], stream
    stream.users.add(run)
    device.live.add(run)
    waited = number == len(actions)
    if not waited:
        number += not run.failed(actions[number], error)
    submit_commands(run, number, may_block=True)
    if waited and not run.mark_lost(error, needs=0):
        run.wait()  # an interrupt: no caller has the run to wait for it
        raise error
    return run
