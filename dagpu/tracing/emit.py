"""Emits the instructions of nodes that do device work. All inputs of such a node exist: they are handles and host
values."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from math import prod
from pathlib import PurePath
from typing import Any

import numpy as np

from dagpu.common.errors import DeviceError, KernelArgumentError, ShapeError
from dagpu.common.layout import Layout, Shape, element_type
from dagpu.common.places import Origin, describe, place_of
from dagpu.handles import (
    HANDLES,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    cut_of,
    find_live_state,
    live_state,
)
from dagpu.handles.device_handles import Device, driver_of
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.handles.tensors import handles_in, storage_of
from dagpu.kernels.call_arguments import arguments_fit, check_arguments
from dagpu.ops import creation, graph
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall as HostCallNode
from dagpu.ops.compose import Launch as LaunchNode
from dagpu.ops.compose import ToHost
from dagpu.ops.initializers import Constant, Normal, Uniform
from dagpu.ops.kernel_spec import KernelSpec, Param
from dagpu.plans.placing import spreads
from dagpu.plans.program import (
    HOST,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    GraphLaunch,
    HostCall,
    Items,
    Launch,
    View,
    operands_in,
)
from dagpu.tracing.program_builder import NO_DEVICE, ProgramBuilder, TracedStorage
from dagpu.tracing.run_memo import Deferred, FromCell
from dagpu.tracing.traced_arguments import SEED, ScalarUse


def emit_alloc(
    node: creation.Alloc[Any], seed: SymbolicNumber | None, b: ProgramBuilder, device: Device, policy: int
) -> Tensor[Any, Any]:
    """Emit `empty`, `zeros`, `arange` and the other creation ops. `seed` is the stand-in for the seed of random
    numbers, if the seed may differ between runs."""
    tensor, out = b.new_tensor(device, node.shape, node.dtype, node.origin)
    recipe = node.recipe
    if recipe is None:
        b.leave_undefined(out, policy, node.origin)
        return tensor
    cell = None
    if isinstance(recipe, Uniform | Normal):
        recipe_seed: Any = recipe.seed
        if seed is None and type(recipe_seed) is SymbolicNumber:  # an argument of a pipeline
            seed = recipe_seed
        if seed is not None:
            chosen = b.number_operand(seed, SEED)
            cell, constant = (chosen, None) if type(chosen) is Cell else (None, chosen)
            recipe = replace(recipe, seed=constant)
        elif recipe_seed is None:
            cell = Cell(b.drawn_cell())
    b.emit(Fill(out, recipe, (), (out.buffer,), b.buffers[out.buffer].device, node.origin, cell), policy)
    return tensor


def emit_from_host(
    node: creation.FromHost[Any], leaf: int | None, b: ProgramBuilder, device: Device, policy: int
) -> Tensor[Any, Any]:
    """Emit the copy of a NumPy array to a new tensor. `leaf` is the array's index among the leaves, None if it is not a
    leaf."""
    array = node.array
    element = element_type(array.dtype)
    assert element is not None, "the op was not built for it"
    tensor, out = b.new_tensor(device, array.shape, element, node.origin)
    cell = b.array_cell(array, leaf)
    b.emit(CopyHtoD(out, Cell(cell), (cell,), (out.buffer,), b.buffers[out.buffer].device, node.origin), policy)
    return tensor


def emit_to_host(node: ToHost[Any], handle: Any, b: ProgramBuilder, policy: int) -> Deferred:
    """Emit the copy of a handle's contents to a new NumPy array."""
    if not isinstance(handle, Tensor | SharedTensor | TensorRef | TensorMut):
        if isinstance(handle, tuple | list):
            cure = "Pick one tensor of it with .first() or .unzip()"
        elif type(handle) is Partition:
            cure = "Put it together first: .unpartition().to_host()"
        else:
            cure = "It is on the host already: leave .to_host() out"
        raise ShapeError(
            f"to_host() at {describe(node.origin)}: the op before it returns {type(handle).__name__}, but a tensor is "
            f"wanted. {cure}."
        )
    source, cell = b.read_view(handle), b.new_cell()
    device = b.buffers[source.buffer].device
    b.emit(CopyDtoH(Cell(cell), source, (source.buffer,), (cell,), device, node.origin), policy)
    return Deferred(FromCell(cell))


