"""How far `exp`, `log` and the like are from the exact numbers on the host: at most what the guide promises."""

from typing import Any

import numpy as np
import pytest

from dagpu import array, expr, f32, f64, from_host
from tests.programs.ulp_tables import FLOATS, FUNCTIONS, PROMISED, exact, operands, promised, units, validation_rows


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_exact_as_promised(name: str, dtype: Any) -> None:
    """Over numbers of all sizes, all of them for f16 and bf16."""
    x = operands(dtype)
    if name == "erf":
        x = x[:: 1 + len(x) // 5000]
    if name in ("sin", "cos", "tan"):
        x = x[~(np.abs(x.astype(f64)) > 1e22)]  # beyond, a long double's own functions are slow
    found = getattr(array, name)(from_host(x)).to_host().sync()
    assert units(found, exact(name, x)) <= promised(name, dtype)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in ("sin", "cos", "erf", "tan")])
def test_functions_of_f32_hardly_depend_on_the_processor(name: str) -> None:
    """They are computed in f64 and rounded: within 0.51 units, alone, in an expression and of strided arrays."""
    x = operands(f32)
    whole = getattr(array, name)(from_host(x)).to_host().sync()
    assert units(whole, exact(name, x)) <= 0.51
    twice = expr(f32)(lambda e: getattr(array, name)(e) / 2)
    assert twice(from_host(x)).to_host().sync().tobytes() == (whole / f32(2)).tobytes()
    few = twice(from_host(x[:100])).to_host().sync()
    assert few.tobytes() == (whole[:100] / f32(2)).tobytes()
    t = from_host(x[:10_000].reshape(100, 100)).sync()
    turned = getattr(array, name)(t.slice(slice(None), slice(0, 100, 3))).to_host().sync()
    assert turned.tobytes() == whole[:10_000].reshape(100, 100)[:, ::3].tobytes()


@pytest.mark.parametrize("dtype", [f32, f64])
def test_powers_are_as_exact_as_promised(dtype: Any) -> None:
    """Of positive bases of all sizes, with results from the smallest to the largest numbers."""
    random = np.random.default_rng(4)
    size = 80 if dtype is f32 else 700
    a = np.exp(random.uniform(-10, 10, 100_000)).astype(dtype)
    b = (random.uniform(-size, size, a.shape) / np.log(a)).astype(dtype)
    found = array.pow(from_host(a), from_host(b)).to_host().sync()
    wide = f64 if dtype is f32 else np.longdouble
    assert units(found, np.power(a.astype(wide), b.astype(wide))) <= PROMISED


@pytest.mark.parametrize("name", ["hypot", "atan2", "logaddexp"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_two_numbers_are_as_exact_as_promised(dtype: Any, name: str) -> None:
    """Of numbers of all sizes and signs; a sum of powers is as exact as its larger term."""
    random = np.random.default_rng(5)
    a, b = ((random.standard_normal(50_000) * np.exp2(random.uniform(-12, 12, 50_000))).astype(dtype) for _ in range(2))
    found = getattr(array, name)(from_host(a), from_host(b)).to_host().sync()
    wide = np.longdouble if dtype is f64 else f64
    exact_numbers = getattr(np, name)(a.astype(wide), b.astype(wide))
    if name == "logaddexp":
        unit = np.spacing(np.maximum(np.maximum(np.abs(a), np.abs(b)), a.dtype.type(1))).astype(wide)
        assert np.max(np.abs(found.astype(wide) - exact_numbers) / unit) <= 4
    else:
        assert units(found, exact_numbers) <= 4


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "erf"])
def test_numpys_validation_sets(name: str, dtype: Any) -> None:
    """Operands that NumPy's own tests have, of each kind that a library got wrong once."""
    rows = validation_rows(name, dtype)
    if rows is None:
        pytest.skip("this NumPy has no validation sets")
    x, wanted = rows
    found = getattr(array, name)(from_host(x)).to_host().sync()
    assert len(x) > 50
    assert units(found, wanted) <= promised(name, dtype)
