"""The list of the driver's calls in the docstring of `pycuda_driver`.

For each call it gives the library that makes it, the work that it may wait for, if it waits for a module load on
another thread, and if it releases the GIL.
"""

import re
from functools import cache
from typing import NamedTuple, final

from dagpu.backends.cuda.driver import pycuda_driver


@final
class DriverCall(NamedTuple):
    """One row of the list."""

    name: str
    through: str
    """The library that makes the call: `bindings` for cuda.bindings, `ctypes`, or the call's name in PyCUDA."""
    waits: str
    """The work that the call may wait for; `-` if it never waits."""
    behind_a_load: str
    """`waits` if the call waits while another thread loads a module or frees memory; else `unknown`, or `-` for no."""
    releases: bool
    """True if the call releases the GIL."""

    @property
    def may_wait(self) -> bool:
        return self.waits != "-" or self.behind_a_load != "-"


@cache
def driver_calls() -> tuple[DriverCall, ...]:
    """Return all rows, in order."""
    text = pycuda_driver.__doc__
    assert text is not None
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.startswith("    ")]
    head, *rest = rows
    assert head == ["call", "through", "may wait for", "behind a load", "GIL"]
    assert all(row[3] in ("waits", "unknown", "-") and row[4] in ("held", "released") for row in rest)
    return tuple(
        DriverCall(name, through, waits, behind, gil == "released") for name, through, waits, behind, gil in rest
    )


def _rows(call: str) -> list[DriverCall]:
    rows = [row for row in driver_calls() if row.name == call]
    assert rows, f"{call} is not listed in pycuda_driver"
    return rows


def releases(call: str) -> bool:
    """Return True if the call releases the GIL, whichever library makes it."""
    return all(row.releases for row in _rows(call))


def may_wait_behind_a_load(call: str) -> bool:
    """Return True if the call may wait while another thread loads a module."""
    return any(row.behind_a_load != "-" for row in _rows(call))
