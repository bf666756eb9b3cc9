"""Arrays that another library shares with dagpu: no handle of dagpu becomes their owner, and nothing writes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import OwnershipError, dup, f32, from_host, share_array, source, use_device


def fixed() -> NDArray[f32]:
    """Return a read-only array."""
    array = np.zeros(8, f32)
    array.flags.writeable = False
    return array


SHARED: dict[str, Callable[[], Any]] = {
    "read-only": fixed,
    "broadcast": lambda: np.broadcast_to(np.zeros(1, f32), (8,)),
    "of dagpu": lambda: np.from_dlpack(from_host(np.zeros(8, f32)).sync().share()),
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_written_part_goes_to_a_copy(kind: str) -> None:
    """`Source.write` writes a copy, also where the source has the only handle."""
    with use_device("host"):
        array = SHARED[kind]()
        given = source(share_array(array))
        given.write(slice(0, 2), np.full(2, 9, f32))
        assert_array_equal(given.get().to_host().sync(), [9, 9, 0, 0, 0, 0, 0, 0])
        assert_array_equal(array, np.zeros(8))


@pytest.mark.parametrize("kind", SHARED)
def test_it_has_no_owner_in_dagpu(kind: str) -> None:
    """`try_unwrap()` refuses it; a copy has an owner."""
    with use_device("host"):
        shared = share_array(SHARED[kind]())
        with pytest.raises(OwnershipError, match="or by the library whose array it is"):
            shared.try_unwrap()
        assert_array_equal(dup(shared).to_host().sync(), np.zeros(8))
