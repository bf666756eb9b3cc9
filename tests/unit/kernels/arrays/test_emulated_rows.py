"""Kernels of rows, of sorts and of Fourier transforms: their CUDA text on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import array, bf16, c64, c128, f32, f64, from_host, zeros
from dagpu.kernels.arrays.libraries.matrix_kernels import resize_kernel, scale_kernel
from dagpu.ops.compose import nodes_of
from dagpu.ops.creation import Alloc
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import Launch
from tests.emulation import shared_folder
from tests.emulation.emulated_kernels import EmulatedKernels, same_bits
from tests.unit.kernels.arrays.sorts import expected, ran
from tests.unit.kernels.expressions.element_trees import samples


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


def same(device: EmulatedKernels, spec: KernelSpec, made: int, inputs: list[Any]) -> bool:
    """Launch a kernel on rows, call its host body, and compare what they write to rows of `made` elements."""
    found, expected = np.full((3, made), 9, c64), np.full((3, made), 9, c64)
    device.launch(spec, [found, *inputs], [(2, 4)])
    assert spec.host.function is not None
    spec.host.function(expected, *inputs)
    return found.tobytes() == expected.tobytes()


def emulated(device: EmulatedKernels, launches: list[Launch], x: NDArray[Any]) -> list[NDArray[Any]]:
    """Run all passes of a sort on rows."""
    now: list[NDArray[Any]] = [x.reshape(-1, x.shape[-1])]
    for launch in launches:
        outputs, tiles = [], []
        for argument in launch.args:
            target: Any = argument
            if isinstance(getattr(target, "source", None), Alloc):
                outputs.append(np.zeros(target.source.shape, target.source.dtype))
                tiles.append(target.f.tile)
        numbers = [argument for argument in launch.args if isinstance(argument, int)]
        device.launch(launch.kernel, [*outputs, *now, *numbers], tiles)
        now = outputs
    return now


CASES: Any = [
    ("sort", f32, (2, 4500), 0),
    ("argsort", bf16, (3, 4100), 0),
    ("topk", f64, (6000,), 5),
    ("topk", f64, (6000,), 3000),
]


def test_the_cuda_text_gives_the_bits_of_the_host(folder: Path) -> None:
    """Of every pass of a sort, with the threads of a block in two orders, and of matrices of complex elements that are
    cut, lengthened by zeros, and multiplied: each part of an element rounds once. Of their transposition, too."""
    found = []
    for number, (name, dtype, shape, k) in enumerate(CASES):
        x = samples(dtype, int(np.prod(shape)), number).reshape(shape)
        launches = [node for node in nodes_of(ran(name, from_host(x), k)) if isinstance(node, Launch)][::-1]
        found.append((name, x, k, launches))
    specs = list({id(launch.kernel): launch.kernel for *_, launches in found for launch in launches}.values())
    resize, scale = resize_kernel(np.dtype(c64)), scale_kernel(np.dtype(c64))
    op = array.irfft(zeros((3, 10, 2), c128), 6, 1)
    turn = next(n for n in list(nodes_of(op))[::-1] if isinstance(n, Launch) and n.kernel.name == "transpose")
    device = EmulatedKernels([*specs, resize, scale, turn.kernel], folder, blocks=True)
    for name, x, k, launches in found:
        for made, right in zip(emulated(device, launches, x), expected(name, x, k), strict=True):
            assert same_bits(made.reshape(right.shape), right), launches[-1].kernel.cuda
    rows = (np.random.default_rng(4).standard_normal((3, 10, 2)) @ [1, 1j]).astype(c64)
    for length in (1, 7, 10, 25):
        assert same(device, resize, length, [rows])
        assert same(device, resize, length, [np.ascontiguousarray(rows.T)])
    assert same(device, scale, 10, [rows, 1 / 7])
    target: Any = turn.args[0]
    x, y = rows.astype(c128).reshape(3, 5, 2), np.zeros((3, 2, 5), c128)
    device.launch(turn.kernel, [y, x], [target.f.tile])
    assert y.tolist() == x.transpose(0, 2, 1).tolist()
