"""Each example in the documentation of the Rust originals has a counterpart: each row of the parity table is run."""

import inspect

import numpy as np
import pytest

from dagpu import array
from tests.project.parity import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.theirs.strip("`")[:40])
def test_a_row_of_the_parity_table(row: Row) -> None:
    """Our counterpart does what theirs does."""
    row.check()


def test_every_row_is_told_apart() -> None:
    """No construct stands in the table twice, and none is without a counterpart."""
    assert len({row.theirs for row in ROWS}) == len(ROWS)
    assert all(row.ours for row in ROWS)


PYTORCHS = {
    "bernoulli", "cummax", "cummin", "dropout", "erf", "log_softmax", "logsumexp", "one_hot", "scatter_add", "softmax",
    "topk",
}  # fmt: skip
"""Functions of `dagpu.array` whose names are PyTorch's, since NumPy has none of them."""
OURS = {"csr_matmul", "scatter_max", "scatter_min", "scatter_set", "segment_sum", "stencil"}
"""Functions whose names are those of other libraries, or of none."""
WITHOUT_SIGNATURES = {"permutation", "uniform", "exponential", "randint", "choice"}
"""Functions of `numpy.random`, whose parameters Python does not know."""
OTHER_DEFAULTS = {"take": "axis"}
"""Functions with another default than NumPy's, which their docstrings say."""


def test_functions_of_arrays_are_called_and_used_as_those_of_numpy() -> None:
    """By their names, and by the names and defaults of the arguments that both have."""
    for name in array.__all__:
        found = next((getattr(m, name) for m in (np.fft, np, np.linalg, np.random) if hasattr(m, name)), None)
        assert (found is None) == (name in PYTORCHS | OURS), name
        if found is None or isinstance(found, np.ufunc) or name in WITHOUT_SIGNATURES:
            continue
        theirs = inspect.signature(found).parameters
        for param in inspect.signature(getattr(array, name)).parameters.values():
            other = theirs.get(param.name)
            if param.name in ("axis", "axes", "keepdims", "n") and param.name != OTHER_DEFAULTS.get(name):
                assert other is not None, (name, param.name)
                plain = (False, other.default) if param.name == "keepdims" else (other.default,)
                assert param.default in plain, (name, param, other)
