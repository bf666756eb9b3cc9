"""Fills and copies of the CUDA backend: the kernels, run on the CPU, against what the host backend writes."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu.backends.cuda.kernels import fill_and_copy
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy, Memcpy2D, Memset, copy, fill
from dagpu.backends.host import numpy_initializers
from dagpu.backends.host.numpy_initializers import write
from dagpu.common.errors import ShapeError
from dagpu.common.layout import COMPLEX, FLOATING, SUPPORTED, Layout, bf16
from dagpu.ops.initializers import Eye, Linspace, Recipe
from dagpu.testing import Arange, Constant, Normal, Uniform, contiguous_layout, slice_layout
from tests.support.text_entries import TextEntries

DType: TypeAlias = np.dtype[Any]
Work: TypeAlias = BuiltinWork | Memset | Memcpy | Memcpy2D
TYPES = sorted(SUPPORTED - COMPLEX, key=str)
COMPLEX_TYPES = sorted(COMPLEX, key=str)
CONVERTED = [np.dtype(t) for t in ("?", "i1", "u2", "i4", "i8", "u8", "f2", bf16, "f4", "f8")]
"""One element type of each size and kind that conversions tell apart."""
F32 = np.dtype(np.float32)
ENTRIES = ("dense", "few", "many")
GRIDS = st.sampled_from([((1,), (1,)), ((1,), (3,)), ((2,), (4,)), ((3,), (64,))])


HALVES = """
namespace dagpu {
inline unsigned short half_bits(double x) { return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x)); }
inline unsigned short half_bits(float x) { return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x)); }
inline float half_value(unsigned short bits) { return __builtin_bit_cast(_Float16, bits); }
}
"""
"""The three functions that `numbers.cuh` has in PTX."""


# ---- running ------------------------------------------------------------------------------------
def grid_of(dtype: DType) -> Layout:
    """A layout that no driver call fills or copies."""
    return Layout(dtype, (4, 4), (16 * dtype.itemsize, 4 * dtype.itemsize), 0)


def all_sources() -> list[str]:
    """Every text that is ever compiled for `TYPES` and `CONVERTED`."""
    recipes: list[Recipe] = [
        Constant(1),
        Arange(1, 0),
        Eye(),
        Linspace(0.0, 1.0, 16),
        Uniform(1),
        Uniform(1, 3),
        Normal(0.0, 1.0, 1),
    ]
    works: list[Work] = []
    for dtype in TYPES:
        usable = recipes if dtype in FLOATING else recipes[: 3 if dtype.kind == "b" else 4]
        works += [fill(recipe, grid_of(dtype)) for recipe in usable]
    works += [fill(Constant(1), grid_of(dtype)) for dtype in COMPLEX_TYPES]
    works += [copy(grid_of(out), grid_of(source)) for out in COMPLEX_TYPES for source in COMPLEX_TYPES]
    works += [copy(grid_of(out), grid_of(source)) for out in CONVERTED for source in CONVERTED]
    return list(dict.fromkeys(work.source for work in works if isinstance(work, BuiltinWork)))


def renamed(source: str, number: int) -> str:
    """Return the part of `source` after the prelude, with unique names, so that it can be compiled together with
    others.
    """
    at = max(source.rfind("\ntypedef dagpu::"), 0) or source.index('\nextern "C"')
    text = source[at:].replace("Formula", f"Formula{number}")
    for kind in ("fill", "copy"):
        for entry in ENTRIES:
            text = text.replace(f"dagpu_{kind}_{entry}", f"dagpu_{kind}_{entry}_{number}")
    return text


@dataclass
class Device:
    """Runs a `Work` as the backend would, on NumPy arrays of bytes."""

    kernels: TextEntries
    numbers: dict[str, int]

    def run(
        self,
        work: Work,
        out: NDArray[np.uint8],
        source: NDArray[np.uint8] | None = None,
        shape: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
    ) -> None:
        match work:
            case BuiltinWork():
                packed = bytearray(work.arguments)
                for at, memory in zip(work.pointers, (out, source), strict=False):
                    assert memory is not None
                    packed[at : at + 8] = pack("<Q", memory.ctypes.data)
                name = f"{work.name}_{self.numbers[work.source]}"
                self.kernels.launch(name, *(shape or (work.grid, work.block)), bytes(packed))
            case Memset(width, value, count, offset):
                out[offset : offset + width * count] = np.frombuffer(value.to_bytes(width, "little") * count, np.uint8)
            case Memcpy(nbytes, to, start):
                assert source is not None
                out[to : to + nbytes] = source[start : start + nbytes]
            case Memcpy2D(width, height, out_pitch, source_pitch, to, start):
                assert source is not None
                for row in range(height):
                    at, origin = to + row * out_pitch, start + row * source_pitch
                    out[at : at + width] = source[origin : origin + width]


@pytest.fixture(scope="session")
def device() -> Device:
    texts = [HALVES, fill_and_copy._text("numbers", "walk", "fill", "philox", "copy")]  # noqa: SLF001  # the text of one part of it
    numbers = {source: number for number, source in enumerate(all_sources())}
    names = []
    for source, number in numbers.items():
        kind = "fill" if "dagpu_fill_few" in source else "copy"
        names += [f"dagpu_{kind}_{entry}_{number}" for entry in ENTRIES]
        texts.append(renamed(source, number))
    return Device(TextEntries("\n".join(texts), {name: name for name in names}), numbers)


# ---- layouts --------------------------------------------------------------------------------------
@st.composite
def layouts(draw: st.DrawFn, dtype: DType, shape: tuple[int, ...]) -> Layout:
    """A layout of that shape in any order of axes, with gaps and negative strides, not at the memory's start."""
    steps = [draw(st.sampled_from([1, 1, 2, -1, -3])) for _ in shape]
    strides, at, offset = [0] * len(shape), dtype.itemsize, dtype.itemsize * draw(st.integers(0, 5))
    for axis in draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else reversed(range(len(shape))):
        strides[axis] = at * steps[axis]
        offset += at * max(-steps[axis], 0) * max(shape[axis] - 1, 0)
        at *= max(shape[axis], 1) * abs(steps[axis])
    return Layout(dtype, shape, tuple(strides), offset)


