"""Complex elements and Fourier transforms on every kind of device: NumPy's values, layouts, pipelines, refusals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    KernelArgumentError,
    ShapeError,
    array,
    c64,
    c128,
    convert,
    dup,
    expr,
    f32,
    f64,
    from_host,
    full,
    i32,
    memcpy,
    ones,
    pipeline,
    zeros,
)
from tests.behaviour.arrays.array_places import cut, steps
from tests.behaviour.arrays.library_places import libraries_on_each_device as libraries_on_each_device
from tests.behaviour.arrays.library_places import where as where

anyhow: Any = array
EPS = {c64: 2e-6, f32: 2e-6, c128: 4e-15, f64: 4e-15}
"""By element type of the result: the error of a row beside its norm."""


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> NDArray[Any]:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    found: NDArray[Any] = parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]
    return found.astype(dtype)


def check(found: NDArray[Any], expected: NDArray[Any], dtype: Any) -> None:
    assert found.dtype == dtype
    assert found.shape == expected.shape
    size = np.linalg.norm(expected, axis=-1, keepdims=True) + 1
    assert (abs(found - expected) <= EPS[dtype] * size).all()


# ---- complex elements
@pytest.mark.parametrize("dtype", [c64, c128])
def test_complex_tensors_are_made_copied_and_filled(where: Any, dtype: Any) -> None:
    """As those of other types: from and to the host, whole and with gaps, from constants, and into each other."""
    x = normal((5, 6), dtype)
    t = from_host(x).sync()
    assert dup(t.borrow()).to_host().sync().tobytes() == x.tobytes()
    part = cut(x, (slice(None, None, 2), slice(None, None, -1)))
    assert dup(part.lent()).to_host().sync().tolist() == part.array.tolist()
    wide = c128 if dtype is c64 else c64
    assert convert(t.borrow(), wide).to_host().sync().tobytes() == x.astype(wide).tobytes()
    assert zeros((2, 3), dtype).to_host().sync().tolist() == [[0] * 3] * 2
    assert full((3,), 1 - 2j, dtype).to_host().sync().tolist() == [1 - 2j] * 3
    assert ones((3,), dtype).to_host().sync().tolist() == [1] * 3
    to = zeros((5, 6), dtype).sync()
    memcpy(to.borrow_mut(), t.borrow()).sync()
    assert to.reshape((30,)).to_host().sync().tolist() == x.reshape(30).tolist()


def test_what_takes_no_complex_elements(where: Any) -> None:
    """What needs an order, or elements that are real, says so."""
    z = zeros((4,), c64).sync().share()
    for name in ("sort", "argmax", "amin", "cummax", "median", "floor", "tanh"):
        with pytest.raises(KernelArgumentError, match=r"elements of c64"):
            getattr(anyhow, name)(z)
    with pytest.raises(KernelArgumentError, match="Take a real part of it before"):
        expr(f32)(lambda x: x + 1)(z)  # type: ignore[arg-type]  # reason: the mistake
    with pytest.raises(ShapeError, match="elements of complex64 have two parts, and those of float32 hold one"):
        convert(z, f32)


# ---- transforms
CALLS: Any = {"fft": (c64, c128), "ifft": (c64, c128), "rfft": (f32, f64), "irfft": (c64, c128)}


@pytest.mark.parametrize("name", CALLS)
def test_transforms_are_numpys(with_libraries: Any, name: str) -> None:
    """Of rows of any number of elements, cut or with zeros added."""
    for dtype in CALLS[name]:
        for shape, n in (((7,), None), ((3, 8), None), ((2, 3, 9), None), ((3, 8), 5), ((3, 8), 20), ((2, 1), 1)):
            if name == "irfft" and shape == (2, 1) and n is None:
                continue
            x = normal(shape, dtype)
            expected = getattr(np.fft, name)(x.astype(np.result_type(dtype, f64)), n)
            single = dtype in (f32, c64)
            result = (f32 if single else f64) if name == "irfft" else (c64 if single else c128)
            t = from_host(x).sync()
            check(getattr(anyhow, name)(t.borrow(), n).to_host().sync(), expected, result)
            assert t.to_host().sync().tobytes() == x.tobytes()


def test_rows_of_any_layout(with_libraries: Any) -> None:
    """With gaps, reversed, at odd addresses, and empty."""
    x = normal((4, 21), f32)
    for ranges in (
        (slice(1, None), slice(None)),
        (slice(None), slice(1, 20, 2)),
        (slice(None, None, -1), slice(5, None)),
    ):
        part = cut(x, ranges)
        check(array.rfft(part.lent()).to_host().sync(), np.fft.rfft(part.array), c64)
    assert array.rfft(zeros((0, 4))).to_host().sync().shape == (0, 3)


@pytest.mark.parametrize("name", CALLS)
def test_transforms_along_any_axis_are_numpys(with_libraries: Any, name: str) -> None:
    """Of whole tensors and of parts with gaps, with axes before and after; the input stays as it was."""
    for shape, axis, n in (((8, 3), 0, None), ((2, 9, 5), 1, 6), ((7, 2, 3), -3, 9), ((3, 4, 1, 1), 1, None)):
        x = normal(shape, CALLS[name][0])
        part = cut(x, (slice(None),) * (len(shape) - 1) + (slice(None, None, -1),))
        single = f32 if name == "irfft" else c64
        t = from_host(x).sync()
        for handle, array_of in ((t.borrow(), x), (part.lent(), part.array)):
            expected = getattr(np.fft, name)(array_of.astype(np.result_type(x, f64)), n, axis)
            found = getattr(anyhow, name)(handle, n, axis).to_host().sync()
            check(np.moveaxis(found, axis, -1), np.moveaxis(expected, axis, -1), single)
        assert t.to_host().sync().tobytes() == x.tobytes()
    assert getattr(anyhow, name)(zeros((0, 4, 3), CALLS[name][0]), None, 1).to_host().sync().size == 0


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_transform_is_numpys(with_libraries: Any, data: st.DataObject) -> None:
    """Of inputs with gaps and of reversed ones, along any axis, cut and lengthened, with the same bits as of a copy."""
    name = data.draw(st.sampled_from(tuple(CALLS)))
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 8, 13)), min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = data.draw(st.sampled_from((None, 1, 5, 16)))
    part = cut(normal(shape, CALLS[name][0]), tuple([data.draw(steps) for _ in shape]))
    if not part.array.size or (name == "irfft" and n is None and part.array.shape[axis] == 1):
        return
    transform = getattr(anyhow, name)
    found = transform(part.lent(), n, axis).to_host().sync()
    expected = getattr(np.fft, name)(part.array.astype(np.result_type(part.array, f64)), n, axis)
    check(np.moveaxis(found, axis, -1), np.moveaxis(expected, axis, -1), f32 if name == "irfft" else c64)
    copied = transform(from_host(np.array(part.array, order="C")), n, axis).to_host().sync()
    assert copied.tobytes() == found.tobytes()


def test_a_signal_comes_back(with_libraries: Any) -> None:
    """Through a filter in a pipeline, whose tensors lie elsewhere in each call; there is one plan."""

    @pipeline
    def filtered(signal: Any) -> Any:
        return array.irfft(array.rfft(signal), 100)

    kept = []
    for seed in range(5):
        signal = normal((3, 100), f32, seed)
        kept.append((filtered(from_host(signal).sync().share()).sync(), signal))
    for found, signal in kept:
        np.testing.assert_allclose(found.to_host().sync(), signal, atol=1e-5)
    assert filtered.cache_info()[:2] == (4, 1)


def test_what_a_transform_refuses(where: Any) -> None:
    """Other elements, rows without elements, and numbers of elements that are none."""
    calls: Any = (
        (lambda: anyhow.fft(ones((4,), i32)), "it takes elements of f32 or c64 or f64 or c128, not of i32"),
        (lambda: anyhow.irfft(ones((4,))), "it takes elements of c64 or c128, not of f32"),
        (lambda: anyhow.rfft(ones((4,), i32)), "it takes elements of f32 or f64, not of i32"),
        (lambda: anyhow.irfft(2.0), "x is a number"),
    )
    for call, what in calls:
        with pytest.raises(KernelArgumentError, match=what):
            call()
    for n in (0, -1, 2.5, "x"):
        with pytest.raises(ShapeError, match="n is"):
            anyhow.rfft(ones((4,)), n)
    for axis in (2, -3, 1.5, None):
        with pytest.raises(ShapeError, match=r"rfft at .*axis is .*, but x has 2 axes"):
            anyhow.rfft(ones((4, 4)), axis=axis)
    for empty in (zeros((2, 0)), zeros(())):
        with pytest.raises(ShapeError, match=r"nothing to transform|no axis"):
            array.rfft(empty)


def test_rows_without_elements_are_lengthened_by_zeros() -> None:
    """With a number of elements, as shorter rows are; the transform of zeros is zeros."""
    for name, dtype, made in (("fft", c64, c64), ("ifft", c128, c128), ("rfft", f32, c64), ("irfft", c64, f32)):
        for shape, axis in (((0,), 0), ((3, 0), 1), ((0, 3), 0)):
            found = getattr(anyhow, name)(zeros(shape, dtype), 4, axis).to_host().sync()
            wanted = list(shape)
            wanted[axis] = 3 if name == "rfft" else 4
            assert found.tobytes() == np.zeros(wanted, made).tobytes()
            assert (found.shape, found.dtype) == (tuple(wanted), made)
