"""Each example in the documentation of the Rust originals has a counterpart: each row of the parity table is run."""

import pytest

from tests.project.parity import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.theirs.strip("`")[:40])
def test_a_row_of_the_parity_table(row: Row) -> None:
    """Our counterpart does what theirs does."""
    row.check()


def test_every_row_is_told_apart() -> None:
    """No construct stands in the table twice, and none is without a counterpart."""
    assert len({row.theirs for row in ROWS}) == len(ROWS)
    assert all(row.ours for row in ROWS)
