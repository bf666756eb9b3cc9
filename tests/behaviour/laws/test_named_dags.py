"""The named DAGs, against NumPy: to the bit, on whichever device the suite runs."""

import numpy as np
import pytest

from dagpu import RoundRobin, SingleStream
from tests.programs.named_dags import EXPECTED, LARGER, NAMED


def test_every_dag_has_its_reference() -> None:
    """The three tables name the same DAGs."""
    assert NAMED.keys() == EXPECTED.keys() == LARGER.keys()


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("name", NAMED)
def test_a_named_dag_gives_what_numpy_gives(name: str, larger: bool) -> None:
    """The whole result, bit for bit, at the default size and at one with several tiles for each tensor."""
    sizes = LARGER[name] if larger else {}
    found, expected = NAMED[name](**sizes).sync(), EXPECTED[name](**sizes)
    assert len(expected) == len(found)
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_array_equal(want, got, strict=True)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_dag_is_the_same_under_every_policy(name: str) -> None:
    """One stream or several: the same bits."""
    one, several = (NAMED[name]().schedule(policy).sync() for policy in (SingleStream(), RoundRobin(3)))
    for want, got in zip(one, several, strict=True):
        np.testing.assert_array_equal(want, got, strict=True)
