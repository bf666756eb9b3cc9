"""The kinds of devices on which functions of arrays are tested, and arrays of any layout."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import Tensor, from_host, use_device
from dagpu.runtime.plan_cache import plans
from tests.simulated.cuda import installed

PLACES: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "here": nullcontext,
    "explore": lambda: use_device("explore:0"),
    "simulated GPU": lambda: installed(0, 1),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name == "here" else pytest.mark.host_only("a device of its own"))
        for name in PLACES
    ]
)
def where(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each kind of device; gives the simulated machine where there is one."""
    plans.clear()
    with PLACES[request.param]() as found:
        yield found
    plans.clear()


class Cut(NamedTuple):
    """A tensor on the current device, the ranges that are lent of it, and their contents in NumPy."""

    tensor: Tensor[Any]
    ranges: tuple[slice, ...]
    array: NDArray[Any]

    def lent(self) -> Any:
        """A borrow of the ranges."""
        return self.tensor.slice(*self.ranges)


def cut(array: NDArray[Any], ranges: tuple[slice, ...]) -> Cut:
    """Return a part of an array on the current device, which has gaps and may run backwards."""
    return Cut(from_host(array).sync(), ranges, array[ranges])


steps = st.sampled_from((slice(None), slice(None), slice(None, None, 2), slice(1, None), slice(None, None, -1)))

ARRAY_CALLS: Final = {
    **dict.fromkeys(("expr", "Elem.to", "Expression.__call__"), "test_wrong_array_arguments tries them"),
    **dict.fromkeys(("Expression.into", "Expression.update"), "test_wrong_array_arguments tries them"),
    "Expression.build": "functions of dagpu.array call it",
}
"""Public calls of expressions, which have a table of their own for wrong arguments."""