def emit_copy(
    node: creation.Copy[Any], source: Any, into: Any, b: ProgramBuilder, device: Device | None, policy: int
) -> Any:
    """Emit `dup`, `convert`, `memcpy` and `fill`. `device` is the device on which the op was placed, None if no device
    was chosen."""
    if type(source) is Constant:
        out = b.write_view(into)
        b.emit(Fill(out, source, (), (out.buffer,), b.device_index(into.device), node.origin), policy)
        return into
    view = b.read_view(source)
    if into is None:
        dtype = source.dtype if node.dtype is None else node.dtype
        target, _ = b.new_tensor(device or source.device, source.shape, dtype, node.origin)
    else:
        target = into
    changes = into is not None and not b.is_blank(into)
    out = b.write_view(target)
    where = b.device_index(target.device)
    b.device_index(source.device)
    # A copy to a part of a buffer leaves the rest as it was: the contents before are an input of it.
    keeps_rest = changes and out.layout.nbytes < b.buffers[out.buffer].nbytes
    reads = (view.buffer, out.buffer) if keeps_rest else (view.buffer,)
    b.emit(CopyDtoD(out, view, reads, (out.buffer,), where, node.origin), policy)
    return target if into is None else None


def emit_launch(
    node: LaunchNode, args: tuple[Any, ...], b: ProgramBuilder, policy: int, *, over_mesh: bool = False
) -> None:
    """Emit a kernel launch on arguments that all exist. With `over_mesh` a mesh is in use: tensors may be on several
    devices without a word of the user's, and are brought to one."""
    spec = node.kernel
    if not arguments_fit(spec, args):
        check_arguments(spec, args, node.origin, ops=False)
    operands = list(args)
    tensors = _passed(node, args) if type(None) in map(type, args) else spec.tensors
    reads: list[int] = []
    writes: list[int] = []
    blank = _blank_outputs(node, args, b) if over_mesh else ()
    back: Sequence[CopyDtoD] = ()
    grid, device, several = spec.grid, HOST, False
    for index, param in tensors:
        if param.form.is_written:
            tiles = operands[index] = b.write_tiles_view(args[index])
            buffer = tiles.view.buffer
            writes.append(buffer)
            grid = tiles.grid if grid is None else grid
        else:
            view = operands[index] = b.read_view(args[index])
            buffer = view.buffer
            reads.append(buffer)
        at = b.buffers[buffer].device
        several |= device not in (at, HOST)
        device = at
    if several:
        device = _device_of_several(node, args, writes, b, policy, over_mesh)
        back = _bring_together(node, operands, device, blank, b, policy)
        reads = [operands[index].buffer for index, param in tensors if not param.form.is_written]
        writes = [operands[index].view.buffer for index, param in tensors if param.form.is_written]
    for index, check in spec.lazy:  # numbers that the call had were converted by the call
        if type(args[index]) is not SymbolicNumber:
            operands[index] = check(args[index])
    if SymbolicNumber in map(type, operands):
        for index, operand in enumerate(operands):
            if type(operand) is SymbolicNumber:
                operands[index] = b.number_operand(operand, ScalarUse(spec, spec.params[index], node.origin))
    if device == HOST:
        raise KernelArgumentError(
            f"{spec.label}() at {describe(node.origin)} has neither input nor output, so it would run nowhere. "
            "Give it an output."
        )
    made = Launch(spec, tuple(operands), grid or (1,), tuple(reads), tuple(writes), device, node.origin)
    if spec.may_need_scratch:
        there = b.device_at(device) if several else storage_of(args[tensors[0][0]]).device
        made = _with_scratch(made, there, b)
    if spec.state is not None:
        made = replace(made, writes=(*made.writes, b.state_cell(spec.state, device)))
    b.emit(made, policy)
    if back:
        b.instructions += back
        b.policy_of += [policy] * len(back)


def _passed(node: LaunchNode, args: Sequence[Any]) -> Sequence[tuple[int, Param]]:
    """Return the parameters of a launch that are tensors and for which no None is passed, with their indices."""
    return [each for each in node.kernel.tensors if args[each[0]] is not None]


