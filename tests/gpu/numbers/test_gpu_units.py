"""How far `exp`, `log` and the like are from the exact numbers on a GPU: at most what the guide promises."""

from typing import Any

import numpy as np
import pytest

from dagpu import Device, array, f32, f64, from_host, use_device
from tests.programs.ulp_tables import FLOATS, FUNCTIONS, exact, operands, promised, units, validation_rows


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_exact_as_promised(cuda: Device, name: str, dtype: Any) -> None:
    """Over numbers of all sizes, all of them for f16 and bf16."""
    x = operands(dtype)
    if name == "erf":
        x = x[:: 1 + len(x) // 20_000]
    if name in ("sin", "cos"):
        x = x[~(np.abs(x.astype(f64)) > 1e22)]  # beyond, a long double's own functions are slow
    with use_device(cuda):
        found = getattr(array, name)(from_host(x)).to_host().sync()
    largest = units(found, exact(name, x))
    print(f"{name} of {np.dtype(dtype).name}: {largest:.3f} units")
    assert largest <= promised(name, dtype)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "erf"])
def test_numpys_validation_sets(cuda: Device, name: str, dtype: Any) -> None:
    """Operands that NumPy's own tests have, of each kind that a library got wrong once."""
    rows = validation_rows(name, dtype)
    if rows is None:
        pytest.skip("this NumPy has no validation sets")
    x, wanted = rows
    with use_device(cuda):
        found = getattr(array, name)(from_host(x)).to_host().sync()
    assert units(found, wanted) <= promised(name, dtype)
