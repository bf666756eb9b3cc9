"""Fills and copies on the device: chooses a driver call or a kernel, and packs its parameters.

Nothing here needs a GPU. A kernel's source is assembled from prelude/*.cuh. It depends only on the kind of work and the
element types, so that few modules are ever compiled; everything else is a parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from operator import attrgetter
from pathlib import Path
from struct import pack
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, assert_never, final

import numpy as np

from dagpu.backends.cuda.driver.driver_protocol import CopyNode, FillNode, Gpu, RawStream
from dagpu.backends.host.numpy_initializers import write_constant
from dagpu.common.errors import ShapeError
from dagpu.common.layout import Layout, strides_of
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Recipe, Uniform, check_recipe

# ---- strided loops over two arrays of one shape, in the form that the kernels of walk.cuh take ------------------
# The arrays are the output and the source (of a fill: the elements' numbers). The host reduces the loop first: it drops
# axes of extent 1, makes all strides in the output positive, sorts the axes in the order of the output's memory, and
# merges neighbours that are contiguous in both arrays. Most loops have one or two axes then.


FEW_AXES: Final = 4
"""The most axes of a small loop. With fewer than 2**31 elements, its kernel computes indices by multiplication instead
of division."""
MAX_AXES: Final = 32


@final
class Start(NamedTuple):
    """The start of a loop in both arrays, in bytes (of a fill's numbers: in elements)."""

    out: int
    source: int


@final
class Axis(NamedTuple):
    """One axis of a loop: its extent, and its strides in the output and in the source."""

    extent: int
    out: int
    source: int


@final
class StridedLoop(NamedTuple):
    """A loop over two arrays: `Walk` in walk.cuh. The axis with the smallest stride in the output comes first."""

    size: int
    start: Start
    axes: tuple[Axis, ...]

    def dense(self, out_size: int, source_size: int) -> bool:
        """Return True if both arrays are contiguous and in the same order."""
        return not self.axes or (len(self.axes) == 1 and self.axes[0][1:] == (out_size, source_size))


def reduce_loop(shape: Sequence[int], start: Start, out: Sequence[int], source: Sequence[int]) -> StridedLoop:
    """Return the reduced loop over two arrays of this shape with these strides. No extent may be 0.

    Raises:
        ShapeError: more than `MAX_AXES` axes cannot be merged.
    """
    out_start, source_start = start
    axes: list[Axis] = []
    for extent, a, b in zip(shape, out, source, strict=True):
        if extent == 1:
            continue
        if a < 0:
            out_start, source_start = out_start + (extent - 1) * a, source_start + (extent - 1) * b
        axes.append(Axis(extent, a, b) if a >= 0 else Axis(extent, -a, -b))
    merged: list[Axis] = []
    for axis in sorted(axes, key=attrgetter("out")):
        inner = merged[-1] if merged else None
        if inner is not None and axis[1:] == (inner.out * inner.extent, inner.source * inner.extent):
            merged[-1] = inner._replace(extent=inner.extent * axis.extent)
        else:
            merged.append(axis)
    if len(merged) > MAX_AXES:
        raise ShapeError(
            f"{len(merged)} axes of shape {tuple(shape)} cannot be merged, but a kernel takes at most {MAX_AXES}. Copy "
            "or fill the array in parts."
        )
    return StridedLoop(prod(shape), Start(out_start, source_start), tuple(merged))


def choose_kernel(walk: StridedLoop, name: str) -> tuple[int, str]:
    """Return the number of axes that the kernel's parameter can hold, and the kernel's name."""
    few = len(walk.axes) <= FEW_AXES and walk.size < 1 << 31
    return (FEW_AXES, f"{name}_few") if few else (MAX_AXES, f"{name}_many")


def packed(walk: StridedLoop, room: int) -> bytes:
    """Pack a loop as the kernel's parameter, with room for `room` axes."""
    parts = [pack("<QqqQ", walk.size, *walk.start, len(walk.axes))]
    for axis in walk.axes:
        # Granlund and Montgomery's multiplier for a 32-bit division, less its top bit; see walk.cuh.
        shift = (axis.extent - 1).bit_length()
        multiplier = ((1 << 32) * ((1 << shift) - axis.extent)) // axis.extent + 1 if shift < 32 else 0
        parts.append(pack("<QqqII", *axis, multiplier, shift))
    return b"".join(parts).ljust(32 + 32 * room, b"\0")


THREADS: Final = 256
MAX_BLOCKS: Final = 1 << 14
"""The most blocks of a grid. In larger work each thread loops: 15 or more rounds on an H200, so that an incomplete last
round costs little."""

MIN_ROW: Final = 64
"""Bytes: a kernel, not `cuMemcpy2D`, copies rows that are shorter than two memory transactions."""
LARGE_COPY: Final = 256 << 20
"""Bytes: in a graph a kernel, and not a memcpy node, makes larger copies. On an H200 both take 125 us for this many,
and for twice as many the node takes 422 us and a kernel 250. In a stream a memcpy is as fast as a kernel for any size.
"""
MAX_PITCH: Final = (1 << 31) - 1
"""The driver's limit on a pitch in bytes (CU_DEVICE_ATTRIBUTE_MAX_PITCH)."""

_DType: TypeAlias = "np.dtype[Any]"


@final
@dataclass(frozen=True, slots=True)
class BuiltinWork:
    """A launch of one of dagpu's own kernels."""

    source: str
    """Complete CUDA C++, for NVRTC and nvcc alike."""
    name: str
    """The `extern "C"` kernel in it."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: bytes
    """The packed parameters, with 0 for addresses."""
    pointers: tuple[int, ...]
    """The offsets in `arguments` of the addresses (8 bytes each): that of the output's memory, then that of the
    source's; of a decision those of its flags. Each is the start of a block of memory; the layouts' own offsets are
    other parameters."""
    seed: int | None = None
    """The offset in `arguments` of the seed (8 bytes) that each run gives; None if there is none."""


@final
class PlacedWork(NamedTuple):
    """A launch of one of dagpu's own kernels, and the buffers that it accesses: of the output and of the source, each
    a base and a distance from it in bytes."""

    work: BuiltinWork
    places: tuple[tuple[int, int], tuple[int, int]]


class HasBases(Protocol):
    """The part of a run's buffers that a memset or memcpy reads."""

    @property
    def bases(self) -> Sequence[int]:
        """The addresses from which the plan's addresses are counted."""
        ...


class HasGpu(Protocol):
    """The part of a device that a memset or memcpy calls."""

    @property
    def gpu(self) -> Gpu: ...


UNPLACED: Final = -1
"""The base of a memset or memcpy that has no place yet: its offsets are relative to the start of its buffer."""


@final
@dataclass(frozen=True, slots=True)
class Memset:
    """Writes the `width` (1, 2 or 4) bytes of `value` to `count` elements, from `offset` on. With a `count` of 0 it
    does nothing.

    A placed memset is a command: call it with the run's buffers, the device and a stream.
    """

    width: int
    value: int
    count: int
    offset: int
    base: int = UNPLACED

    def placed(self, out: tuple[int, int]) -> "Memset":
        """Return the same memset in a buffer that begins at `out`: a base and a distance from it in bytes."""
        base, offset = out
        return Memset(self.width, self.value, self.count, offset + self.offset, base)

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return self.width * self.count

    @property
    def bases(self) -> tuple[int]:
        """The base of the memset's address."""
        return (self.base,)

    def __call__(self, buffers: HasBases, device: HasGpu, stream: RawStream) -> None:
        if self.count:
            device.gpu.fill(buffers.bases[self.base] + self.offset, self.width, self.value, self.count, stream)

    def node(self, bases: Sequence[int]) -> FillNode:
        """Return the equivalent node of a graph."""
        return FillNode(bases[self.base] + self.offset, self.width, self.value, self.count)


@final
@dataclass(frozen=True, slots=True)
class Memcpy:
    """Copies `nbytes` bytes from and to these offsets. With 0 bytes it does nothing.

    A placed memcpy is a command. It copies within a device or between two, which the driver determines from the
    addresses.
    """

    nbytes: int
    out_offset: int
    source_offset: int
    out_base: int = UNPLACED
    source_base: int = UNPLACED
    by_kernel: PlacedWork | None = None
    """The equivalent kernel, for graphs; None if a node that copies is as fast."""

    def placed(self, out: tuple[int, int], source: tuple[int, int], by_kernel: BuiltinWork | None = None) -> "Memcpy":
        """Return the same memcpy in buffers that begin at `out` and `source`: each a base and a distance from it in
        bytes."""
        starts = out[1] + self.out_offset, source[1] + self.source_offset
        kernel = None if by_kernel is None else PlacedWork(by_kernel, (out, source))
        return Memcpy(self.nbytes, *starts, out[0], source[0], kernel)

    @property
    def bases(self) -> tuple[int, int]:
        """The bases of the memcpy's addresses."""
        return self.out_base, self.source_base

    def __call__(self, buffers: HasBases, device: HasGpu, stream: RawStream) -> None:
        if self.nbytes:
            bases = buffers.bases
            target, origin = bases[self.out_base] + self.out_offset, bases[self.source_base] + self.source_offset
            device.gpu.copy(target, origin, self.nbytes, stream)

    def node(self, bases: Sequence[int]) -> CopyNode:
        """Return the equivalent node of a graph."""
        target, origin = bases[self.out_base] + self.out_offset, bases[self.source_base] + self.source_offset
        return CopyNode("within", target, origin, self.nbytes)


@final
@dataclass(frozen=True, slots=True)
class Memcpy2D:
    """Copies `height` rows of `width` bytes. The starts of rows are a pitch of at least `width` bytes apart.

    A placed memcpy is a command: call it with the run's buffers, the device and a stream.
    """

    width: int
    height: int
    out_pitch: int
    source_pitch: int
    out_offset: int
    source_offset: int
    out: tuple[int, int] = (UNPLACED, 0)
    """The start of the output's buffer: a base and a distance from it in bytes. `out_offset` is relative to it."""
    source: tuple[int, int] = (UNPLACED, 0)
    by_kernel: BuiltinWork | None = None
    """The equivalent kernel, for graphs."""

    def placed(self, out: tuple[int, int], source: tuple[int, int], by_kernel: BuiltinWork) -> "Memcpy2D":
        """Return the same memcpy in buffers that begin at `out` and `source`: each a base and a distance from it in
        bytes."""
        return replace(self, out=out, source=source, by_kernel=by_kernel)

    def __call__(self, buffers: HasBases, device: HasGpu, stream: RawStream) -> None:
        (out_base, out_start), (source_base, source_start) = self.out, self.source
        target = buffers.bases[out_base] + out_start + self.out_offset
        origin = buffers.bases[source_base] + source_start + self.source_offset
        pitches = self.out_pitch, self.source_pitch
        device.gpu.copy_pitched(target, origin, self.width, self.height, pitches, stream)


def fill(recipe: Recipe, layout: Layout) -> BuiltinWork | Memset:
    """Choose a kernel or a memset that initialises every element of `layout` by `recipe`. The bits are those of the
    host backend, except for `Normal` (see there).

    Raises:
        TypeError, OverflowError, ValueError, ShapeError: as `dagpu.ops.initializers.check_recipe`.
        ShapeError: more than `MAX_AXES` axes that cannot be merged.
    """
    # Equal recipes may differ in the sign of zero, or in int against float: their repr distinguishes them.
    return _fill(repr(recipe), recipe, layout)


@lru_cache(maxsize=1024)
def copy(out: Layout, source: Layout, *, by_kernel: bool = False) -> BuiltinWork | Memcpy | Memcpy2D:
    """Choose a kernel or a memcpy that copies `source` to `out`, of the same shape, and converts elements as NumPy does
    with `casting="unsafe"`.

    Two results are unspecified, as in C: a floating-point number outside the range of an integer type (the GPU gives
    the nearest end of the range, and 0 or the least integer for NaN), and the sign and payload of a NaN. The layouts
    must not share memory. With `by_kernel` the choice is a kernel, if there is an element.

    Raises:
        ShapeError: the shapes differ, or more than `MAX_AXES` axes cannot be merged.
    """
    if out.shape != source.shape:
        raise ShapeError(f"cannot copy {source.shape} to {out.shape}. Give both the same shape.")
    if out.size == 0:
        return Memcpy(0, out.offset, source.offset)
    if source.dtype.kind == "c":
        return copy(_parts(out), _parts(source), by_kernel=by_kernel)
    if out.dtype.names is not None:
        size = _word_of(out, source)
        return copy(_words(out, size), _words(source, size), by_kernel=by_kernel)
    walk = reduce_loop(out.shape, Start(out.offset, source.offset), out.strides, source.strides)
    types = _c_type(out.dtype), "dagpu::boolean" if source.dtype.kind == "b" else _c_type(source.dtype)
    dense = walk.dense(out.dtype.itemsize, source.dtype.itemsize)
    if _same_bits(out.dtype, source.dtype):
        if dense and not by_kernel:
            return Memcpy(out.nbytes, *walk.start)
        if not by_kernel and (pitched := _rows(walk, out.dtype.itemsize)) is not None:
            return pitched
        types = (_UNSIGNED[out.dtype.itemsize],) * 2
    text = _text("numbers", "walk", "copy") + _COPY_ENTRIES.format(out=types[0], source=types[1])
    if dense:
        lanes = 16 // max(out.dtype.itemsize, source.dtype.itemsize)
        arguments = pack("<QQqqQ", 0, 0, *walk.start, walk.size)
        return BuiltinWork(text, "dagpu_copy_dense", _grid(walk.size, lanes), (THREADS, 1, 1), arguments, (0, 8))
    room, name = choose_kernel(walk, "dagpu_copy")
    return BuiltinWork(text, name, _grid(walk.size, 1), (THREADS, 1, 1), pack("<QQ", 0, 0) + packed(walk, room), (0, 8))


@lru_cache(maxsize=1024)
def _fill(_exact: str, recipe: Recipe, layout: Layout) -> BuiltinWork | Memset:
    check_recipe(recipe, layout.dtype, layout.shape)
    itemsize = layout.dtype.itemsize
    if layout.size == 0:
        return Memset(min(itemsize, 4), 0, 0, layout.offset)
    # The elements of a constant are equal, so axes are merged by the output's strides alone.
    numbers = layout.strides if isinstance(recipe, Constant) else strides_of(layout.shape, 1)
    walk = reduce_loop(layout.shape, Start(layout.offset, 0), layout.strides, numbers)
    if isinstance(recipe, Constant):
        bits, dense = _bits(recipe, layout.dtype), walk.dense(itemsize, itemsize)
        if dense and itemsize < 8:
            return Memset(itemsize, bits, walk.size, walk.start.out)
        words = {bits >> 32 * k & 0xFFFFFFFF for k in range(itemsize // 4)}
        if dense and itemsize >= 8 and len(words) == 1:
            return Memset(4, words.pop(), itemsize // 4 * walk.size, walk.start.out)
        if itemsize == 16:
            formula = _Formula("ConstantWide", 1, pack("<QQ", bits % _MODULUS, bits >> 64))
        else:
            formula = _Formula(f"Constant<{_UNSIGNED[itemsize]}>", 16 // itemsize, pack("<Q", bits))
    else:
        dense = walk.dense(itemsize, 1)
        formula = _formula(recipe, layout)
    without_seed = isinstance(recipe, Uniform | Normal) and recipe.seed is None
    parts = (
        ("numbers", "walk", "fill", "philox") if isinstance(recipe, Uniform | Normal) else ("numbers", "walk", "fill")
    )
    text = _text(*parts) + _FILL_ENTRIES.format(formula=formula.c_type)
    if dense:
        arguments = pack("<QqQ", 0, walk.start.out, walk.size) + formula.packed
        name, grid = "dagpu_fill_dense", _grid(walk.size, formula.lanes)
    else:
        room, name = choose_kernel(walk, "dagpu_fill")
        arguments, grid = pack("<Q", 0) + packed(walk, room) + formula.packed, _grid(walk.size, 1)
    seed = len(arguments) - 8 if without_seed else None  # the last field of either formula
    return BuiltinWork(text, name, grid, (THREADS, 1, 1), arguments, (0,), seed)


# ---- formulas -----------------------------------------------------------------------------------
class _Formula(NamedTuple):
    """A struct of fill.cuh or philox.cuh: its C++ type, the elements that a thread writes at a time, its packed
    fields."""

    c_type: str
    lanes: int
    packed: bytes


_NO_ELEMENT: Final = (1 << 64) - 1
_MODULUS: Final = 1 << 64


def _formula(recipe: Arange | Linspace | Eye | Uniform | Normal, layout: Layout) -> _Formula:
    c_type, lanes = _c_type(layout.dtype), 16 // layout.dtype.itemsize
    match recipe:
        case Arange(start, step):
            if layout.dtype.kind in "biu":
                return _Formula(f"Whole<{c_type}>", lanes, pack("<QQ", int(start) % _MODULUS, int(step) % _MODULUS))
            return _Formula(f"Line<{c_type}>", lanes, pack("<dddQ", float(start), float(step), 0.0, _NO_ELEMENT))
        case Linspace(start, stop, num):
            first, end = float(start), float(stop)
            step, last = ((end - first) / float(num - 1), num - 1) if num > 1 else (0.0, _NO_ELEMENT)
            return _Formula(f"Line<{c_type}>", lanes, pack("<dddQ", first, step, end, last))
        case Eye():
            return _Formula(f"Eye<{c_type}>", lanes, pack("<Q", layout.shape[1]))
        case Uniform(seed, stream):
            lanes = 2 if layout.dtype.itemsize == 8 else 4
            return _Formula(f"Uniform<{c_type}, {stream}>", lanes, packed_seed(seed or 0))
        case Normal(mean, std, seed):
            return _Formula(f"Normal<{c_type}>", 2, pack("<dd", float(mean), float(std)) + packed_seed(seed or 0))
        case _:
            assert_never(recipe)


def packed_seed(seed: int) -> bytes:
    """Return a seed as the 8 bytes that the formulas take."""
    return pack("<Q", seed % _MODULUS)


def _bits(recipe: Constant, dtype: _DType) -> int:
    one = np.empty(1, dtype)
    write_constant(recipe.value, one)
    return int.from_bytes(one.tobytes(), "little")


# ---- element types --------------------------------------------------------------------------------
_UNSIGNED: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_SIGNED: Final = {1: "signed char", 2: "short", 4: "int", 8: "long long"}
_OTHERS: Final = {
    "float16": "dagpu::float16",
    "bfloat16": "dagpu::bfloat16",
    "float32": "float",
    "float64": "double",
    "bool": "bool",
    "complex64": "dagpu::Complex<float>",
    "complex128": "dagpu::Complex<double>",
}


def _c_type(dtype: _DType) -> str:
    if dtype.kind in "iu":
        return (_SIGNED if dtype.kind == "i" else _UNSIGNED)[dtype.itemsize]
    return _OTHERS[dtype.name]


def _parts(layout: Layout) -> Layout:
    """Return complex elements as real ones, with another axis for the two parts of each."""
    size = layout.dtype.itemsize // 2
    return Layout(np.dtype(f"f{size}"), (*layout.shape, 2), (*layout.strides, size), layout.offset)


def _word_of(out: Layout, source: Layout) -> int:
    """Return the size of the largest words of which structures in both places consist."""
    places = [out.dtype.itemsize, out.offset, source.offset, *out.strides, *source.strides]
    return next(size for size in (8, 4, 2, 1) if not any(place % size for place in places))


def _words(layout: Layout, size: int) -> Layout:
    """Return structures as words of this size, with another axis for the words of each."""
    count = layout.dtype.itemsize // size
    return Layout(np.dtype(f"u{size}"), (*layout.shape, count), (*layout.strides, size), layout.offset)


def _same_bits(out: _DType, source: _DType) -> bool:
    """Return True if the conversion changes no bit."""
    if out == source:
        return True
    return out.itemsize == source.itemsize and out.kind in "iu" and source.kind in "iu"


# ---- copies of rows, grids ----------------------------------------------------------------------
def _rows(walk: StridedLoop, itemsize: int) -> Memcpy2D | None:
    """Return the loop as a copy of pitched rows; None if it is not one."""
    if len(walk.axes) != 2 or walk.axes[0][1:] != (itemsize, itemsize):
        return None
    width, (height, out_pitch, source_pitch) = walk.axes[0].extent * itemsize, walk.axes[1]
    if width < MIN_ROW or not all(width <= pitch <= MAX_PITCH for pitch in (out_pitch, source_pitch)):
        return None
    return Memcpy2D(width, height, out_pitch, source_pitch, *walk.start)


def _grid(count: int, lanes: int) -> tuple[int, int, int]:
    return min(-(-count // (lanes * THREADS)), MAX_BLOCKS), 1, 1


# ---- text ---------------------------------------------------------------------------------------------
_PRELUDE: Final = Path(__file__).resolve().parent / "prelude"

_FILL_ENTRIES: Final = """
typedef dagpu::{formula} Formula;
extern "C" __global__ void dagpu_fill_dense(
    char* out, long long offset, unsigned long long count, const __grid_constant__ Formula formula
) {{
    dagpu::fill_dense(out, offset, count, formula);
}}
extern "C" __global__ void dagpu_fill_few(
    char* out, const __grid_constant__ dagpu::Walk<4> walk, const __grid_constant__ Formula formula
) {{
    dagpu::fill_walk(out, walk, formula);
}}
extern "C" __global__ void dagpu_fill_many(
    char* out, const __grid_constant__ dagpu::Walk<32> walk, const __grid_constant__ Formula formula
) {{
    dagpu::fill_walk(out, walk, formula);
}}
"""

_COPY_ENTRIES: Final = """
extern "C" __global__ void dagpu_copy_dense(
    char* out, const char* source, long long out_offset, long long source_offset, unsigned long long count
) {{
    dagpu::copy_dense<{out}, {source}>(out, source, out_offset, source_offset, count);
}}
extern "C" __global__ void dagpu_copy_few(
    char* out, const char* source, const __grid_constant__ dagpu::Walk<4> walk
) {{
    dagpu::copy_walk<{out}, {source}>(out, source, walk);
}}
extern "C" __global__ void dagpu_copy_many(
    char* out, const char* source, const __grid_constant__ dagpu::Walk<32> walk
) {{
    dagpu::copy_walk<{out}, {source}>(out, source, walk);
}}
"""


@lru_cache(maxsize=8)
def _text(*parts: str) -> str:
    """Return these files of the prelude, concatenated. Each occurs once, so none includes another."""
    texts = ((_PRELUDE / f"{part}.cuh").read_text(encoding="utf-8") for part in parts)
    return "\n".join(text.replace("#pragma once\n", "") for text in texts)


# ---- the kernel that writes the addresses of lists of tensors


MOST_ADDRESSES: Final = 500
"""The most addresses that one launch writes: its parameters have at most 4,096 bytes."""


def addresses(count: int) -> BuiltinWork:
    """Return the launch that writes so many addresses one after the other. The parameters are the address to which the
    first one is written, and the addresses."""
    text = f"""\
struct Addresses {{ unsigned long long at[{count}]; }};
extern "C" __global__ void dagpu_addresses(unsigned long long* out, const __grid_constant__ Addresses addresses) {{
    for (unsigned int i = threadIdx.x; i < {count}; i += blockDim.x) out[i] = addresses.at[i];
}}
"""
    pointers = tuple([8 * n for n in range(count + 1)])
    return BuiltinWork(text, "dagpu_addresses", (1, 1, 1), (32, 1, 1), bytes(8 * count + 8), pointers)


# ---- the kernel that sets the condition of a conditional node of a graph ----------------------------------------


# A kernel calls `cudaGraphSetConditional` in CUDA C++. No device runtime is linked for that: ptxas leaves the function
# undefined in the cubin, as it does `malloc`, and the driver provides it when it loads the module. NVRTC has no
# declaration of it, and nvcc has the same one.
_TEXT: Final = """\
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void dagpu_decide(unsigned long long handle, {parameters}) {{
    bool found = false;
{loops}
    const int any = __syncthreads_or(found);
    if (threadIdx.x == 0) cudaGraphSetConditional(handle, any != 0);
}}
"""


def decide(counts: Sequence[int]) -> BuiltinWork:
    """Return the launch that sets a condition to 1 if one of the flags is not 0, else to 0.

    The flags are 32-bit numbers in arrays of these lengths. The parameters are the handle of the condition, the
    addresses of the arrays, and their lengths.
    """
    numbers = range(len(counts))
    addresses = [f"const unsigned int* flags{n}" for n in numbers]
    lengths = [f"unsigned int count{n}" for n in numbers]
    loops = [
        f"    for (unsigned int i = threadIdx.x; i < count{n}; i += blockDim.x) found |= flags{n}[i] != 0;"
        for n in numbers
    ]
    text = _TEXT.format(parameters=", ".join([*addresses, *lengths]), loops="\n".join(loops))
    arguments = pack(f"<Q{len(counts)}Q{len(counts)}I", 0, *[0] * len(counts), *counts)
    pointers = tuple([8 + 8 * n for n in numbers])
    return BuiltinWork(text, "dagpu_decide", (1, 1, 1), (THREADS, 1, 1), arguments, pointers)
