"""The laws of ops on the devices of the suite, on one stream and on four, blocking and under trio."""

from typing import Any

import pytest

from dagpu import RoundRobin, SingleStream
from tests.behaviour.laws.laws import (  # noqa: F401  # the laws, over the fixture below
    equal,
    test_map_of_identity_changes_nothing,
    test_maps_over_handles_compose,
    test_maps_over_host_data_compose,
    test_placement_changes_nothing,
    test_shared_twice_is_shared_once,
    test_then_is_associative,
    test_then_is_associative_over_host_data,
    test_unzip_then_zip_backwards_swaps,
    test_value_is_a_left_unit_of_then,
    test_value_is_a_right_unit_of_then,
    test_zip_of_unzip_changes_nothing,
)


@pytest.fixture(params=[SingleStream(), RoundRobin(4)], ids=["one stream", "four streams"], scope="module")
def policy(request: pytest.FixtureRequest) -> Any:
    return request.param