shapes = st.one_of(
    st.lists(st.integers(0, 6), max_size=4).map(tuple), st.lists(st.integers(1, 3), min_size=5, max_size=6).map(tuple)
)


def memory_for(layout: Layout) -> NDArray[np.uint8]:
    """Bytes enough for a layout, all the same, aligned as device memory is."""
    size = (
        layout.offset + sum(max(e - 1, 0) * max(s, 0) for e, s in zip(layout.shape, layout.strides, strict=True)) + 64
    )
    raw = np.full(size + 256, 0xA5, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start : start + size]


def array_of(memory: NDArray[np.uint8], layout: Layout) -> NDArray[Any]:
    return np.ndarray(layout.shape, layout.dtype, memory, layout.offset, layout.strides)


# ---- fills ------------------------------------------------------------------------------------------
halves = st.integers(-400, 400).map(lambda n: n / 8)


def recipes_for(dtype: DType, shape: tuple[int, ...]) -> st.SearchStrategy[Recipe]:
    """Recipes that the element type can hold, for a tensor of that shape."""
    least = 0 if dtype.kind == "u" else -100
    size = int(np.prod(shape, dtype=int))
    small = st.integers(least, 100)
    numbers = small | (small.map(float) if dtype.kind in "iu" else halves) | st.sampled_from([0.0, -0.0, 0])
    kinds: list[st.SearchStrategy[Recipe]] = []
    if dtype.kind == "b":
        kinds.append(st.builds(Constant, st.sampled_from([0.0, -0.0, 0, True, False, 1])))
        kinds.append(st.builds(Arange, st.sampled_from([0, 1.0]), st.just(0)))
    else:
        kinds.append(st.builds(Constant, numbers))
        kinds.append(st.builds(Linspace, numbers, numbers, st.just(size)))
    if dtype.kind in "iu":
        steps = st.integers(0, 100 // max(size, 1))
        kinds.append(st.builds(Arange, st.integers(least, 20), steps | steps.map(float)))
    elif dtype.kind != "b":
        kinds.append(st.builds(Arange, numbers, st.integers(-3, 3) | halves))
    if len(shape) == 2:
        kinds.append(st.just(Eye()))
    if dtype in FLOATING:
        kinds.append(st.builds(Uniform, st.integers(-(2**64), 2**64)))
    return st.one_of(kinds)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_fills_are_the_hosts_bits(device: Device, dtype: DType, data: st.DataObject) -> None:
    """Every recipe in every element type and memory order, by any grid; what lies between the elements stays."""
    layout = data.draw(shapes.flatmap(lambda shape: layouts(dtype, shape)))
    recipe, grid = data.draw(recipes_for(dtype, layout.shape)), data.draw(GRIDS)
    expected, found = memory_for(layout), memory_for(layout)
    write(recipe, array_of(expected, layout))
    device.run(fill(recipe, layout), found, shape=grid)
    assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", sorted(FLOATING, key=str), ids=str)
@settings(max_examples=25)
@given(data=st.data())
def test_normal_is_the_hosts_within_its_tolerance(device: Device, dtype: DType, data: st.DataObject) -> None:
    """`Normal` differs by what `dagpu.ops.initializers.Normal` allows: 8 ulp in f64, 1 ulp in the other types."""
    layout = data.draw(shapes.flatmap(lambda shape: layouts(dtype, shape)))
    recipe = Normal(data.draw(halves), data.draw(halves.map(abs)), data.draw(st.integers(0, 2**64)))
    grid = data.draw(GRIDS)
    expected, found = memory_for(layout), memory_for(layout)
    write(recipe, array_of(expected, layout))
    device.run(fill(recipe, layout), found, shape=grid)
    wanted, got = (array_of(memory, layout).astype(np.float64) for memory in (expected, found))
    digits = numpy_initializers.DIGITS[dtype]
    size = np.maximum(abs(recipe.mean), abs(wanted - recipe.mean))
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(size, 2.0**-14))) + 1 - digits)
    assert np.all(np.abs(got - wanted) <= (8 if digits == 53 else 1) * ulp)


