"""The driver's calls, as the docstring of `pycuda_driver` lists them: through what each is made, what it may wait for,
whether it waits behind a load, and whether it lets go of the GIL meanwhile."""

import re
from functools import cache
from typing import NamedTuple, final

from dagpu.backends.cuda.driver import pycuda_driver


@final
class DriverCall(NamedTuple):
    """A row."""

    name: str
    through: str
    """`bindings` for cuda.bindings, `ctypes`, or the name in PyCUDA."""
    waits: str
    """What it may wait for; `-` for nothing."""
    behind_a_load: str
    """Does it wait while another thread loads a module or frees memory? `waits`, `unknown`, or `-` if it does not."""
    releases: bool
    """Does it let go of the GIL?"""

    @property
    def may_wait(self) -> bool:
        return self.waits != "-" or self.behind_a_load != "-"


@cache
def driver_calls() -> tuple[DriverCall, ...]:
    """All rows, in order."""
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
    """Does this call let go of the GIL, through whatever it is made?"""
    return all(row.releases for row in _rows(call))


def may_wait_behind_a_load(call: str) -> bool:
    """May this call wait while another thread loads a module?"""
    return any(row.behind_a_load != "-" for row in _rows(call))
