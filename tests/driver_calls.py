"""The driver's calls, as the docstring of `pycuda_driver` lists them: through what each is made, what it may wait for,
and whether it lets go of the GIL meanwhile."""

import re
from functools import cache
from typing import NamedTuple, final

from dagpu.backends.cuda import pycuda_driver


@final
class DriverCall(NamedTuple):
    """A row."""

    name: str
    through: str
    """`bindings` for cuda.bindings, `ctypes`, or the name in PyCUDA."""
    waits: str
    """What it may wait for; `-` for nothing, in parentheses what others see to that it never waits for."""
    releases: bool
    """Does it let go of the GIL?"""

    @property
    def may_wait(self) -> bool:
        return not self.waits.startswith(("-", "("))


@cache
def driver_calls() -> tuple[DriverCall, ...]:
    """All rows, in order."""
    text = pycuda_driver.__doc__
    assert text is not None
    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.startswith("    ")]
    head, *rest = rows
    assert head == ["call", "through", "may wait for", "GIL"]
    assert all(row[3] in ("held", "released") for row in rest)
    return tuple(DriverCall(name, through, waits, gil == "released") for name, through, waits, gil in rest)


def may_wait(call: str) -> bool:
    """May this call wait, because it lets go of the GIL meanwhile?"""
    rows = [row for row in driver_calls() if row.name == call]
    assert rows, f"{call} is not listed in pycuda_driver"
    return all(row.releases for row in rows)