@pytest.mark.parametrize("recipe", [Arange(0.5, 0.25), Uniform(7), Uniform(7, 3), Normal(1.0, 2.0, 7), Eye()], ids=repr)
def test_large_contiguous_fills(device: Device, recipe: Recipe) -> None:
    """A whole launch, with the grid and the blocks it asks for, over more elements than one round of threads."""
    layout = contiguous_layout((301, 211), F32)
    expected, found = memory_for(layout), memory_for(layout)
    write(recipe, array_of(expected, layout))
    device.run(fill(recipe, layout), found)
    if isinstance(recipe, Normal):
        np.testing.assert_allclose(array_of(found, layout), array_of(expected, layout), rtol=1e-6, atol=1e-6)
    else:
        assert_array_equal(found, expected)


@pytest.mark.parametrize("first", [2**32 - 5, 2**40 + 3, 2**62 + 1])
def test_element_numbers_have_64_bits(device: Device, first: int) -> None:
    """Far out in a tensor the formulas hold: random blocks by 64-bit counters, lines by f64 of the number."""
    layout = Layout(F32, (8,), (8,), 0)

    def far(recipe: Recipe) -> NDArray[np.float32]:
        work = fill(recipe, layout)
        assert isinstance(work, BuiltinWork)
        moved = work.arguments[:24] + pack("<q", first) + work.arguments[32:]  # pointer, count, out's start, number
        memory = memory_for(layout)
        device.run(BuiltinWork(work.source, work.name, work.grid, work.block, moved, work.pointers), memory)
        return array_of(memory, layout).copy()

    assert_array_equal(far(Uniform(5)), numpy_initializers.uniform(5, first, 8, F32))
    numbers = np.arange(first, first + 8, dtype=np.int64).astype(np.float64)
    assert_array_equal(far(Arange(1.0, 0.5)), (1.0 + numbers * 0.5).astype(np.float32))


def test_equal_recipes_with_other_bits_are_told_apart() -> None:
    """Python holds 0.0 and -0.0 for equal; their elements are not."""
    layout = contiguous_layout((4,), F32)
    assert fill(Constant(0.0), layout) == Memset(4, 0, 4, 0)
    assert fill(Constant(-0.0), layout) == Memset(4, 0x80000000, 4, 0)


