"""Small plans that call no code of the user's, as the thread that waits for a run executes them.

To hand a run to a worker, and to wake up at its end, takes as long as NumPy takes for a megabyte. Without that, most of
the time of a small run is that between the calls of NumPy. So each instruction is made ready once, as a function of the
run's memory, and a run makes no object of its own unless an instruction fails.
"""

from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Final, final

import numpy as np

from dagpu.backends.host.arrays import ArenaRange, HostMemory
from dagpu.backends.host.host_run import Batch, HostRun
from dagpu.backends.host.numpy_execution import execute, generated_call
from dagpu.backends.protocol import COMPLETED, Bindings, Run
from dagpu.plans.plan import Allocate, Execute, Plan, Release
from dagpu.plans.program import GraphLaunch, HostCall, Instruction, Launch

PROMPT_BYTES: Final = 1 << 24
"""The bytes that all instructions of a run read and write, up to which the thread that waits for it executes it: a few
milliseconds of work."""

BESIDE_BYTES: Final = 1 << 17
"""The same for a plan of several lanes, which workers would execute beside each other: work that takes less time than
to hand the lanes to them."""


_quiet: Final[list[Context]] = []
"""Contexts in which NumPy ignores floating-point errors, and in which no thread is. To enter one takes a twentieth of
the time of `np.errstate`, which sets the same context variable."""


def _quiet_context() -> Context:
    """Return a context in which NumPy ignores floating-point errors, and which nothing else uses."""
    try:
        return _quiet.pop()
    except IndexError:
        made = Context()
        made.run(np.seterr, all="ignore")
        return made


@final
class PromptPlan:
    """A plan that `is_prompt`, ready to be executed by the thread that waits. No lane waits for another one, since the
    plan's order of steps is one in which they may be executed."""

    __slots__ = ("_calls", "_plan", "_ranges", "_released", "_steps")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = [number for number, step in enumerate(plan.steps) if type(step) is Execute]
        """For each call, the number of its step."""
        self._calls = [_call_of(step.instruction) for step in plan.steps if type(step) is Execute]
        self._ranges = [
            (step.buffer, plan.buffers[step.buffer].device, plan.offsets[step.buffer], plan.buffers[step.buffer].nbytes)
            for step in plan.steps
            if type(step) is Allocate and plan.offsets[step.buffer] >= 0
        ]
        """For each buffer in an arena, its number, its device, its offset and its size."""
        self._released = [step.buffer for step in plan.steps if type(step) is Release]

    def run(self, bindings: Bindings, arenas: Sequence[HostMemory]) -> Run:
        """Run the plan to its end."""
        memory = bindings.memory
        for buffer, device, offset, nbytes in self._ranges:
            memory[buffer] = ArenaRange(arenas[device], offset, nbytes)
        context = _quiet_context()
        failed = context.run(self._execute, memory)
        _quiet.append(context)
        if failed is not None:
            return self._failed(bindings, arenas, *failed)
        for buffer in self._released:
            memory[buffer] = None
        return COMPLETED

    def _execute(self, memory: list[object]) -> tuple[int, BaseException] | None:
        """Execute the steps up to one that fails. Return its number and its error; None if all are done."""
        done = 0
        try:
            for call in self._calls:
                call(memory)
                done += 1
        except BaseException as error:  # as on a worker: it is a failure of the run, which goes on
            return self._steps[done], error
        return None

    def _failed(self, bindings: Bindings, arenas: Sequence[HostMemory], number: int, error: BaseException) -> Run:
        """Return a run in which a step failed, after the steps that do not depend on it."""
        run = HostRun(self._plan, bindings, arenas, 1)
        step = self._plan.steps[number]
        assert type(step) is Execute
        run.fail(step.instruction, error)
        Batch(run, self._plan.steps[number + 1 :]).run()
        return run


def is_prompt(plan: Plan) -> bool:
    """Return True if the thread that waits for a run may execute it: its lanes are no streams of the user's, and it
    calls no code of the user's and is over soon."""
    instructions = [step.instruction for step in plan.steps if type(step) is Execute]
    return (
        all(isinstance(lane.key, int) for lane in plan.lanes)
        and all(map(_calls_no_user, instructions))
        and sum(plan.buffers[number].nbytes for each in instructions for number in (*each.reads, *each.writes))
        <= (PROMPT_BYTES if len(plan.lanes) == 1 else BESIDE_BYTES)
    )


def _calls_no_user(instruction: Instruction) -> bool:
    """Return True if an instruction calls no function of the user's."""
    if isinstance(instruction, Launch):
        return instruction.kernel.host.generated is not None
    return not isinstance(instruction, HostCall | GraphLaunch)


def _call_of(instruction: Instruction) -> Callable[[list[object]], None]:
    """Return the function that executes an instruction on the memory of a run."""
    return generated_call(instruction) if isinstance(instruction, Launch) else partial(execute, instruction)
