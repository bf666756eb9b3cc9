"""Fourier transforms by cuFFT on the GPU, and complex elements.

The tolerance of a row is `8 * eps * log2(n)` times its norm, with eps of the type of the parts.
"""

from typing import Any

import numpy as np
import pytest

from dagpu import Device, array, c64, c128, convert, dup, f32, f64, from_host, full, pipeline

CALLS: Any = {"fft": (c64, c128), "ifft": (c64, c128), "rfft": (f32, f64), "irfft": (c64, c128)}


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]).astype(dtype)


@pytest.mark.parametrize("dtype", [c64, c128])
def test_complex_elements(cuda: Device, dtype: Any) -> None:
    """Constants, copies with gaps, and conversions have the bits of NumPy."""
    x = normal((40, 60), dtype)
    t = from_host(x).sync()
    found = dup(t.slice(slice(1, None, 3), slice(None, None, -2))).to_host().sync()
    assert found.tobytes() == x[1::3, ::-2].tobytes()
    wide = c128 if dtype is c64 else c64
    assert convert(t.borrow(), wide).to_host().sync().tobytes() == x.astype(wide).tobytes()
    for number in (0, 1, 1 - 2j, 3 + 3j):
        assert full((1001,), number, dtype).to_host().sync().tolist() == [number] * 1001


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(1,), (3, 8), (5, 1000), (2, 4099), (1, 1 << 20)])
def test_transforms_are_within_the_tolerance(cuda: Device, name: str, shape: tuple[int, ...]) -> None:
    """Also of other numbers of elements than the rows have; the input stays as it was."""
    pytest.importorskip("nvmath", reason="nvmath-python is not installed")
    for dtype in CALLS[name]:
        x = normal(shape, dtype)
        t = from_host(x).sync()
        for n in (None, max(shape[-1] - 1, 1), shape[-1] + 7):
            if name == "irfft" and shape[-1] == 1 and n is None:
                continue
            found = getattr(array, name)(t.borrow(), n).to_host().sync()
            expected = getattr(np.fft, name)(x.astype(np.result_type(dtype, f64)), n)
            eps = np.finfo(found.dtype).eps
            size = np.linalg.norm(expected, axis=-1, keepdims=True) + 1
            assert found.shape == expected.shape
            assert (abs(found - expected) <= 8 * eps * np.log2(shape[-1] + 8) * size).all()
        assert t.to_host().sync().tobytes() == x.tobytes()


@pytest.mark.parametrize("name", CALLS)
def test_transforms_along_another_axis(cuda: Device, name: str) -> None:
    """By transposition of elements of 4, 8 and 16 bytes: the bits of the transform of the transposed tensor."""
    pytest.importorskip("nvmath", reason="nvmath-python is not installed")
    for dtype in CALLS[name]:
        for shape, axis in (((33, 70, 45), 1), ((5000, 3), 0)):
            x = normal(shape, dtype)
            found = getattr(array, name)(from_host(x), None, axis).to_host().sync()
            rows = from_host(np.ascontiguousarray(np.moveaxis(x, axis, -1)))
            expected = np.moveaxis(getattr(array, name)(rows).to_host().sync(), -1, axis)
            assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("name", CALLS)
def test_transforms_of_columns_are_within_the_tolerance(cuda: Device, name: str) -> None:
    """Which cuFFT reads and writes as they lie, cut and lengthened too; the same bits in each call, and the input stays
    as it was."""
    pytest.importorskip("nvmath", reason="nvmath-python is not installed")
    for dtype in CALLS[name]:
        for shape, n in (
            ((2, 3), None),
            ((33, 70, 45), None),
            ((1000, 100), 700),
            ((1024, 7), 1500),
            ((1, 2000, 5), None),
        ):
            x = normal(shape, dtype)
            axis = 1 if shape[0] == 1 else 0
            t = from_host(x).sync()
            found = getattr(array, name)(t.borrow(), n, axis).to_host().sync()
            expected = getattr(np.fft, name)(x.astype(np.result_type(dtype, f64)), n, axis)
            eps = np.finfo(found.dtype).eps
            size = np.linalg.norm(expected, axis=axis, keepdims=True) + 1
            assert found.shape == expected.shape
            assert (abs(found - expected) <= 8 * eps * np.log2(shape[axis] + 8) * size).all()
            assert getattr(array, name)(t.borrow(), n, axis).to_host().sync().tobytes() == found.tobytes()
            assert t.to_host().sync().tobytes() == x.tobytes()


def test_transforms_in_a_graph(cuda: Device) -> None:
    """There and back in a pipeline whose inputs move: the same bits in each call."""
    pytest.importorskip("nvmath", reason="nvmath-python is not installed")

    @pipeline
    def back(signal: Any) -> Any:
        return array.irfft(array.rfft(signal), 3000).to_host()

    x = normal((7, 3000), f32)
    kept, found = [], []
    for _ in range(8):
        kept.append(from_host(x).sync().share())
        found.append(back(kept[-1]).sync())
    np.testing.assert_allclose(found[0], x, atol=1e-5)
    assert len({each.tobytes() for each in found}) == 1