@pytest.mark.parametrize(
    ("recipe", "layout", "expected"),
    [
        (Constant(1), contiguous_layout((2, 3), np.dtype(np.bool_)), Memset(1, 1, 6, 0)),
        (Constant(1.5), contiguous_layout((3,), np.dtype(np.float16)), Memset(2, 0x3E00, 3, 0)),
        (Constant(-1), contiguous_layout((3,), np.dtype(np.int64)), Memset(4, 0xFFFFFFFF, 6, 0)),
        (Constant(0), contiguous_layout((3,), np.dtype(np.float64)), Memset(4, 0, 6, 0)),
        (Constant(2.0), Layout(F32, (4, 2), (-8, -4), 28), Memset(4, 0x40000000, 8, 0)),
        (Constant(2.0), Layout(F32, (2, 4), (4, 8), 16), Memset(4, 0x40000000, 8, 16)),
        (Arange(0, 1), contiguous_layout((0, 3), F32), Memset(4, 0, 0, 0)),
    ],
)
def test_constants_in_one_piece_are_set_by_the_driver(recipe: Recipe, layout: Layout, expected: Memset) -> None:
    """The driver sets constants in one piece, also in a reversed or transposed piece, and 64-bit elements with two
    equal halves.
    """
    assert fill(recipe, layout) == expected


def test_other_constants_need_a_kernel() -> None:
    """64-bit elements whose halves differ, and elements with gaps between them."""
    wide = fill(Constant(1.0), contiguous_layout((3,), np.dtype(np.float64)))
    gaps = fill(Constant(1.0), Layout(F32, (3,), (8,), 0))
    assert isinstance(wide, BuiltinWork)
    assert wide.name == "dagpu_fill_dense"
    assert isinstance(gaps, BuiltinWork)
    assert gaps.name == "dagpu_fill_few"


def test_a_recipe_that_does_not_fit_is_refused() -> None:
    """With the host's error."""
    with pytest.raises(OverflowError, match="300 is outside the range of int8"):
        fill(Constant(300), contiguous_layout((3,), np.dtype(np.int8)))
    with pytest.raises(ShapeError):
        fill(Eye(), contiguous_layout((3,), F32))


# ---- copies -----------------------------------------------------------------------------------------
def numbers_to_convert(source: DType, out: DType, count: int, seed: int) -> NDArray[Any]:
    """`count` elements whose conversion to `out` C defines, with as many different bits as that leaves. Bools have any
    bytes."""
    rng = np.random.default_rng(seed)
    if source == np.bool_:
        return rng.choice(np.array([0, 1, 2, 128, 255], np.uint8), count).view(source)
    if source.kind in "iu" or out.kind not in "iu":
        return np.frombuffer(rng.bytes(count * source.itemsize), source).copy()
    bounds = np.iinfo(out)
    with np.errstate(all="ignore"):
        values = (rng.standard_normal(count) * 2.0 ** rng.integers(-3, 64, count)).astype(source).astype(np.float64)
    inside = (values > max(float(bounds.min), -(2.0**62))) & (values < float(bounds.max) * 0.99)
    return np.where(inside, values, 1.5).astype(source)


