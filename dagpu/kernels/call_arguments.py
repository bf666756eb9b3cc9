"""Holds the arguments of a kernel call against its parameters, and says what is wrong, where, and the cure.

Invariant after `check_arguments`: each handle is alive, and memory that an output writes, or that a `Tensor`
owns, is reached through that one argument alone. So moving the handles into an op cannot fail half-way.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NoReturn

import numpy as np

from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Layout, Shape, share_bytes
from dagpu.common.places import Origin, describe, is_ours_at
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef, cut_of, live_state
from dagpu.handles.handle_state import Storage
from dagpu.ops.base import DeviceOp, cure_by_await
from dagpu.ops.kernel_spec import Form, KernelSpec, Param

_TAKEN: Final[Mapping[Form, frozenset[type]]] = {
    Form.IN: frozenset((Tensor, SharedTensor, TensorRef, TensorMut)),
    Form.OUT: frozenset((Partition,)),
    Form.SCALAR: frozenset(),
}
"""The classes of the handles that a parameter takes."""
_HANDLES: Final = frozenset[type]().union(*_TAKEN.values())

MOST_AXES: Final = 3
"""The axes along which CUDA counts the blocks of a grid."""


def check_arguments(spec: KernelSpec, args: Sequence[Any], origin: Origin, *, ops: bool) -> None:
    """Check arguments in the order of the parameters; with `ops`, an op may take the place of its result.

    Raises:
        KernelArgumentError: a wrong form, element type, rank or scalar, an output's memory that is another
            argument's as well, or no grid on which all outputs agree; for a kernel that takes plain pointers also a
            view with strides, a grid of more than three axes, or a tile with more elements than a block has threads.
        MovedError: a handle has been moved.
    """
    users: dict[Storage, list[tuple[Param, Any]]] = {}
    cut: tuple[Param, Any] | None = None
    outputs = 0
    for param, arg in zip(spec.params, args, strict=True):
        form = param.form
        outputs += form.is_written
        if ops and isinstance(arg, DeviceOp):
            if not param.is_open:
                _refuse_form(spec, param, arg, origin)
            continue
        if not form.is_tensor:
            check_scalar_argument(spec, param, arg, origin)
            continue
        if type(arg) not in _TAKEN[form]:
            _check_null(spec, param, arg, origin)
            continue
        state = live_state(arg)
        layout = state.layout
        if layout.dtype is not param.dtype or len(layout.shape) != param.rank:
            _check_elements(spec, param, arg, origin)
        if spec.takes_pointers or param.constant is not None:
            _check_place(spec, param, layout, origin)
        for first in users.setdefault(state.storage, []):
            _check_alias(spec, first, (param, arg), origin)
        users[state.storage].append((param, arg))
        if form.is_written and spec.grid is None:
            if cut is None:
                cut = param, arg
            elif cut_of(cut[1])[1] != cut_of(arg)[1]:
                _refuse_grids(spec, cut, (param, arg), origin)
    if spec.takes_pointers and cut is not None:
        _check_axes(spec, cut_of(cut[1])[1], origin)
        _check_threads(spec, args, origin)
    if not outputs and spec.grid is None:
        what = "has no output whose tiles would give its grid"
        refuse_call(spec, origin, what, f"Give the grid: {spec.name}.grid(...)(...)")


def _check_null(spec: KernelSpec, param: Param, argument: object, origin: Origin) -> None:
    """Refuse an argument that is no tensor in the form of its parameter, unless it is None for a null pointer."""
    if argument is not None or not param.optional:
        _refuse_form(spec, param, argument, origin)


def arguments_fit(spec: KernelSpec, args: Sequence[Any]) -> bool:
    """True if the arguments of a launch fit beyond doubt. Otherwise `check_arguments` finds out whether they fit.

    For the hot path: it returns False for everything rare, and skips numbers that were in the call, since those were
    checked there.

    Raises:
        MovedError: a handle has been moved, and everything before it fits.
    """
    if spec.lazy:
        return False
    used: set[Storage] = set()
    grid, pointers = spec.grid, spec.takes_pointers
    for index, param in spec.tensors:
        if param.optional and args[index] is None:
            continue
        arg = args[index]
        form = param.form
        if type(arg) not in _TAKEN[form]:
            return False
        state = live_state(arg)
        if form.is_written:
            tile, tiles = cut_of(arg)
            if grid is None:
                grid = tiles
            elif grid != tiles:
                return False
            if spec.counts_threads and spec.grid is None and not _has_threads(spec, tile):
                return False
        layout = state.layout
        if layout.dtype is not param.dtype or (len(layout.shape) != param.rank and param.rank is not None):
            return False
        storage = state.storage
        if (
            storage in used
            or (pointers and not layout.contiguous)
            or (param.constant is not None and layout.size > param.constant)
            or (param.align > 1 and not _is_aligned(param, layout))
        ):
            return False
        used.add(storage)
    return grid is not None and (len(grid) <= MOST_AXES or not pointers)


def _check_place(spec: KernelSpec, param: Param, layout: Layout, origin: Origin) -> None:
    """Refuse memory that a kernel of plain pointers cannot walk, or that is too long for a `__constant__` variable, on
    every device."""
    if param.constant is not None:
        _check_constant(spec, param, layout, origin)
        return
    if not layout.contiguous:
        _refuse_strides(spec, param, layout, origin)
    if not _is_aligned(param, layout):
        _refuse_vectors(spec, param, layout, origin)


def _check_constant(spec: KernelSpec, param: Param, layout: Layout, origin: Origin) -> None:
    if param.constant and layout.size > param.constant:
        what = f"{layout.size} elements, but its __constant__ variable has {param.constant}"
        refuse_call(
            spec, origin, what, "Pass at most as many (those that are left out are zero), or declare more", param
        )


def _is_aligned(param: Param, layout: Layout) -> bool:
    """Return true if memory has whole vectors, at multiples of their alignment. A block of memory begins at one."""
    return param.align == 1 or (layout.offset % param.align == 0 and layout.size % param.lanes == 0)


def _refuse_vectors(spec: KernelSpec, param: Param, layout: Layout, origin: Origin) -> NoReturn:
    """Refuse memory that a kernel cannot read as vectors or structures, on every device."""
    if layout.size % param.lanes:
        what = f"{layout.size} elements, but the CUDA declaration has vectors of {param.lanes}"
        refuse_call(spec, origin, what, "Pass a multiple of that many elements", param)
    what = (
        f"it begins at byte {layout.offset} of its memory, but the CUDA declaration needs a multiple of {param.align}"
    )
    refuse_call(spec, origin, what, "Make a copy, which begins at such a place: dup(...)", param)


def _refuse_strides(spec: KernelSpec, param: Param, layout: Layout, origin: Origin) -> NoReturn:
    """Refuse a view with strides for a kernel that takes plain pointers, on every device."""
    passes, other = 'abi="pointers" passes', ', or use abi="views"'
    if spec.python is not None:
        passes, other = f"{spec.python.library} is passed", ""
    what = (
        f"a view of shape {layout.shape} and strides {layout.strides} bytes, but {passes} a plain pointer, which has "
        "no strides"
    )
    if param.form.is_written:
        cure = (
            f"Write to a contiguous tensor of its own, and copy it into the part after that: memcpy(part, made){other}"
        )
    else:
        cure = f"Make it contiguous with dup(...){other}"
    refuse_call(spec, origin, what, cure, param)


def _check_axes(spec: KernelSpec, grid: Shape, origin: Origin) -> None:
    """Refuse a grid of tiles whose place a kernel that takes plain pointers could not tell, on every device."""
    if len(grid) > MOST_AXES:
        whose = "CUDA" if spec.python is None else spec.python.library
        what = f"its tiles make a grid of {grid}, but {whose} counts blocks along three axes"
        refuse_call(spec, origin, what, f"Reshape the output first, or give a grid: {spec.name}.grid(...)(...)")


def _has_threads(spec: KernelSpec, tile: Shape) -> bool:
    """Return true if a block has a thread for each element of a tile."""
    return spec.block is not None and prod(tile) <= prod(spec.block)


def _check_threads(spec: KernelSpec, args: Sequence[Any], origin: Origin) -> None:
    """Refuse a tile with more elements than a block has threads, on every device: if a thread writes one element, most
    of them would never be written. Only the user knows whether it writes several, and says so by the grid."""
    for param, arg in zip(spec.params, args, strict=True):
        if not param.form.is_written or type(arg) is not Partition or not spec.counts_threads or spec.block is None:
            continue
        (tile, grid), shape, threads = cut_of(arg), live_state(arg).layout.shape, prod(spec.block)
        within = tuple(map(min, tile, shape))
        if _has_threads(spec, within):
            continue
        what = f"a tile of {within} has {prod(within)} elements, but a block has {threads} threads"
        covering, blocks = -(-prod(shape) // threads), ", ".join(map(str, grid))
        cure = f"Give smaller tiles, or the grid: {spec.name}.grid({covering}) if each thread writes one element, "
        refuse_call(spec, origin, what, f"{cure}{spec.name}.grid({blocks}) if it writes several", param)


def is_launchable(spec: KernelSpec) -> bool:
    """Return true if `check_launchable` refuses no call of the kernel."""
    return not spec.asks_shared and (spec.block is not None or not spec.counts_threads)


def check_launchable(spec: KernelSpec, origin: Origin) -> None:
    """Refuse the call of a kernel that no launch of dagpu's would run right, whatever its arguments.

    Raises:
        KernelArgumentError: it counts its threads, and its block is left open; or it has dynamic shared memory, and
            nothing says how much.
    """
    if spec.asks_shared:
        what = f"its text has dynamic shared memory, '{spec.asks_shared}', and nothing says how many bytes"
        cure = f"Say how many a block has: @kernel(shared_memory=1024, ...) or {spec.name}.shared_memory(1024)"
        refuse_call(spec, origin, what, f"{cure}; 0 if it needs none")
    if not is_launchable(spec):
        what = 'it takes plain pointers (abi="pointers"), so it counts its threads, and its block is left open'
        refuse_call(
            spec, origin, what, f"Say how many threads a block has: @kernel(block=256, ...) or {spec.name}.block(256)"
        )


def refuse_call(spec: KernelSpec, origin: Origin, what: str, cure: str, param: Param | None = None) -> NoReturn:
    """Refuse a call: what is wrong, with which argument, where, and the cure."""
    argument = "" if param is None else f", argument {param.name!r}"
    ours = is_ours_at(spec.origin)  # a function of dagpu.array
    declared = "" if ours or spec.expression else f"; the kernel is declared at {describe(spec.origin)}"
    raise KernelArgumentError(f"{spec.title}{argument}: {what}. Called at {describe(origin)}{declared}. {cure}.")


def format_param(param: Param) -> str:
    """A parameter as its declaration has it."""
    word = param.form.word
    if not param.form.is_tensor:
        return f"{param.name}: {'Lazy ' * param.lazy}{word}"
    element = "any" if param.dtype is None else param.dtype.name
    rank = "" if param.rank is None else f", rank {param.rank}"
    return f"{param.name}: {word}[{element}]{rank}"


def _wanted(param: Param) -> str:
    element = "" if param.dtype is None else f" of {param.dtype.name}"
    return f"{param.form.wanted}{element}{', or an op whose result is one,' * param.is_open} is wanted"


def _format_argument(arg: Any) -> str:
    """An argument, in words. Of a handle that has been moved nothing can be said: `MovedError`."""
    kind = type(arg)
    if kind in _HANDLES:
        return f"a {kind.__name__} of {arg.dtype.name}, shape {arg.shape}"
    if isinstance(arg, np.ndarray):
        return f"a NumPy array of {arg.dtype.name}, shape {arg.shape}"
    if isinstance(arg, DeviceOp):
        return f"the op {arg!r}"
    return f"{kind.__name__} {format_value(arg)}"


def _refuse_form(spec: KernelSpec, param: Param, arg: Any, origin: Origin) -> NoReturn:
    refuse_call(spec, origin, f"got {_format_argument(arg)}, but {_wanted(param)}", _form_cure(param, arg), param)


def _form_cure(param: Param, arg: Any) -> str:
    if (awaited := cure_by_await(arg)) is not None:
        return awaited
    if not param.form.is_tensor:
        if isinstance(arg, DeviceOp):
            return "Annotate the parameter Lazy[...], or call the kernel inside .then(...) on the number"
        if isinstance(arg, np.ndarray):
            return "Take the number out of it: array.item()"
        return "Take the number out of it first, on the host: .to_host().sync() gives its contents"
    if isinstance(arg, tuple):
        return "Pick one of a kernel's results with .first() or .unzip()"
    is_output = param.form.is_written
    if type(arg) is SharedTensor:
        return "It is immutable: write to a copy, dup(t).partition(tile), or to an empty(...).partition(tile)"
    if type(arg) is TensorRef:
        return "It is lent for reading: lend it for writing, .borrow_mut().partition(tile)"
    tile = "tile" if param.rank is None else f"({', '.join(['...'] * param.rank)}{',' * (param.rank == 1)})"
    if type(arg) in _HANDLES:
        return f"Cut it into tiles: .partition({tile})" if is_output else "Put it together: .unpartition()"
    if arg is None:
        return (
            "Pass the tensor itself: a function without return returns None. Or check the order of the arguments. "
            f"A parameter that may be a null pointer is declared {param.form.word}[...] | None"
        )
    cut = f".partition({tile})" if is_output else ""
    if isinstance(arg, np.ndarray):
        return f"Bring it to the device: from_host(array){cut}"
    element = "" if param.dtype is None else f", {_scalar_name(param.dtype)}"
    return f"Make a tensor of it, from_host(np.asarray(...{element})){cut}, or check the order of the arguments"


def check_scalar_argument(spec: KernelSpec, param: Param, arg: Any, origin: Origin) -> None:
    """Check one number.

    Raises:
        KernelArgumentError: it is none, or does not fit the declared C type.
    """
    if type(arg) in _HANDLES or isinstance(arg, np.ndarray | DeviceOp):
        _refuse_form(spec, param, arg, origin)
    if param.check is None:
        return
    try:
        param.check(arg)
    except KernelArgumentError as error:  # it knows neither the place of the call nor that of the declaration
        if cure_by_await(arg) is not None:
            _refuse_form(spec, param, arg, origin)
        text = str(error).removeprefix(f"kernel {spec.name!r}: argument {param.name!r} is ").rstrip(".")
    else:
        return
    what, _, cure = text.partition(". Cure: ")
    refuse_call(spec, origin, f"got {what}", cure[:1].upper() + cure[1:], param)


def elements_problem(got: "np.dtype[Any]", wanted: "np.dtype[Any]", before: str = "") -> tuple[str, str]:
    """Return what is wrong with an argument of other elements, and the cure. `before` says when to convert it."""
    if wanted.names is not None:
        cure = "Give the array that layout on the host: array.astype(dtype), with its dtype of the layout wanted"
        return f"but structures {np.dtype(wanted)!s} are wanted", cure
    name = _scalar_name(wanted)
    cure = f"Convert it{before}: convert(t, {name})"
    if got.kind == "c" and wanted.kind != "c":
        cure = "Take a real part of it before: array.real(t), array.imag(t), or its size, array.abs(t)"
    return f"but elements of {wanted.name} are wanted", cure


def _check_elements(spec: KernelSpec, param: Param, arg: Any, origin: Origin) -> None:
    layout, cut = live_state(arg).layout, " before it is cut" * param.form.is_written
    if param.dtype is not None and layout.dtype is not param.dtype and layout.dtype != param.dtype:
        what, cure = elements_problem(layout.dtype, param.dtype, cut)
        refuse_call(spec, origin, f"got {_format_argument(arg)}, {what}", cure, param)
    if param.rank is not None and len(layout.shape) != param.rank:
        rank = len(layout.shape)
        what = f"got {_format_argument(arg)}, so of rank {rank}, but the CUDA declaration has rank {param.rank}"
        refuse_call(spec, origin, what, f"Reshape it{cut} with .reshape(shape), or declare that rank in CUDA", param)


def _scalar_name(dtype: "np.dtype[Any]") -> str:
    """The short name that dagpu exports: `f32`, `u8`, `bf16`."""
    if dtype.name in ("bool", "bfloat16"):
        return "bool_" if dtype.name == "bool" else "bf16"
    return f"{dtype.kind}{dtype.itemsize * 8}"


def _check_alias(spec: KernelSpec, first: tuple[Param, Any], second: tuple[Param, Any], origin: Origin) -> None:
    """Two arguments on the same memory: fine if both are `TensorRef`s or `SharedTensor`s, which only read, or parts
    that have no element in common."""
    (one, a), (other, b) = first, second
    if a is not b and not share_bytes(live_state(a).layout, live_state(b).layout):
        return
    if a is b and type(a) in (Tensor, Partition):
        cure = "Share it: t = t.share()" if type(a) is Tensor else "Give each output memory of its own"
        what = f"the same {type(a).__name__} is argument {one.name!r} already, and it can be moved once"
        refuse_call(spec, origin, what, cure, other)
    if one.form.is_written and other.form.is_written:
        what = f"two outputs, {one.name!r} and this one, are on the same memory"
        refuse_call(spec, origin, what, "Write each to memory of its own, empty(shape).partition(tile)", other)
    if one.form.is_written or other.form.is_written:
        out, read = (one, other) if one.form.is_written else (other, one)
        what = f"output {out.name!r} is on the same memory as input {read.name!r}"
        cure = "Write to memory of its own, empty(shape).partition(tile), or read a copy that was made before: "
        refuse_call(spec, origin, what, f"{cure}dup(t.borrow()).sync()", other)
    if type(a) is Tensor or type(b) is Tensor:
        what = f"it is on the same memory as argument {one.name!r}, and a Tensor moves when it is passed"
        refuse_call(spec, origin, what, "Pass .borrow() for both, or share it: t = t.share()", other)
    if type(a) is TensorMut or type(b) is TensorMut:
        what = f"it is on the same memory as argument {one.name!r}, and a tensor is lent for writing once"
        refuse_call(spec, origin, what, "Pass .borrow() for both: a kernel may read one tensor twice", other)


def _refuse_grids(spec: KernelSpec, first: tuple[Param, Any], second: tuple[Param, Any], origin: Origin) -> NoReturn:
    (one, a), (other, b) = first, second
    what = (
        f"its tiles make a grid of {b.grid} (shape {b.shape}, tile {b.tile}), but those of output "
        f"{one.name!r} make one of {a.grid} (shape {a.shape}, tile {a.tile})"
    )
    refuse_call(
        spec,
        origin,
        what,
        f"Cut both into equally many tiles, or give the grid: {spec.name}.grid(...)(...)",
        other,
    )
