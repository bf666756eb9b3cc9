"""Kernel parameters as bytes: held against structs that ctypes lays out by C's rules; and the device's limits."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import In, KernelArgumentError, Out, bf16, f32, kernel
from dagpu.backends.cuda.commands.buffers import violations
from dagpu.backends.cuda.commands.command_list import LaunchParameters, Relocations
from dagpu.backends.host.bounds_reports import LAYOUT
from dagpu.backends.kernel_text.launch_params import (
    CHECKED,
    LINEAR_GRID,
    NARROW,
    REPORT,
    STRIDED,
    WIDE,
    PackedLaunch,
    check_limits,
    macros,
    pack,
    parameter_sizes,
)
from dagpu.backends.kernel_text.loaded_function import GridExtents
from dagpu.common.layout import Layout, Shape
from dagpu.kernels.declaration import ScalarCheck
from dagpu.testing import (
    Cell,
    Form,
    Function,
    KernelSpec,
    Launch,
    Limits,
    Param,
    Tiles,
    View,
    check_tiling,
    contiguous_layout,
    slice_layout,
)
from tests.simulated.gpu import LIMITS

F32 = np.dtype(np.float32)
C_TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool, "int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16, "int32": ctypes.c_int32, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64, "float32": ctypes.c_float, "float64": ctypes.c_double, "float16": ctypes.c_uint16,
    "bfloat16": ctypes.c_uint16,
}  # fmt: skip


class Guard(ctypes.Structure):
    """The guard of kernels/prelude/dagpu.cuh."""

    _fields_ = (("report", ctypes.c_uint64), ("argument", ctypes.c_int))


def scalar_param(dtype: "np.dtype[Any]") -> Param:
    return Param("n", Form.SCALAR, None, None, ScalarCheck("n", dtype, "k", 1), False)


def launch_of(
    args: tuple[Any, ...], params: tuple[Param, ...] | None = None, over: Shape = (1,), **changes: Any
) -> Launch:
    """A launch with these arguments; inputs and outputs are f32."""
    if params is None:
        params = tuple(Param("p", Form.OUT if type(a) is Tiles else Form.IN, F32, 1, None, False) for a in args)
    fields: dict[str, Any] = {"abi": "views", "block": None, "options": (), "checked": False, "origin": None, **changes}
    return Launch(KernelSpec("k", params, "", "k.cu", **fields), args, over, (), (), 0, None)


def packed(launch: Launch, limits: Limits = LIMITS) -> PackedLaunch:
    found = pack(launch, limits)
    assert found is not None
    return found


def tiles(layout: Layout, tile: Shape) -> Tiles:
    return Tiles(View(0, layout), *check_tiling(layout.shape, tile, True))


# ---- against C ------------------------------------------------------------------------------------------------------
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Contiguous or cut out of something larger, anywhere in its buffer."""
    layout = contiguous_layout(draw(shapes), F32)
    if draw(st.booleans()):
        layout = slice_layout(layout, tuple(slice(None, None, draw(st.sampled_from([1, 2, -1]))) for _ in layout.shape))
    return Layout(layout.dtype, layout.shape, layout.strides, layout.offset + 4 * draw(st.integers(0, 50)))


@st.composite
def arguments(draw: st.DrawFn) -> tuple[Param, Any]:
    """One parameter and what is passed for it."""
    if draw(st.booleans()):
        dtype = np.dtype(bf16) if (name := draw(st.sampled_from(sorted(C_TYPES)))) == "bfloat16" else np.dtype(name)
        if dtype.kind in "iu":
            info: Any = np.iinfo(dtype.name)
            return scalar_param(dtype), draw(st.integers(int(info.min), int(info.max)))
        return scalar_param(dtype), draw(st.booleans()) if dtype.kind == "b" else draw(st.integers(-800, 800)) / 8
    layout = draw(layouts())
    if draw(st.booleans()):
        return Param("x", Form.IN, F32, len(layout.shape), None, False), View(draw(st.integers(0, 9)), layout)
    tile = tuple(draw(st.integers(1, extent)) for extent in layout.shape)
    return Param("y", Form.OUT, F32, len(layout.shape), None, False), tiles(layout, tile)