def assert_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Bit for bit, but for the sign and payload of NaN."""
    if expected.dtype in FLOATING:
        nan = np.isnan(expected)
        assert_array_equal(np.isnan(found), nan)
        nothing = np.zeros_like(expected)
        found, expected = np.where(nan, nothing, found), np.where(nan, nothing, expected)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("out", CONVERTED, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_copies_convert_as_the_host_does(device: Device, out: DType, data: st.DataObject) -> None:
    """Between any two element types and layouts, by any grid; what lies between the elements stays."""
    source, seed, grid = data.draw(st.sampled_from(CONVERTED)), data.draw(st.integers(0, 99)), data.draw(GRIDS)
    shape = data.draw(shapes)
    to, origin = data.draw(layouts(out, shape)), data.draw(layouts(source, shape))
    given, expected, found = memory_for(origin), memory_for(to), memory_for(to)
    elements = array_of(given, origin)
    elements[...] = numbers_to_convert(source, out, origin.size, seed).reshape(shape)
    is_true = elements.view(np.uint8) > 0 if source == np.bool_ != out else elements  # any byte but 0
    with np.errstate(all="ignore"):
        np.copyto(array_of(expected, to), is_true, casting="unsafe")
    device.run(copy(to, origin), found, given, grid)
    assert_same(array_of(found, to), array_of(expected, to))
    array_of(found, to)[...] = 0
    array_of(expected, to)[...] = 0
    assert_array_equal(found, expected)


@settings(max_examples=40)
@given(data=st.data())
def test_complex_elements_are_filled_and_copied(device: Device, data: st.DataObject) -> None:
    """With constants, and between the two types, in layouts of any kind: both parts of each element."""
    out, source = data.draw(st.sampled_from(COMPLEX_TYPES)), data.draw(st.sampled_from(COMPLEX_TYPES))
    shape, number = data.draw(shapes), data.draw(st.sampled_from((0, 1, 1 - 2j, 3 + 3j, complex(-0.0, 0.0))))
    to, origin = data.draw(layouts(out, shape)), data.draw(layouts(source, shape))
    expected, found, given = memory_for(to), memory_for(to), memory_for(origin)
    write(Constant(number), array_of(expected, to))
    device.run(fill(Constant(number), to), found, shape=data.draw(GRIDS))
    assert_array_equal(found, expected)
    elements = array_of(given, origin)
    elements[...] = np.random.default_rng(len(shape)).standard_normal((*shape, 2)) @ [1, 1j]
    array_of(expected, to)[...] = elements
    device.run(copy(to, origin, by_kernel=data.draw(st.booleans())), found, given, data.draw(GRIDS))
    assert_array_equal(found, expected)


def converted(device: Device, values: NDArray[Any], out: DType) -> NDArray[Any]:
    to, origin = contiguous_layout(values.shape, out), contiguous_layout(values.shape, values.dtype)
    given, found = memory_for(origin), memory_for(to)
    array_of(given, origin)[...] = values
    device.run(copy(to, origin), found, given)
    return array_of(found, to)


def test_bfloat16_rounds_to_nearest_even(device: Device) -> None:
    """Every bfloat16, and what lies just below, at and above the middle between it and the next."""
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16) + np.array([0, 1, 0x7FFF, 0x8000, 0x8001], np.uint32)
    values = bits.reshape(-1).view(np.float32)
    with np.errstate(all="ignore"):
        assert_same(converted(device, values, np.dtype(bf16)), values.astype(bf16))


def test_float16_is_rounded_once(device: Device) -> None:
    """Just above the middle between two float16, where f32 would be the middle itself; and every float16 comes back."""
    values = np.array([1 + 2**-11 + 2**-30, -(1 + 3 * 2**-11 - 2**-30), 65520 - 2**-30, 65520.0, 2**-25 * (1 + 2**-40)])
    with np.errstate(all="ignore"):
        assert_same(converted(device, values, np.dtype(np.float16)), values.astype(np.float16))
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    assert_same(converted(device, every, np.dtype(np.float64)), every.astype(np.float64))
    assert_same(converted(device, every.astype(np.float64), np.dtype(np.float16)), every)


def flat(*extents: int, dtype: DType = F32) -> Layout:
    return contiguous_layout(extents, dtype)


@pytest.mark.parametrize(
    ("out", "source", "expected"),
    [
        (flat(4, 6), flat(4, 6), Memcpy(96, 0, 0)),
        (flat(2, 3, 4), slice_layout(flat(7, 3, 4), (slice(2, 4),)), Memcpy(96, 0, 96)),
        (flat(4, dtype=np.dtype("u4")), flat(4, dtype=np.dtype("i4")), Memcpy(16, 0, 0)),
        (flat(4, dtype=np.dtype("?")), flat(4, dtype=np.dtype("?")), Memcpy(4, 0, 0)),
        (Layout(F32, (4,), (-4,), 12), Layout(F32, (4,), (-4,), 28), Memcpy(16, 0, 16)),
        (Layout(F32, (4, 2), (4, 16), 0), Layout(F32, (4, 2), (4, 16), 0), Memcpy(32, 0, 0)),
        (flat(0, 3), flat(0, 3), Memcpy(0, 0, 0)),
        (flat(8, 16), slice_layout(flat(8, 40), (slice(None), slice(3, 19))), Memcpy2D(64, 8, 64, 160, 0, 12)),
        (
            slice_layout(flat(4, 2, 40), (slice(None), slice(None), slice(0, 20))),
            flat(4, 2, 20),
            Memcpy2D(80, 8, 160, 80, 0, 0),
        ),
    ],
)
def test_what_the_driver_can_copy_it_does(out: Layout, source: Layout, expected: Work) -> None:
    """One piece, or rows of one pitch, without a change of bits. A kernel that is asked for does the same."""
    assert copy(out, source) == expected
    assert isinstance(copy(out, source, by_kernel=True), BuiltinWork) == bool(out.size)


@pytest.mark.parametrize(
    ("out", "source", "name"),
    [
        (flat(8), flat(8, dtype=np.dtype("f8")), "dagpu_copy_dense"),
        (flat(8, dtype=np.dtype("?")), flat(8, dtype=np.dtype("u1")), "dagpu_copy_dense"),
        (flat(8, dtype=np.dtype("u1")), flat(8, dtype=np.dtype("?")), "dagpu_copy_dense"),
        (flat(8, 4), slice_layout(flat(8, 9), (slice(None), slice(0, 4))), "dagpu_copy_few"),
        (flat(8), Layout(F32, (8,), (-4,), 28), "dagpu_copy_few"),
        (flat(2, 2, 2, 2, 2), Layout(F32, (2,) * 5, (4, 8, 16, 32, 64), 0), "dagpu_copy_many"),
        (flat(1 << 31), Layout(F32, (1 << 31,), (8,), 0), "dagpu_copy_many"),
    ],
)
def test_the_rest_takes_a_kernel(out: Layout, source: Layout, name: str) -> None:
    """Conversions, short rows, reversed and transposed sources."""
    work = copy(out, source)
    assert isinstance(work, BuiltinWork)
    assert work.name == name
    assert work.pointers == (0, 8)
    assert not any(work.arguments[:16])


def test_kernels_are_shared_between_layouts() -> None:
    """The text depends on element types alone; all else is in the parameters."""
    reversed_source = Layout(F32, (8,), (-4,), 28)
    works = [copy(flat(8), reversed_source), copy(Layout(np.dtype("i4"), (9,), (8,), 0), flat(9, dtype=np.dtype("i4")))]
    assert len({work.source for work in works if isinstance(work, BuiltinWork)}) == 1
    fills = [fill(Arange(0.0, 1.0), flat(3)), fill(Linspace(2.0, 3.0, 16), grid_of(F32)), fill(Arange(5, 2), flat(6))]
    with pytest.raises(ShapeError):
        fill(Linspace(2.0, 3.0, 9), flat(4))
    assert len({work.source for work in fills if isinstance(work, BuiltinWork)}) == 1


def test_what_cannot_be_copied_is_refused() -> None:
    """Other shapes; and more axes than a kernel's parameters hold."""
    with pytest.raises(ShapeError, match=r"cannot copy \(4,\) to \(2, 2\)"):
        copy(flat(2, 2), flat(4))
    many = (2,) * 33
    turned = Layout(F32, many, tuple(4 << axis for axis in range(33)), 0)
    with pytest.raises(ShapeError, match=r"33 axes of shape \(.*\) cannot be merged"):
        copy(contiguous_layout(many, F32), turned)


