"""The host backend launches kernels: arguments, tiles and the errors of a declaration."""

from typing import Any

import numpy as np
import pytest

from dagpu.backends.host import HostMemory
from dagpu.backends.host.body_checks import Tile
from dagpu.common.errors import DagpuError
from dagpu.common.layout import bf16
from dagpu.testing import HostBackend, Launch, Tiles, View, contiguous_layout, driver_of
from tests.unit.backends.host import host_plans
from tests.unit.backends.host.host_plans import F32, Builder, adding, bytes_of, kernel
from tests.unit.backends.host.host_plans import backend as backend

# ---- launches


def test_a_body_is_called_for_each_tile(backend: HostBackend) -> None:
    """Tiles come in C order with their place; those at the edge are smaller; inputs are whole and read-
    only."""
    seen: list[object] = []

    def body(y: Tile[Any], x: "np.ndarray[Any, Any]") -> None:
        seen.append((y.index, y.shape, y.at, x.shape, x.flags.writeable))
        y[...] = x[y.at] * 10

    build = Builder()
    layout = contiguous_layout((3, 5), F32)
    x = HostMemory(driver_of(backend.device(0)).account, 60)  # type: ignore[attr-defined]  # reason: the host's driver
    bytes_of(x)[:] = range(15)
    out = build.buffer(60)
    build.launch(body, out, build.given_memory(x), layout=layout, tile=(2, 3))
    memory = build.run(backend)
    assert seen == [
        ((0, 0), (2, 3), (slice(0, 2), slice(0, 3)), (3, 5), False),
        ((0, 1), (2, 2), (slice(0, 2), slice(3, 5)), (3, 5), False),
        ((1, 0), (1, 3), (slice(2, 3), slice(0, 3)), (3, 5), False),
        ((1, 1), (1, 2), (slice(2, 3), slice(3, 5)), (3, 5), False),
    ]
    assert bytes_of(memory[out]).tolist() == [10.0 * i for i in range(15)]


def test_scalars_are_passed_as_they_are(backend: HostBackend) -> None:
    """A number among the arguments reaches the body in its position."""
    build = Builder()
    out = build.buffer()
    layout = contiguous_layout((16,), F32)
    spec = kernel(lambda y, a: y.fill(a))
    build.put(Launch(spec, (Tiles(View(out, layout), (4,), (4,)), 2.5), (4,), (), (out,), 0, None))
    assert bytes_of(build.run(backend)[out]).tolist() == [2.5] * 16


def test_a_whole_body_is_called_once(backend: HostBackend) -> None:
    """Its tile is all of the output, at index zero, whatever the partition."""
    seen: list[object] = []
    build = Builder()
    layout = contiguous_layout((4, 4), F32)
    build.launch(lambda y: seen.append((y.at, y.index)), build.buffer(), layout=layout, tile=(2, 2), whole=True)
    build.run(backend)
    assert seen == [((slice(0, 4), slice(0, 4)), (0, 0))]


@pytest.mark.parametrize(
    ("grid", "shapes"),
    [
        ((3,), [(2, 4), (2, 4), (0, 4)]),
        ((1, 2), [(2, 4), (2, 0)]),
        ((1, 1, 2), [(2, 4), (0, 0)]),
        ((0,), []),
    ],
)
def test_a_grid_of_its_own(backend: HostBackend, grid: tuple[int, ...], shapes: list[object]) -> None:
    """An index outside the output's grid gets an empty tile; axes that the grid lacks count as 0."""
    seen: list[object] = []
    build = Builder()
    build.launch(
        lambda y: seen.append(y.shape), build.buffer(), layout=contiguous_layout((4, 4), F32), tile=(2, 4), grid=grid
    )
    build.run(backend)
    assert seen == shapes


def test_a_grid_of_its_own_over_no_axes(backend: HostBackend) -> None:
    """An output without axes is written at index 0; beyond it the tile is empty, so writing does nothing."""

    def body(y: Tile[Any]) -> None:
        calls.append(y.size)
        y[...] = len(calls)

    calls: list[int] = []
    build = Builder()
    out = build.buffer(4)
    build.launch(body, out, layout=contiguous_layout((), F32), tile=(), grid=(3,))
    assert bytes_of(build.run(backend)[out]).tolist() == [1.0]
    assert calls == [1, 0, 0]