def library_work(node: LaunchNode, inputs: Sequence[Any]) -> Callable[[], None] | None:
    """Return the work that a library has with a launch before its scratch memory is known, for a thread that may wait;
    None if it has none. It raises a `DeviceError` if the library is missing, or refuses the launch.

    `inputs` are the values of the ops among the arguments.
    """
    spec, values = node.kernel, iter(inputs)
    if spec.lists:
        return None
    args = [next(values) if isinstance(arg, DeviceOp) else arg for arg in node.args]
    tensors = [args[index] for index, _ in node.kernel.tensors]
    states = [find_live_state(arg) if type(arg) in HANDLES or type(arg) is Partition else None for arg in tensors]
    known = [state for state in states if state is not None]
    if len(known) < len(tensors):
        return None  # one is no handle, or has moved: the launch says so
    layouts, device = [state.layout for state in known], storage_of(tensors[0]).device
    cuts = [cut_of(each)[0] for each in tensors if type(each) is Partition]
    tile = cuts[0] if cuts else None
    if spec.library is not None:
        if driver_of(device).is_known(spec.library, layouts):
            return None
    elif _knows_scratch(spec, layouts, tile, device):
        return None

    def work() -> None:
        _scratch_bytes(spec, layouts, tile, device, node.origin)

    return work


def _knows_scratch(spec: KernelSpec, layouts: Sequence[Layout], tile: Shape | None, device: Device) -> bool:
    """Return true if the bytes of scratch memory that a kernel in Python needs are known."""
    python, arch = spec.python, driver_of(device).arch
    assert python is not None
    return not arch or python.knows_scratch(arch, python.variant(layouts, tile))


def _scratch_bytes(
    spec: KernelSpec, layouts: Sequence[Layout], tile: Shape | None, device: Device, origin: Origin
) -> int:
    """Return the bytes of scratch memory that a launch of a library's kernel needs, or each program of a kernel in
    Python for a tile of its first output."""
    if spec.library is None:
        python, arch = spec.python, driver_of(device).arch
        assert python is not None
        return python.scratch_bytes(arch, python.variant(layouts, tile)) if arch else 0
    try:
        return driver_of(device).scratch_bytes(spec.library, layouts)
    except DeviceError as error:
        raise type(error)(f"{spec.label} at {describe(origin)} on {device.name}: {error}", error.code) from None


def _with_scratch(made: Launch, device: Device, b: ProgramBuilder) -> Launch:
    """Return a launch with new memory on a device for the library that it calls, for the programs of a kernel in
    Python, or for the addresses of lists of tensors; the launch itself if it needs none."""
    lists = made.kernel.lists
    if lists:
        nbytes = 8 * len(made.kernel.params) if driver_of(device).arch else 0
    else:
        layouts = [view.layout for _, view in made.views]
        nbytes = _scratch_bytes(made.kernel, layouts, made.tile, device, made.origin)
        nbytes *= prod(made.grid) if made.kernel.library is None else 1
    if not nbytes:
        return made
    _, view = b.new_tensor(device, (nbytes,), np.dtype(np.uint8), made.origin)
    # No handle refers to the memory, so it is a temporary.
    return replace(made, writes=(*made.writes, view.buffer), scratch=view)


def _blank_outputs(node: LaunchNode, args: tuple[Any, ...], b: ProgramBuilder) -> Collection[int]:
    """Return the indices of the arguments that a launch writes, and that nothing has written yet."""
    found = [(index, storage_of(args[index])) for index, param in _passed(node, args) if param.form.is_written]
    return {index for index, each in found if type(each) is TracedStorage and b.is_blank_storage(each)}


def _device_of_several(
    node: LaunchNode, args: tuple[Any, ...], writes: list[int], b: ProgramBuilder, policy: int, over_mesh: bool
) -> int:
    """Return the device of a launch whose tensors are on several: that of its outputs, and of several the first. Under
    `Spread` it is chosen later if the outputs are on no device yet. A kernel that reads its peers runs where its
    outputs are.

    Raises:
        KernelArgumentError: no mesh is in use, and nothing else brings the tensors together.
    """
    if node.kernel.peers and writes:
        return b.buffers[writes[0]].device
    placed = b.policies[policy]
    if spreads(placed):
        b.device_index(placed.mesh.automatic)  # also where no memory is on it: the program is to be placed
    homes = dict.fromkeys([b.buffers[buffer].device for buffer in writes if b.buffers[buffer].device != b.automatic])
    if not over_mesh and (b.automatic == NO_DEVICE or len(homes) > 1):
        raise _two_devices(node, args)
    if not homes and b.automatic == NO_DEVICE:
        return b.device_index(storage_of(args[_passed(node, args)[0][0]]).device)
    return next(iter(homes), b.automatic)