def struct_of(argument: Any, variant: int, number: int) -> ctypes.Structure:
    """A `View` or `Tile` as kernels/prelude/dagpu.cuh declares it, filled in but for its addresses."""
    layout = argument.layout if type(argument) is View else argument.view.layout
    rows: list[tuple[str, tuple[int, ...]]] = [("extent", layout.shape)]
    if variant & STRIDED:
        rows.append(("stride", tuple(stride // 4 for stride in layout.strides)))
    if type(argument) is Tiles:
        rows.append(("tile", argument.tile))
        if variant & LINEAR_GRID:
            rows.append(("grid", argument.grid))
    index = ctypes.c_longlong if variant & WIDE else ctypes.c_int
    fields: list[Any] = [("data", ctypes.c_uint64), *((name, index * len(numbers)) for name, numbers in rows)]
    if variant & CHECKED:
        fields.append(("guard", Guard))
    struct: Any = type("Struct", (ctypes.Structure,), {"_fields_": fields})()
    for name, numbers in rows:
        getattr(struct, name)[:] = numbers
    if variant & CHECKED:
        struct.guard.argument = number
    return struct  # type: ignore[no-any-return]  # reason: the class is made here


@settings(max_examples=300)
@given(st.lists(arguments(), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_parameters_lie_as_in_c(drawn: list[tuple[Param, Any]], checked: bool, linear: bool) -> None:
    """Structs, scalars, and what lies between them; addresses go where the pointers are."""
    params, args = tuple(p for p, _ in drawn), tuple(a for _, a in drawn)
    limits = Limits(1024, (1024, 1024, 64), (2**31 - 1, 1, 1), 1, 1) if linear else LIMITS
    grid = next((a.grid for a in args if type(a) is Tiles), (1, 2) if linear else (1,))
    found = packed(launch_of(args, params, grid, checked=checked), limits)
    variant = found.form.variant
    values: list[Any] = []
    for number, (param, argument) in enumerate(drawn):
        if param.form.is_tensor:
            values.append(struct_of(argument, variant, number))
            continue
        assert isinstance(param.check, ScalarCheck)
        dtype, c_type = param.check.dtype, C_TYPES[param.check.dtype.name]
        bits = int(np.array(argument, dtype).view(np.uint16)[()]) if c_type is ctypes.c_uint16 else argument
        values.append(c_type(bits % 65536 if c_type is ctypes.c_uint16 else bits))
    names = [f"f{n}" for n in range(len(values))]
    everything: Any = type(
        "All", (ctypes.Structure,), {"_fields_": [(n, type(v)) for n, v in zip(names, values, strict=True)]}
    )
    whole = everything(*values)
    assert bytes(found.parameters).ljust(ctypes.sizeof(whole), b"\0") == bytes(whole)
    last = getattr(everything, names[-1])
    assert len(found.parameters) == last.offset + last.size
    arrays = [n for n, (param, _) in enumerate(drawn) if param.form.is_tensor]
    views = [a if type(a) is View else a.view for a in (args[n] for n in arrays)]
    places = [getattr(everything, names[n]).offset for n in arrays]
    assert list(found.form.pointers) == [
        (at, n, v.layout.offset) for at, n, v in zip(places, arrays, views, strict=True)
    ]
    guards = [at + type(values[n]).guard.offset for at, n in zip(places, arrays, strict=True)] if checked else []
    assert list(found.form.reports) == guards
    assert bool(variant & STRIDED) == any(not v.layout.contiguous for v in views)


@settings(max_examples=100)
@given(st.lists(arguments(), min_size=1, max_size=6))
def test_numbers_in_cells_come_where_numbers_lie(drawn: list[tuple[Param, Any]]) -> None:
    """Numbers in cells are written to the places of numbers when the parameters are relocated for a run.

    Unchanged ones are left as they are.
    """
    params, args = tuple(p for p, _ in drawn), tuple(a for _, a in drawn)
    cells = tuple(Cell(n) if not param.form.is_tensor else argument for n, (param, argument) in enumerate(drawn))
    grid = next((a.grid for a in args if type(a) is Tiles), (1,))
    wanted, found = packed(launch_of(args, params, grid)), packed(launch_of(cells, params, grid))
    patches = Relocations([], {cell: [(0, at, convert)] for at, cell, convert in found.cells})
    parameters = LaunchParameters([found.parameters], patches)
    assert parameters.relocate([], args) == list(range(len(found.cells)))
    assert found.parameters == wanted.parameters
    assert parameters.relocate([], args) == []
    assert parameters.copy().relocate([], args) == list(range(len(found.cells)))


def test_a_number_of_which_only_bits_differ_is_written() -> None:
    """-0.0 equals 0.0, and is another number to a kernel."""
    launch = launch_of((Cell(0),), (scalar_param(np.dtype(np.float64)),))
    found = packed(launch)
    patches = Relocations([], {cell: [(0, at, convert)] for at, cell, convert in found.cells})
    parameters = LaunchParameters([found.parameters], patches)
    parameters.relocate([], [0.0])
    parameters.relocate([], [-0.0])
    assert found.parameters == np.float64(-0.0).tobytes()


def test_a_launch_of_the_same_form_gets_its_own_numbers() -> None:
    """Launches of the same form share their common parts, and have separate numbers."""
    layout, params = (
        contiguous_layout((4,), F32),
        (Param("x", Form.IN, F32, 1, None, False), scalar_param(np.dtype(np.int32))),
    )
    first = launch_of((View(0, layout), 5), params)
    second = Launch(first.kernel, (View(3, layout), 6), first.grid, (), (), 0, None)
    one, two = packed(first), packed(second)
    assert one.form is two.form
    assert one.parameters is not two.parameters
    assert [int.from_bytes(p.parameters[-4:], "little") for p in (one, two)] == [5, 6]


def test_large_numbers_round_as_numpy_rounds_them() -> None:
    """A float that rounds to infinity in float16 or float32 does so here too."""
    for dtype, number in ((np.float16, 65504.0), (np.float32, float(np.finfo(np.float32).max)), (np.float16, 65519.99)):
        found = packed(launch_of((number,), (scalar_param(np.dtype(dtype)),)))
        assert bytes(found.parameters) == np.array(number, dtype).tobytes()


# ---- variants and grids ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((NARROW - 1,), (4,), False),
        ((NARROW,), (4,), True),
        ((2**16, 2**16), (2**18, 4), True),
        ((2, 3), (2**33, 4), True),
        ((2, 3), (-(2**33), 4), True),
        ((2**20, 2**20), (0, 0), True),
        ((5, 5), (40, 4), False),
    ],
    ids=str,
)
def test_far_elements_need_wide_indices(shape: Shape, strides: Shape, wide: bool) -> None:
    """An `int` reaches as far as it reaches, whether there are many elements or large strides."""
    form = packed(launch_of((View(0, Layout(F32, shape, strides, 0)),))).form
    assert bool(form.variant & WIDE) == wide


def test_a_tile_larger_than_its_tensor_is_cut_to_it() -> None:
    """However large it is: it stands in an `int`."""
    found = packed(launch_of((tiles(contiguous_layout((3, 4), F32), (2**40, 2)),), over=(1, 2)))
    assert not found.form.variant & WIDE
    assert np.frombuffer(found.parameters, np.int32)[2:].tolist() == [3, 4, 3, 2]


@pytest.mark.parametrize(
    ("grid", "expected", "linear"),
    [
        ((7,), (7, 1, 1), False),
        ((2, 3, 4), (2, 3, 4), False),
        ((2, 3, 4, 5), (120, 1, 1), True),
        ((2, 70_000), (140_000, 1, 1), True),
        ((70_000, 2), (70_000, 2, 1), False),
        ((), (1, 1, 1), False),
    ],
    ids=str,
)
def test_grids(grid: Shape, expected: GridExtents, linear: bool) -> None:
    """Up to three axes as they are; all along x where there are more, or too many blocks along one."""
    layout = contiguous_layout(grid, F32)
    form = packed(launch_of((tiles(layout, (1,) * len(grid)),), over=grid)).form
    assert form.grid == expected
    assert bool(form.variant & LINEAR_GRID) == linear


def test_an_empty_grid_launches_nothing() -> None:
    assert pack(launch_of((tiles(contiguous_layout((0, 3), F32), (1, 1)),), over=(0, 3)), LIMITS) is None


@pytest.mark.parametrize(("tile", "threads"), [((1,), 32), ((33,), 64), ((200,), 224), ((5000,), 256)])
def test_threads_by_the_tile(tile: Shape, threads: int) -> None:
    """Whole warps, one thread for each element, up to a limit; what the user says counts more."""
    layout = contiguous_layout((10_000,), F32)
    assert packed(launch_of((tiles(layout, tile),))).form.block == (threads, 1, 1)
    assert packed(launch_of((tiles(layout, tile),), block=(8, 4))).form.block == (8, 4, 1)


def test_plain_pointers() -> None:
    """A kernel that takes them gets addresses alone. It counts blocks itself, so its grid is never made linear."""
    layout = contiguous_layout((2, 70_000), F32)
    with pytest.raises(KernelArgumentError, match=r"a grid of \(2, 70000\), but the device allows"):
        pack(launch_of((tiles(layout, (1, 1)),), over=(2, 70_000), abi="pointers"), LIMITS)
    plain = packed(launch_of((View(0, contiguous_layout((4, 4), F32)),), abi="pointers"))
    assert (bytes(plain.parameters), plain.form.variant, plain.form.reports) == (bytes(8), 0, ())


def test_macros_name_the_variant() -> None:
    assert macros(0) == ()
    assert set(macros(STRIDED | WIDE | LINEAR_GRID | CHECKED)) == {
        "DAGPU_STRIDED", "DAGPU_WIDE", "DAGPU_LINEAR_GRID", "DAGPU_CHECKED",
    }  # fmt: skip


# ---- limits ---------------------------------------------------------------------------------------------------------
def function(max_threads: int = 1024, static: int = 0, allowed: list[int] | None = None) -> Function:
    """A kernel that the compiler has given so much."""
    return Function(lambda *_: None, max_threads, static, 90, ([] if allowed is None else allowed).append)


@pytest.mark.parametrize(
    ("changes", "grid", "kernel", "message"),
    [
        ({"block": (1025,)}, (1,), function(), r"block of 1025 threads, but cuda:0 allows it at most 1024"),
        ({"block": (512,)}, (1,), function(256), r"it takes 90 registers.*at most 256"),
        ({"block": (2, 2, 65)}, (1,), function(), r"65 threads along axis z.*at most 64"),
        ({"grid": (1, 70_000)}, (1, 70_000), function(), r"70000 blocks along axis y.*at most 65535"),
        ({"shared_bytes": 300 << 10}, (1,), function(), r"307200 bytes of shared memory.*shared_memory"),
        ({"shared_bytes": 226 << 10}, (1,), function(static=2048), r"231424 dynamic and 2048 of its own"),
    ],
)
def test_what_the_device_would_refuse(changes: dict[str, Any], grid: Shape, kernel: Function, message: str) -> None:
    """It is refused before the launch, with the device's limit."""
    launch = launch_of((tiles(contiguous_layout((70_000,), F32), (1,)),), over=grid, **changes)
    form = packed(launch).form
    with pytest.raises(KernelArgumentError, match=message):
        check_limits(launch, form, form.block, kernel, LIMITS, "cuda:0")


def test_much_shared_memory_has_to_be_asked_for() -> None:
    """Once; and not where little of it is wanted."""
    for nbytes, calls in ((40 << 10, []), (100 << 10, [(227 << 10) - 512])):
        allowed: list[int] = []
        launch = launch_of((tiles(contiguous_layout((8,), F32), (8,)),), shared_bytes=nbytes)
        form, kernel = packed(launch).form, function(static=512, allowed=allowed)
        for _ in range(3):
            check_limits(launch, form, form.block, kernel, LIMITS, "cuda:0")
        assert allowed == calls


# ---- reports of bounds ----------------------------------------------------------------------------------------------
class Report(ctypes.Structure):
    """The bounds report of kernels/prelude/dagpu.cuh."""

    _fields_ = (
        ("state", ctypes.c_int), ("argument", ctypes.c_int), ("rank", ctypes.c_int), ("kind", ctypes.c_int),
        ("index", ctypes.c_longlong * 8), ("extent", ctypes.c_longlong * 8),
    )  # fmt: skip


def test_reports_lie_as_in_c() -> None:
    """Field by field."""
    assert ctypes.sizeof(Report) == REPORT
    assert {name: getattr(Report, name).offset for name, _ in Report._fields_} == {
        name: LAYOUT.fields[name][1] for name in LAYOUT.names or () if LAYOUT.fields is not None
    }


@pytest.mark.parametrize(
    ("kind", "text"),
    [(0, r"outside its extents \(4, 6\)"), (1, r"outside the tensor, of shape \(4, 6\)"), (2, r"this block's tile")],
)
def test_a_report_becomes_an_error(kind: int, text: str) -> None:
    """A report becomes the error of its launch, with argument, index and extents. Other launches have no error."""
    first, second = (
        launch_of((View(0, contiguous_layout((4, 6), F32)),)),
        launch_of((View(0, contiguous_layout((4, 6), F32)),)),
    )
    report = Report(2, 0, 2, kind, (ctypes.c_longlong * 8)(5, -1), (ctypes.c_longlong * 8)(4, 6))
    ((launch, error),) = violations([first, second], np.frombuffer(bytes(REPORT) + bytes(report), np.uint8))
    assert launch is second
    assert str(error).startswith("kernel 'k', launched at")
    with pytest.raises(type(error), match=rf"argument 'p' was accessed at \(5, -1\), .*{text}"):
        raise error


# ---- structures, vectors and null pointers of existing CUDA
class Vector(ctypes.Structure):
    _fields_ = tuple((lane, ctypes.c_float) for lane in "xyz")


class Mixed(ctypes.Structure):
    _fields_ = (("small", ctypes.c_int8), ("vector", Vector), ("many", ctypes.c_int16 * 3), ("wide", ctypes.c_double))


class Existing(ctypes.Structure):
    _fields_ = (
        ("flag", ctypes.c_bool), ("mixed", Mixed), ("c", ctypes.c_int8), ("vector", Vector), ("x", ctypes.c_uint64),
        ("n", ctypes.c_int), ("y", ctypes.c_uint64),
    )  # fmt: skip


def test_structures_lie_where_c_puts_them() -> None:
    """Structures are aligned as their fields need it, and a null pointer is eight zero bytes."""
    cuda = """struct Vector { float x, y, z; };
    struct Mixed { signed char small; Vector vector; short many[3]; double wide; };
    __global__ void k(bool flag, Mixed mixed, signed char c, Vector vector, const float* x, int n, float* y) {}"""

    def k(flag: bool, mixed: np.void, c: int, vector: np.void, x: In[f32] | None, n: int, y: Out[f32]) -> None: ...

    spec = kernel(cuda=cuda, abi="pointers", block=32)(k).spec
    expected = Existing(True, Mixed(-3, Vector(1, 2, 3), (4, 5, 6), 7.5), 8, Vector(9, 10, 11), 0, 12, 0)
    values = {"mixed": (-3, (1, 2, 3), (4, 5, 6), 7.5), "vector": (9, 10, 11)}
    given: list[Any] = []
    view = View(0, contiguous_layout((8,), F32))
    for param in spec.params:
        if param.form is Form.OUT:
            given.append(Tiles(view, (8,), (1,)))
        elif param.form is Form.IN:
            given.append(None)
        elif param.name in values:
            given.append(param.check(values[param.name]) if param.check else None)
        else:
            given.append({"flag": True, "c": 8, "n": 12}[param.name])
    launch = Launch(spec, tuple(given), (1,), (), (0,), 0, None)
    packed = pack(launch, LIMITS)
    assert packed is not None
    assert bytes(packed.parameters) == bytes(expected)
    assert packed.form.pointers == ((Existing.y.offset, 6, 0),)
    assert parameter_sizes(spec) == (1, ctypes.sizeof(Mixed), 1, 12, 8, 4, 8)


def test_an_array_and_null_have_forms_of_their_own() -> None:
    """Of two optional inputs each may be the one that is null."""

    def k(a: In[f32] | None, b: In[f32] | None, y: Out[f32]) -> None: ...

    spec = kernel(cuda="__global__ void k(float* a, float* b, float* y) {}", abi="pointers", block=32)(k).spec
    view = View(0, contiguous_layout((8,), F32))
    places = []
    for inputs in ((view, None), (None, view), (None, None), (view, view)):
        launch = Launch(spec, (*inputs, Tiles(view, (8,), (1,))), (1,), (), (0,), 0, None)
        packed = pack(launch, LIMITS)
        assert packed is not None
        places.append([at for at, _, _ in packed.form.pointers])
    assert places == [[0, 16], [8, 16], [16], [0, 8, 16]]
