"""What each instruction does on the host. `memory[i]` is what buffer i is bound to: a `HostMemory`, or a
cell's value."""

from collections.abc import Callable, Iterable
from itertools import repeat
from math import prod
from types import TracebackType
from typing import Any, assert_never

import numpy as np

from dagpu.backends.host.arrays import readable, writable
from dagpu.backends.host.cutting import Place, cut_out, places, whole
from dagpu.backends.host.recipes import write
from dagpu.errors import DagpuError, OutOfMemoryError, ShapeError
from dagpu.layout import Layout
from dagpu.lowering.program import (
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Instruction,
    Items,
    Launch,
    Tiles,
    View,
)
from dagpu.ops.launch import KernelSpec
from dagpu.origin import describe, is_ours


def execute(instruction: Instruction, memory: list[object]) -> None:
    """Run one instruction to its end. Raises whatever the user's code raises, with a note of where it was
    called."""
    match instruction:
        case Launch():
            _launch(instruction, memory)
        case Fill(out=out, recipe=recipe):
            write(recipe, writable(memory[out.buffer], out.layout))
        case CopyHtoD():
            _copy_in(instruction, memory)
        case CopyDtoH():
            _copy_out(instruction, memory)
        case CopyDtoD(out=out, source=source):
            _copy_within(out, source, memory)
        case HostCall():
            _call(instruction, memory)
        case _:
            assert_never(instruction)


def _launch(launch: Launch, memory: list[object]) -> None:
    kernel = launch.kernel
    body = kernel.host.function
    if body is None:
        raise _no_body(launch)
    arguments = list(launch.args)
    outputs: list[tuple[int, object, Layout]] = []
    cuts: list[Iterable[Place]] = []
    once = kernel.host.whole
    for position, argument in enumerate(launch.args):
        if type(argument) is View:
            arguments[position] = readable(memory[argument.buffer], argument.layout)
        elif type(argument) is Tiles:
            outputs.append((position, memory[argument.view.buffer], argument.view.layout))
            cuts.append((whole(argument),) if once else places(argument, launch.grid))
    blocks = prod(launch.grid)
    if once:
        blocks = min(blocks, 1)  # an empty grid calls nothing, here as on a GPU
    for block in zip(*cuts, strict=True) if cuts and blocks else repeat((), blocks):
        for (position, block_memory, layout), place in zip(outputs, block, strict=True):
            arguments[position] = cut_out(block_memory, layout, place)
        _call_body(body, arguments, launch)


def _call_body(body: Callable[..., object], arguments: list[Any], launch: Launch) -> None:
    try:
        returned = body(*arguments)
    except BaseException as error:
        _add_origin(error, f"in the host body of kernel {launch.kernel.name}, launched at", launch)
        raise
    if returned is not None:
        raise DagpuError(
            f"the host body of kernel {launch.kernel.name}, launched at {describe(launch.origin)}, returned "
            f"a value of type {type(returned).__name__}, which nobody gets. Write the result into the "
            f"output's tile: {_an_output(launch.kernel)}[...] = ..."
        )


def _call(call: HostCall, memory: list[object]) -> None:
    argument = resolve(call.argument, memory)
    try:
        result = call.function(argument)
    except BaseException as error:
        _add_origin(error, "in the function of a host_map, built at", call)
        raise
    memory[call.out] = result


def resolve(template: object, memory: list[object]) -> object:
    """The argument of a `HostCall`, with the values of its `Cell`s in it. Nests to any depth."""
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


def _copy_in(copy: CopyHtoD, memory: list[object]) -> None:
    array, layout = memory[copy.source], copy.out.layout
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
    writable(memory[copy.out.buffer], layout)[...] = array


def _copy_out(copy: CopyDtoH, memory: list[object]) -> None:
    layout = copy.source.layout
    try:
        memory[copy.out] = np.array(readable(memory[copy.source.buffer], layout), order="C")
    except MemoryError:
        raise out_of_memory("host memory", layout.nbytes, copy) from None


def _copy_within(out: View, source: View, memory: list[object]) -> None:
    target = writable(memory[out.buffer], out.layout)
    origin = readable(memory[source.buffer], source.layout)
    if target.dtype == origin.dtype:
        target[...] = origin
    else:
        with np.errstate(all="ignore"):  # what does not fit is converted as C does, as the GPU does, without a word
            np.copyto(target, origin, casting="unsafe")


def out_of_memory(where: str, nbytes: int, instruction: Instruction) -> OutOfMemoryError:
    """There is too little memory for what `instruction` writes."""
    return OutOfMemoryError(
        f"{where}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB), to be written by "
        f"{type(instruction).__name__} at {describe(instruction.origin)}. Let go of handles that are no "
        "longer needed, or cut the work into smaller pieces."
    )


def _no_body(launch: Launch) -> DagpuError:
    kernel = launch.kernel
    return DagpuError(
        f"kernel {kernel.name}, declared at {describe(kernel.origin)} and launched at "
        f"{describe(launch.origin)}, has no host body, so the host backend cannot run it. Give it one with "
        f"@{kernel.name}.host, or run it on CUDA."
    )


def _an_output(kernel: KernelSpec) -> str:
    return next((param.name for param in kernel.params if param.form == "out"), "tile")


def _add_origin(error: BaseException, what: str, instruction: Instruction) -> None:
    """Say in the error where it comes from; once, though one exception object may be raised many times."""
    note = f"{what} {describe(instruction.origin)}"
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def without_our_frames(error: BaseException) -> BaseException:
    """The same error, with a traceback that starts where the user's code does.

    An error of our own making says all it has to say in its message, and gets none: the frames would keep the
    run's memory alive for as long as the error lives. An error out of our own code that we did not make keeps
    all of it.
    """
    first: TracebackType | None = error.__traceback__
    while first is not None and is_ours(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    if first is not None or isinstance(error, DagpuError):
        error.__traceback__ = first
    return error