def test_more_tiles_than_are_kept_in_tables(backend: HostBackend) -> None:
    """A grid too big to keep is walked afresh, with the same places."""
    build = Builder()
    out = build.buffer(4 * 1000)

    def body(y: Tile[Any]) -> None:
        y[...] = y.index[0]

    build.launch(body, out, layout=contiguous_layout((1000,), F32), tile=(2,))
    assert bytes_of(build.run(backend)[out]).tolist() == [i // 2 for i in range(1000)]


def test_nothing_is_called_for_no_elements(backend: HostBackend) -> None:
    """A tensor of no elements has no tiles, whole body or not."""
    for whole in (False, True):
        build = Builder()
        layout = contiguous_layout((0, 4), F32)
        build.launch(lambda y: 1 / 0, build.buffer(0), layout=layout, tile=(1, 4), grid=(0, 1), whole=whole)
        build.run(backend)


def test_bfloat16(backend: HostBackend) -> None:
    """Elements that NumPy itself does not know are views of their bytes like any."""
    build = Builder()
    out = build.buffer(8)
    build.launch(adding(1.5), out, layout=contiguous_layout((4,), np.dtype(bf16)), tile=(2,))
    assert bytes_of(build.run(backend)[out], bf16).astype(float).tolist() == [1.5] * 4


def test_a_kernel_without_host_body(backend: HostBackend) -> None:
    """The error names the kernel, the place of the launch and the cure."""
    build = Builder()
    build.launch(None, build.buffer())
    error = build.fail(backend)
    assert isinstance(error, DagpuError)
    assert "kernel step" in str(error)
    assert host_plans.__file__ in str(error)
    assert "@step.host" in str(error)


def test_a_body_that_returns_something(backend: HostBackend) -> None:
    """A result that would be lost is an error that says where to write it."""
    build = Builder()
    build.launch(lambda y: y * 2, build.buffer())
    error = build.fail(backend)
    assert isinstance(error, DagpuError)
    assert "returned a value of type ndarray" in str(error)
    assert "y[...] =" in str(error)


# ---- tiles


def test_what_is_computed_from_a_tile_is_plain(backend: HostBackend) -> None:
    """Arithmetic and reductions forget that they came from a tile; in-place arithmetic is still the tile."""
    seen: list[type] = []

    def body(y: Tile[Any]) -> None:
        y[...] = 1
        before, at = y, y.at
        y += 1
        np.add(y, 1, out=y)
        assert y is before
        assert y.at is at
        seen.extend(map(type, (y * 2, y + y[0], y.sum(), np.sqrt(y), y.sum(axis=0), y == y, np.zeros(16) + y)))

    build = Builder()
    out = build.buffer()
    build.launch(body, out)
    assert bytes_of(build.run(backend)[out]).tolist() == [3.0] * 16
    assert seen == [np.ndarray, np.ndarray, np.float32, np.ndarray, np.float32, np.ndarray, np.ndarray]


def test_views_of_a_tile_write_to_it_and_have_no_place(backend: HostBackend) -> None:
    """A slice reaches the tile's memory; its `.at` and `.index` say that they are the tile's alone."""

    def body(y: Tile[Any]) -> None:
        part = y[4:]
        part[...] = 7
        with pytest.raises(AttributeError, match=r"no \.at of its own"):
            getattr(part, "at")  # noqa: B009  # NumPy's stub says that a slice is a plain array
        with pytest.raises(AttributeError, match=r"no \.index of its own"):
            getattr(part, "index")  # noqa: B009

    build = Builder()
    out = build.buffer()
    build.launch(body, out, whole=True)
    assert bytes_of(build.run(backend)[out])[4:].tolist() == [7.0] * 12


def test_a_tile_is_generic() -> None:
    """`Tile[np.float32]` may stand in an annotation that is read at run time."""
    assert Tile[np.float32] is not None
