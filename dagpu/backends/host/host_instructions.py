"""What backends execute alike on the host: the call of a `host_map`, the source array of a `from_host`, and the launch
of a captured graph where there are no CUDA graphs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import numpy as np

from dagpu.backends.host.failures import Outcome
from dagpu.backends.protocol import Failure
from dagpu.common.containers import own_containers
from dagpu.common.errors import ShapeError
from dagpu.common.places import add_note, describe, passes_on
from dagpu.common.wrong_arguments import SUSPENDED, refuse_stop_iteration, refuse_suspended
from dagpu.ops.base import has_op, refuse_op
from dagpu.ops.initializers import fresh_seed
from dagpu.plans.plan import Plan
from dagpu.plans.program import Cell, CopyHtoD, HostCall, Items

# ---- host instructions


@passes_on
def call(host_call: HostCall, memory: list[object]) -> None:
    """Call the function of a `host_map` with its argument, and store the result in its cell.

    The function gets containers of its own, because a feed keeps the values of cells between its updates.
    """
    argument = own_containers(resolve(host_call.argument, memory))
    whose = f"the function of the host_map at {describe(host_call.origin)}"
    try:
        result = host_call.function(argument)
    except BaseException as error:
        blame(error, whose)
        raise
    if type(result) in SUSPENDED:
        refuse_suspended(result, whose, "host_map")
    if has_op(result):
        refuse_op(result, whose)
    memory[host_call.out.buffer] = result


def resolve(template: object, memory: list[object]) -> object:
    """Return the argument of a `HostCall`, with each `Cell` replaced by its value. Nesting may have any depth."""
    if isinstance(template, Cell):
        return memory[template.buffer]
    if not isinstance(template, Items):
        return template
    open_items: list[tuple[Any, list[object]]] = [(iter(template.items), [])]
    while True:
        remaining, built = open_items[-1]
        for item in remaining:
            if isinstance(item, Items):
                open_items.append((iter(item.items), []))
                break
            built.append(memory[item.buffer] if isinstance(item, Cell) else item)
        else:
            open_items.pop()
            if not open_items:
                return tuple(built)
            open_items[-1][1].append(tuple(built))


def source_array(copy: CopyHtoD, memory: list[object]) -> "np.ndarray[Any, np.dtype[Any]]":
    """Return the array that a copy transfers to the device.

    Raises:
        ShapeError: its shape or element type has changed since the copy was planned.
    """
    array, layout = memory[copy.source.buffer], copy.out.layout
    if not isinstance(array, np.ndarray) or array.shape != layout.shape or array.dtype != layout.dtype:
        found = (
            f"an array of {array.dtype} and shape {array.shape}"
            if isinstance(array, np.ndarray)
            else f"a value of type {type(array).__name__}"
        )
        raise ShapeError(
            f"copying to the device at {describe(copy.origin)}: expected an array of {layout.dtype} and "
            f"shape {layout.shape}, found {found}. Do not change the array in place between giving "
            "it and the run."
        )
    return array


def blame(error: BaseException, whose: str) -> None:
    """Add a note to an error of the user's code that names the function it comes from.

    The note is added once, even if the same exception object is raised many times.

    Raises:
        RuntimeError: `error` is a `StopIteration`.
    """
    if isinstance(error, StopIteration):
        refuse_stop_iteration(error, whose)
    add_note(error, f"dagpu: in {whose}")


# ---- captured graphs


class Launched(Protocol):
    """What a launch needs of the run that it has started; see `dagpu.backends.protocol.Run`."""

    def cancel(self) -> None: ...

    def wait(self) -> object: ...

    def failures(self) -> list[Failure]: ...


@final
class BoundPlan:
    """A frozen plan; see `dagpu.backends.protocol.Prepared.freeze`."""

    __slots__ = ("_drawn", "_memory", "_start")

    def __init__(self, plan: Plan, memory: list[object], start: Callable[[list[object]], Launched]) -> None:
        """`memory` is what the plan is bound to. `start` starts a run on a copy of it."""
        self._drawn = plan.seed_cells
        self._memory = memory
        self._start = start

    def launch(self, outcome: Outcome) -> None:
        """Run the plan to its end. If `outcome` is cancelled, skip instructions that have not begun.

        Only one launch may run at a time. An error of an instruction is raised, several errors as a group.
        """
        memory = self._memory.copy()
        for cell in self._drawn:
            memory[cell] = fresh_seed()
        run = self._start(memory)
        outcome.also_cancel(run.cancel)
        run.wait()
        error = _error_of(run.failures())
        if error is not None:
            raise error


def _error_of(failures: Sequence[Failure]) -> BaseException | None:
    """Return the error of a launch: the error of its only failure, or a group of several; None without one."""
    errors = [failure.error for failure in failures]
    if len(errors) > 1:
        return BaseExceptionGroup(f"{len(errors)} ops of one graph failed", errors)
    return errors[0] if errors else None