@given(st.integers(2, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_division_by_multiplication(extent: int, position: int) -> None:
    """The multiplier and shift that a walk is given find quotients below 2**31 exactly."""
    work = copy(Layout(F32, (extent,), (8,), 0), flat(extent))
    assert isinstance(work, BuiltinWork)
    multiplier, shift = (int.from_bytes(work.arguments[at : at + 4], "little") for at in (72, 76))
    for number in (position, position // extent * extent, max(position // extent * extent - 1, 0)):
        assert (((number * multiplier) >> 32) + number) >> shift == number // extent


# ---- compiling for the GPU ----------------------------------------------------------------------------
def nvcc() -> str:
    found = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(found).exists():
        pytest.skip("no nvcc to compile the device code with")
    return found


def test_the_kernels_compile_for_the_gpu(tmp_path: Path) -> None:
    """nvcc compiles them without a warning: every fill of three element types, and conversions of every kind."""
    chosen = ("<float>", "<dagpu::float16>", "<bool>", "Uniform<double, ", "Constant<", "ConstantWide")
    pairs = ("<float, dagpu::float16>", "<dagpu::float16, double>", "<dagpu::bfloat16, long long>", "<bool, double>")
    sources = [
        source
        for source in all_sources()
        if any(part in source[source.rfind("typedef dagpu::") :].split(";")[0] for part in chosen)
        or any(f"copy_dense{pair}" in source for pair in pairs)
    ]
    texts = [fill_and_copy._text("numbers", "walk", "fill", "philox", "copy")]  # noqa: SLF001  # the text of one part of it
    texts += [renamed(source, number) for number, source in enumerate(sources)]
    file = tmp_path / "builtin.cu"
    file.write_text("\n".join(texts))
    command = [nvcc(), "-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-cubin", str(file)]
    ran = subprocess.run([*command, "-o", str(tmp_path / "builtin.cubin")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""


assert sys.byteorder == "little", "parameters are packed as CUDA's machines lay them out"
