"""Host instructions that all backends execute alike: the call of a `host_map`, the source array of a `from_host`."""

from typing import Any

import numpy as np

from dagpu.common.containers import own_containers
from dagpu.common.errors import ShapeError
from dagpu.common.places import add_note, describe, passes_on
from dagpu.common.wrong_arguments import SUSPENDED, refuse_stop_iteration, refuse_suspended
from dagpu.ops.base import has_op, refuse_op
from dagpu.plans.program import Cell, CopyHtoD, HostCall, Items


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
