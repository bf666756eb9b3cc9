"""Executes instructions with NumPy. `memory[i]` is buffer i: `HostMemory`, an `ArenaRange`, or a cell's value."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from math import prod
from typing import Any, Final, Protocol, assert_never, cast

import numpy as np

from dagpu.backends.host.arrays import input_array, readonly_array, writable_array
from dagpu.backends.host.body_checks import (
    TilePlace,
    call_checked,
    check_sight,
    cut_out,
    index_error,
    is_checked,
    listed,
    places,
    whole,
)
from dagpu.backends.host.cuda_text.launching import run_text
from dagpu.backends.host.cuda_text.text_checks import check_launch, current_checks
from dagpu.backends.host.failures import Outcome, no_room, out_of_memory
from dagpu.backends.host.host_instructions import blame, call, source_array
from dagpu.backends.host.numpy_initializers import write
from dagpu.common.env_vars import HOST
from dagpu.common.errors import DagpuError
from dagpu.common.layout import Layout, as_truth
from dagpu.common.places import describe, passes_on
from dagpu.kernels.numpy_twin import cancelled_by
from dagpu.ops.initializers import with_seed
from dagpu.ops.kernel_spec import IndexBeyond, KernelSpec
from dagpu.plans.plan import Plan
from dagpu.plans.program import (
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    If,
    Instruction,
    Launch,
    Tiles,
    View,
)


class Launchable(Protocol):
    """The part of a graph that a `GraphLaunch` calls. Both the host's and the explore backend's graphs implement it."""

    def launch(self, outcome: Outcome) -> None:
        """Run the graph to its end."""
        ...


_UNCANCELLED: Final = Outcome()


def execute(
    instruction: Instruction, memory: list[object], outcome: Outcome = _UNCANCELLED, plan: Plan | None = None
) -> None:
    """Execute one instruction to its end, or, if `outcome` is cancelled, to the end of the current tile, or of the
    current part of a body that dagpu has made; a CUDA text stops anywhere. `plan` is that of the run.

    Errors of the user's code are raised, with a note that names the function and where it was called.
    """
    match instruction:
        case Launch():
            _launch(instruction, memory, outcome, plan)
        case Fill(out=out, recipe=recipe, seed=seed):
            if seed is not None:
                recipe = with_seed(recipe, cast(int, memory[seed.buffer]))
            write(recipe, writable_array(memory[out.buffer], out.layout))
        case CopyHtoD():
            _copy_in(instruction, memory)
        case CopyDtoH():
            _copy_out(instruction, memory)
        case CopyDtoD(out=out, source=source):
            _copy_within(out, source, memory)
        case HostCall():
            call(instruction, memory)
        case GraphLaunch(graph=graph):
            cast(Launchable, graph).launch(outcome)
            if outcome.cancelled:
                outcome.stop(instruction)
        case If():
            raise AssertionError("only a CUDA graph decides, and its plans never come here")
        case _:
            assert_never(instruction)


def _launch(launch: Launch, memory: list[object], outcome: Outcome, plan: Plan | None) -> None:
    if has_text(launch.kernel) and (checks := current_checks()) is not None and 0 not in launch.grid:
        body = None if launch.kernel.host.function is None else partial(_run_whole, launch, memory, outcome)
        check_launch(checks, launch, memory, plan, body)
        return
    if runs_text(launch.kernel):
        if not run_text(launch, memory, plan=plan, stop=lambda: outcome.cancelled):
            outcome.stop(launch)
        return
    _run_whole(launch, memory, outcome)


def _run_whole(launch: Launch, memory: list[object], outcome: Outcome) -> None:
    """Run a launch by its host body."""
    if launch.kernel.checked:
        check_declared_sight(launch, memory)
    _run_tiles(launch, memory, _listed_numbers(launch, memory), outcome)


def runs_text(kernel: KernelSpec) -> bool:
    """Return true if the host runs the CUDA text of a kernel: it has no other body, or DAGPU_HOST=cuda says so."""
    return has_text(kernel) and (kernel.host.function is None or HOST.get() == "cuda")


def has_text(kernel: KernelSpec) -> bool:
    """Return true if a kernel is written in CUDA C++."""
    return kernel.python is None and kernel.library is None and bool(kernel.cuda)


def check_declared_sight(launch: Launch, memory: list[object]) -> None:
    """Check that the tiles of a launch look at no more than the kernel declares, if it declares something.

    Raises:
        KernelBoundsError: a tile looks at more.
    """
    kernel = launch.kernel
    if kernel.sees is None or kernel.grid is not None or kernel.host.function is None:
        return
    numbers = _listed_numbers(launch, memory)
    every = list(range(prod(launch.grid))) if numbers is None else numbers
    check_sight(launch, memory, every, lambda on, tiles: _run_tiles(launch, on, tiles, _UNCANCELLED))


def _listed_numbers(launch: Launch, memory: list[object]) -> list[int] | None:
    """Return the numbers of the tiles of a launch that has a list; None for all tiles."""
    if launch.tile_list is None:
        return None
    listing = readonly_array(memory[launch.tile_list.buffer], launch.tile_list.layout)
    total = prod(launch.grid)
    return [number for number in listing.tolist() if number < total]


def _run_tiles(launch: Launch, memory: list[object], numbers: list[int] | None, outcome: Outcome) -> None:
    """Call the host body for the tiles with these numbers, None for all. A body for whole outputs is called once, and
    makes these tiles too."""
    kernel = launch.kernel
    body, once = kernel.host.function, kernel.host.whole
    if body is None and kernel.python is not None:
        body, once = kernel.python.host_body(launch.grid, launch.tile), True
    if body is None:
        raise _no_body(launch)
    if kernel.host.generated is not None:
        _run_generated(launch, memory, outcome)
        return
    arguments: list[Any] = [memory[argument.buffer] if type(argument) is Cell else argument for argument in launch.args]
    for position, record in kernel.records:
        arguments[position] = record(arguments[position])
    outputs: list[tuple[int, object, Layout]] = []
    cuts: list[Iterable[TilePlace]] = []
    for position, param in kernel.tensors:
        if arguments[position] is None:
            continue
        if not param.form.is_written:
            view: View = arguments[position]
            arguments[position] = input_array(memory[view.buffer], view.layout, kernel, position)
            continue
        tiles: Tiles = arguments[position]
        outputs.append((position, memory[tiles.view.buffer], tiles.view.layout))
        if once:
            cuts.append((whole(tiles),))
        else:
            cuts.append(places(tiles, launch.grid) if numbers is None else listed(tiles, launch.grid, numbers))
    blocks = prod(launch.grid)
    if once:
        blocks = min(blocks, 1)  # an empty grid calls no body, on the host as on a GPU
    for block in zip(*cuts, strict=True) if cuts and blocks else repeat((), blocks):
        if outcome.cancelled:
            outcome.stop(launch)
            return
        for (position, block_memory, layout), place in zip(outputs, block, strict=True):
            arguments[position] = cut_out(block_memory, layout, place)
        if is_checked(launch):
            call_checked(launch, arguments, lambda given: _call_body(body, given, launch))
        else:
            _call_body(body, arguments, launch)


def _run_generated(launch: Launch, memory: list[object], outcome: Outcome) -> None:
    """Call a body that dagpu has made, which may stop before its end once the run is cancelled."""
    if not outcome.cancelled:
        with np.errstate(all="ignore"), cancelled_by(lambda: outcome.cancelled):
            generated_body(launch)(memory)
    if outcome.cancelled:
        outcome.stop(launch)


def generated_call(launch: Launch) -> Callable[[list[object]], None]:
    """Return the function that executes a launch on the memory of a run, for a kernel whose body dagpu has made. Its
    caller ignores floating-point errors."""
    if 0 in launch.grid:
        return lambda memory: None
    body = generated_body(launch)

    def call(memory: list[object]) -> None:
        if current_checks() is None and not runs_text(launch.kernel):
            body(memory)
        else:
            _launch(launch, memory, _UNCANCELLED, None)

    return call


def generated_body(launch: Launch) -> Callable[[list[object]], None]:
    """Return the function that calls the body of a launch that dagpu has made; see `generated_call`."""
    if 0 in launch.grid:
        return lambda memory: None
    host, fixed = launch.kernel.host, list(launch.args)
    arrays: list[tuple[int, Callable[[object, Layout], Any], int, Layout]] = []
    cells: list[tuple[int, int]] = []
    for position, argument in enumerate(fixed):
        if type(argument) is View:
            arrays.append((position, readonly_array, argument.buffer, argument.layout))
        elif type(argument) is Tiles:
            arrays.append((position, writable_array, argument.view.buffer, argument.view.layout))
        elif type(argument) is Cell:
            cells.append((position, argument.buffer))

    def call(memory: list[object]) -> None:
        arguments = fixed.copy()
        for position, array, buffer, layout in arrays:
            arguments[position] = array(memory[buffer], layout)
        for position, buffer in cells:
            arguments[position] = memory[buffer]
        assert host.generated is not None
        _call_body(host.generated, arguments, launch)

    return call


@passes_on
def _call_body(body: Callable[..., object], arguments: list[Any], launch: Launch) -> None:
    try:
        returned = body(*(_with_lists(arguments, launch.kernel) if launch.kernel.lists else arguments))
    except IndexBeyond as error:
        raise index_error(launch, error) from None
    except BaseException as error:
        blame(error, f"the host body of kernel {launch.kernel.label}, launched at {describe(launch.origin)}")
        raise
    if returned is not None:
        raise DagpuError(
            f"the host body of kernel {launch.kernel.label}, launched at {describe(launch.origin)}, returned "
            f"a value of type {type(returned).__name__}, which is not used. Write the result into the "
            f"output's tile: {_an_output(launch.kernel)}[...] = ..."
        )


def _with_lists(arguments: Sequence[Any], kernel: KernelSpec) -> list[Any]:
    """Return the arguments of a body with each list of tensors as one argument."""
    found: list[Any] = []
    at = 0
    for start, count in kernel.lists:
        found += [*arguments[at:start], list(arguments[start : start + count])]
        at = start + count
    return [*found, *arguments[at:]]


def _copy_in(copy: CopyHtoD, memory: list[object]) -> None:
    writable_array(memory[copy.out.buffer], copy.out.layout)[...] = source_array(copy, memory)


def _copy_out(copy: CopyDtoH, memory: list[object]) -> None:
    layout = copy.source.layout
    held = memory[copy.out.buffer]
    if isinstance(held, np.ndarray):  # an output of a graph, which every launch overwrites
        np.copyto(held, readonly_array(memory[copy.source.buffer], layout))
        return
    try:
        memory[copy.out.buffer] = np.array(readonly_array(memory[copy.source.buffer], layout), order="C")
    except MemoryError:
        where = f"{type(copy).__name__} at {describe(copy.origin)}"
        raise out_of_memory(f"{no_room('host memory', layout.nbytes)}, to be written by {where}") from None


def _copy_within(out: View, source: View, memory: list[object]) -> None:
    target = writable_array(memory[out.buffer], out.layout)
    origin = readonly_array(memory[source.buffer], source.layout)
    if target.dtype == origin.dtype:
        target[...] = origin
    else:
        with np.errstate(all="ignore"):  # overflow is converted silently, as in C and on a GPU
            np.copyto(target, as_truth(origin) if origin.dtype.kind == "b" else origin, casting="unsafe")


def _no_body(launch: Launch) -> DagpuError:
    kernel = launch.kernel
    return DagpuError(
        f"kernel {kernel.name}, declared at {describe(kernel.origin)} and launched at "
        f"{describe(launch.origin)}, has no host body, so the host backend cannot run it. Give it one with "
        f"@{kernel.name}.host, or run it on CUDA."
    )


def _an_output(kernel: KernelSpec) -> str:
    return next((param.name for param in kernel.params if param.form.is_written), "tile")
