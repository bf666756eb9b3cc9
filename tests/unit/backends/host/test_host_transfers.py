"""The host backend copies, fills and calls functions."""

from typing import Any

import numpy as np
import pytest

from dagpu.backends.host.host_instructions import resolve
from dagpu.common.critical import in_user_code
from dagpu.common.errors import ShapeError
from dagpu.common.layout import bf16
from dagpu.plans.program import Items
from dagpu.testing import (
    Cell,
    Constant,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostBackend,
    View,
    contiguous_layout,
    slice_layout,
)
from tests.unit.backends.host.host_plans import F32, Builder, origin, used
from tests.unit.backends.host.host_plans import backend as backend


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_host_to_device_and_back(backend: HostBackend, shape: tuple[int, ...]) -> None:
    """The data come back as a new writable contiguous array that shares no memory with the first."""
    array = np.array(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape), order="F")
    layout = contiguous_layout(shape, F32)
    build = Builder()
    source, device, out = build.cell(array), build.buffer(layout.nbytes), build.cell()
    build.put(CopyHtoD(View(device, layout), Cell(source), (source,), (device,), 0, None))
    build.put(CopyDtoH(Cell(out), View(device, layout), (device,), (out,), 0, None))
    result = build.run(backend)[out]
    assert isinstance(result, np.ndarray)
    assert type(result) is np.ndarray
    assert (result.shape, result.dtype, result.base) == (shape, F32, None)
    assert result.flags.c_contiguous
    assert result.flags.writeable
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("wrong", [np.zeros(3, np.float32), np.zeros(4, np.float64), [1.0]])
def test_a_host_array_that_does_not_fit(backend: HostBackend, wrong: object) -> None:
    """Another shape or element type than the trace saw is an error, not a conversion."""
    build = Builder()
    source, device = build.cell(wrong), build.buffer(16)
    build.put(CopyHtoD(View(device, contiguous_layout((4,), F32)), Cell(source), (source,), (device,), 0, origin()))
    error = build.fail(backend)
    assert isinstance(error, ShapeError)
    assert "expected an array of float32 and shape (4,), found" in str(error)
    assert __file__ in str(error)


def test_strided_copies(backend: HostBackend) -> None:
    """Views with steps, negative ones too, are read and written where their strides say."""
    layout = contiguous_layout((8,), F32)
    build = Builder()
    source, a, b, out = (
        build.cell(np.arange(8, dtype=np.float32)),
        build.buffer(32),
        build.buffer(32),
        build.cell(),
    )
    backwards = slice_layout(layout, (slice(None, None, -2),))
    build.put(CopyHtoD(View(a, layout), Cell(source), (source,), (a,), 0, None))
    build.put(Fill(View(b, layout), Constant(-1.0), (), (b,), 0, None))
    build.put(CopyDtoD(View(b, slice_layout(layout, (slice(0, 8, 2),))), View(a, backwards), (a,), (b,), 0, None))
    build.put(CopyDtoH(Cell(out), View(b, layout), (b,), (out,), 0, None))
    result = build.run(backend)[out]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [7, -1, 5, -1, 3, -1, 1, -1]


@pytest.mark.parametrize("target", [np.int8, np.float64, np.bool_, bf16])
def test_converting_copies_warn_of_nothing(backend: HostBackend, target: Any) -> None:
    """A copy between element types converts as `astype` does, and says nothing of what does not fit."""
    values = np.array([0.0, 1.5, -3.0, 1e30, np.nan], np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(target)
    layout, there = contiguous_layout((5,), F32), contiguous_layout((5,), np.dtype(target))
    build = Builder()
    source, a, b, out = build.cell(values), build.buffer(20), build.buffer(there.nbytes), build.cell()
    build.put(CopyHtoD(View(a, layout), Cell(source), (source,), (a,), 0, None))
    build.put(CopyDtoD(View(b, there), View(a, layout), (a,), (b,), 0, None))
    build.put(CopyDtoH(Cell(out), View(b, there), (b,), (out,), 0, None))
    result = build.run(backend)[out]
    assert isinstance(result, np.ndarray)
    assert result.tobytes() == expected.tobytes()


def test_copies_between_devices(backend: HostBackend) -> None:
    """A buffer counts on its own device; a copy reaches across."""
    build = Builder(devices=("host:0", "host:1"))
    a, b, out = build.buffer(64), build.buffer(64, device=1), build.cell()
    layout = contiguous_layout((16,), F32)
    build.put(Fill(View(a, layout), Constant(4.0), (), (a,), 0, None))
    build.put(CopyDtoD(View(b, layout), View(a, layout), (a,), (b,), 1, None))
    build.put(CopyDtoH(Cell(out), View(b, layout), (b,), (out,), 1, None))
    memory = build.run(backend)
    result = memory[out]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [4.0] * 16
    assert (used(backend, 0), used(backend, 1)) == (64, 64)
    memory[a] = None
    assert (used(backend, 0), used(backend, 1)) == (0, 64)


def test_a_host_call_gets_its_cells(backend: HostBackend) -> None:
    """The argument is rebuilt with the cells' values; the result goes to a cell."""
    build = Builder()
    a, b, out = build.cell("a"), build.cell("b"), build.cell()
    build.call(lambda x: ("got", x), Items((Cell(a), 1, Items((Cell(b), (Cell,))))), out, a, b)
    assert build.run(backend)[out] == ("got", ("a", 1, ("b", (Cell,))))


def test_templates_nest_to_any_depth() -> None:
    """A hundred thousand tuples in each other do not meet the recursion limit."""
    template: object = Cell(0)
    for _ in range(100_000):
        template = Items((template,))
    value = resolve(template, ["deep"])
    while isinstance(value, tuple):
        (value,) = value
    assert value == "deep"
    while isinstance(template, Items):  # taken apart here, where no destructor recurses
        (template,) = template.items


def test_user_code_is_inside_a_run(backend: HostBackend) -> None:
    """Bodies and host calls are marked as inside a run, so that a run in them is refused."""
    seen: list[bool] = []
    build = Builder()
    build.launch(lambda y: seen.append(in_user_code()), build.buffer())
    build.call(lambda x: seen.append(in_user_code()), None, build.cell())
    build.run(backend)
    assert seen == [True, True]
    assert not in_user_code()
