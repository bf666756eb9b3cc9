"""The clocks of workers, as this process sees them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from dagpu.cluster.engine import offset_of

ways = st.floats(0.0, 1.0)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(st.floats(0.0, 100.0), ways, ways), min_size=1))
def test_the_offset_is_known_to_half_of_the_quickest_answer(
    ahead: float, pings: list[tuple[float, float, float]]
) -> None:
    """Whatever the ways to the worker and back take, and however far its clock is ahead."""
    answers = [(start, start + out + ahead, start + out + back) for start, out, back in pings]
    quickest = min(out + back for _, out, back in pings)
    assert abs(offset_of(answers) - ahead) <= quickest / 2 + 1e-6
