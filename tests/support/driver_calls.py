"""Questions that the stand-ins for a driver ask about its calls."""

from dagpu.backends.cuda.driver.driver_protocol import DRIVER_CALLS, DriverCall


def driver_calls() -> tuple[DriverCall, ...]:
    """Return all calls. A test replaces this function to seed a mistake."""
    return DRIVER_CALLS


def _rows(call: str) -> list[DriverCall]:
    rows = [row for row in driver_calls() if row.name == call]
    assert rows, f"{call} is not listed in dagpu.backends.cuda.driver.driver_protocol"
    return rows


def releases(call: str) -> bool:
    """Return True if the call releases the GIL, whichever library makes it."""
    return all(row.releases for row in _rows(call))


def may_wait_behind_a_load(call: str) -> bool:
    """Return True if the call may wait while another thread loads a module."""
    return any(row.behind_a_load != "-" for row in _rows(call))
