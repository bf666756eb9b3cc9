"""Ops and kernels run by their CUDA texts on the host, each access checked, in two orders of threads and blocks."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import DeviceOp
from dagpu.backends.host.arrays import Account, HostMemory, writable_array
from dagpu.backends.host.cuda_text.launching import BACKWARDS, FORWARDS, run_text
from dagpu.common.layout import Layout, address_of
from dagpu.testing import KernelSpec, Launch, Order, Tiles, View, check_tiling, texts_run

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
ORDERS: Final = (Order(FORWARDS, FORWARDS), Order(BACKWARDS, BACKWARDS))


def by_text(op: AnyOp | Callable[[], AnyOp]) -> NDArray[Any]:
    """Return the result of an op whose kernels run by their texts."""
    (found,) = all_by_text(op)
    return found


def all_by_text(op: AnyOp | Callable[[], AnyOp]) -> list[NDArray[Any]]:
    """Return the components of the result of an op whose kernels run by their texts, or its only one. They have the
    same bits in each order. Give a function that makes the op anew if a run moves its arguments."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGPU_HOST", "cuda")
        for order in ORDERS:
            with texts_run(order=order):
                made.append(arrays_of((op if isinstance(op, DeviceOp) else op()).sync()))
    first, *others = made
    for other in others:
        _assert_same(first, other)
    return first


def launch_text(spec: KernelSpec, arguments: Sequence[Any], tiles: Sequence[tuple[int, ...]]) -> None:
    """Run the text of a kernel on arrays and numbers, in the order of its parameters. Outputs are cut into `tiles`, and
    written: the same bits in each order."""
    outputs = [each for each, param in zip(arguments, spec.params, strict=True) if param.form.is_written]
    before = [each.copy() for each in outputs]
    made = []
    for order in ORDERS:
        for array, old in zip(outputs, before, strict=True):
            array[...] = old
        with texts_run(order=order, here=True):
            _launch(spec, arguments, tiles)
        made.append([array.copy() for array in outputs])
    _assert_same(*made)


def _launch(spec: KernelSpec, arguments: Sequence[Any], tiles: Sequence[tuple[int, ...]]) -> None:
    memory, args, cuts, grid = list[Any](), list[Any](), iter(tiles), spec.grid
    reads, writes = list[int](), list[int]()
    for param, argument in zip(spec.params, arguments, strict=True):
        if not isinstance(argument, np.ndarray):
            args.append(argument if param.check is None else param.check(argument))
            continue
        number = len(memory)
        held, layout = _held(argument)
        memory.append(held)
        if param.form.is_written:
            tile = next(cuts)
            of_tiles = check_tiling(argument.shape, tile, True)[1]
            grid = grid or of_tiles
            args.append(Tiles(View(number, layout), tile, of_tiles))
            writes.append(number)
        else:
            args.append(View(number, layout))
            reads.append(number)
    assert grid is not None
    launch = Launch(spec, tuple(args), tuple(grid), tuple(reads), tuple(writes), 0, None)
    assert run_text(launch, memory)
    for (number, view), argument in zip(
        launch.views, [each for each in arguments if isinstance(each, np.ndarray)], strict=True
    ):
        if number in [n for n, param in enumerate(spec.params) if param.form.is_written]:
            argument[...] = writable_array(memory[view.buffer], view.layout)


def _held(array: NDArray[Any]) -> tuple[HostMemory, Layout]:
    """Return memory with a copy of an array, whose alignment and strides are those of the array."""
    reach = [(extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(min(each, 0) for each in reach)
    first = address_of(array) if array.size else 0
    offset = (first + low) % 64 - low
    layout = Layout(array.dtype, array.shape, array.strides, offset)
    held = HostMemory(Account(), offset + sum(max(each, 0) for each in reach) + array.itemsize if array.size else 64)
    if prod(array.shape):
        writable_array(held, layout)[...] = array
    return held, layout


def arrays_of(found: Any) -> list[NDArray[Any]]:
    """Return the components of a result as arrays."""
    handles = found if isinstance(found, tuple) else (found,)
    return [each if isinstance(each, np.ndarray) else each.to_host().sync() for each in handles]


def _assert_same(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]) -> None:
    for left, right in zip(one, other, strict=True):
        assert left.tobytes() == right.tobytes(), "the result depends on the order of threads"