def _bring_together(
    node: LaunchNode, operands: list[Any], device: int, blank: Collection[int], b: ProgramBuilder, policy: int
) -> list[CopyDtoD]:
    """Emit copies to a device of what a launch uses elsewhere, whole buffers, and put them in its operands. Return the
    copies that bring what it writes back to where that lies. `blank` are the arguments that nothing has written.

    Of a program that is placed later the placement copies what is only read.
    """
    back: list[CopyDtoD] = []
    if device == b.automatic or node.kernel.peers:
        return back
    near: dict[int, int] = {}
    for index, param in _passed(node, operands):
        operand, writes = operands[index], param.form.is_written
        view = operand.view if writes else operand
        at = b.buffers[view.buffer].device
        if at in (device, b.automatic) or not (writes or b.automatic == NO_DEVICE):
            continue
        if view.buffer not in near:
            nbytes = b.buffers[view.buffer].nbytes
            _, target = b.new_tensor(b.device_at(device), (nbytes,), np.dtype(np.uint8), node.origin)
            far = View(view.buffer, target.layout)
            near[far.buffer] = target.buffer
            if index not in blank:
                b.emit(CopyDtoD(target, far, (far.buffer,), (target.buffer,), device, node.origin), policy)
            if writes:
                back.append(CopyDtoD(far, target, (target.buffer,), (far.buffer,), at, node.origin))
        view = View(near[view.buffer], view.layout)
        operands[index] = replace(operand, view=view) if writes else view
    return back


def _two_devices(node: LaunchNode, args: tuple[Any, ...]) -> KernelArgumentError:
    """Return the error for a launch whose tensors are on several devices."""
    tensors = [(param, args[index]) for index, param in _passed(node, args)]
    lie = ", ".join(f"{param.name} on {storage_of(arg).device.name}" for param, arg in tensors)
    outputs = [arg for param, arg in tensors if param.form.is_written]
    home = storage_of((outputs or [arg for _, arg in tensors])[0]).device.name
    return KernelArgumentError(
        f"{node.kernel.label}() at {describe(node.origin)}: its tensors are on several devices: {lie}. "
        f'Copy them to one first, dup(t).on("{home}"), or make them there: op.on("{home}").'
    )


def emit_graph_launch(node: graph.GraphLaunch, b: ProgramBuilder, policy: int) -> None:
    """Emit the launch of a captured graph on the graph's own stream."""
    captured = node.captured
    captured.check()
    reads, writes = b.import_graph(captured)
    device = b.device_index(captured.stream.device)
    place = place_of(captured.origin)
    name = "" if place is None else f"{PurePath(place[0]).name}:{place[1]}"
    b.emit(GraphLaunch(captured.frozen, reads, writes, device, node.origin, name), policy)


def emit_host_call(node: HostCallNode[Any], argument: Any, b: ProgramBuilder, device: Device, policy: int) -> Deferred:
    """Emit `host_map`. `argument` is the value, or a template of it (see `HostCall`)."""
    reads = sorted({*[each.buffer for each in operands_in((argument,))], *_buffers_in(argument, b)})
    cell = b.new_cell()
    b.emit(HostCall(node.f, argument, Cell(cell), tuple(reads), (cell,), b.device_index(device), node.origin), policy)
    return Deferred(FromCell(cell))


def _buffers_in(argument: Any, b: ProgramBuilder) -> set[int]:
    """Return the device memory that the function gets handles to. The call must run after the instructions that write
    this memory."""
    if type(argument) is Items:
        return set().union(*(_buffers_in(item, b) for item in argument.items))
    buffers: set[int] = set()
    for handle in handles_in(argument):
        if isinstance(handle, TensorMut | Partition) and live_state(handle).loan is not None:
            view = b.write_view(handle)
        else:
            view = b.read_view(handle)
        buffers.add(view.buffer)
    return buffers
