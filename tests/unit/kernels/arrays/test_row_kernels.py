"""Kernels of rows of real and complex elements: the CUDA text on the CPU gives the bits of the host body."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagpu import c64, f64
from dagpu.kernels.arrays.libraries.row_kernels import resize_kernel, scale_kernel
from tests.emulation import shared_folder
from tests.emulation.emulated_kernels import EmulatedKernels


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_folder(tmp_path_factory)


def test_the_cuda_text_gives_the_bits_of_the_host_body(folder: Path) -> None:
    """Rows are cut, lengthened by zeros, and multiplied: each part of an element rounds once."""
    types: list[Any] = [np.dtype(each) for each in (c64, f64)]
    specs = {dtype: (resize_kernel(dtype), scale_kernel(dtype)) for dtype in types}
    device = EmulatedKernels([spec for pair in specs.values() for spec in pair], folder)
    rng = np.random.default_rng(4)
    for dtype, (resize, scale) in specs.items():
        x = (rng.standard_normal((3, 10, 2)) @ [1, 1j]).astype(dtype) if dtype.kind == "c" else (
            rng.standard_normal((3, 10)).astype(dtype)
        )  # fmt: skip
        for made in (1, 7, 10, 25):
            found, expected = np.full((3, made), 9, dtype), np.full((3, made), 9, dtype)
            device.launch(resize, [found, x], [(2, 4)])
            assert resize.host.function is not None
            resize.host.function(expected, x)
            assert found.tobytes() == expected.tobytes()
        found, expected = np.zeros((3, 10), dtype), np.zeros((3, 10), dtype)
        device.launch(scale, [found, x, 1 / 7], [(2, 4)])
        assert scale.host.function is not None
        scale.host.function(expected, x, 1 / 7)
        assert found.tobytes() == expected.tobytes()
