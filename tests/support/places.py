"""The devices that a test runs on, by number. Tests do not name devices, so that they can run on any kind of device.

`DAGPU_DEVICE` selects the kind: the host (`tests/conftest.py`), or a GPU (`tests/gpu/conftest.py`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from dagpu import devices

HOST_DEVICES = 8
"""Number of host devices that can be used by name."""


_counts: dict[str, int] = {}
"""Number of devices of each kind, as set by `counted`."""


@contextmanager
def counted(kind: str, count: int) -> Iterator[None]:
    """Within the `with` block, `place` uses `count` devices of this kind."""
    before = _counts.copy()
    _counts[kind] = count
    try:
        yield
    finally:
        _counts.clear()
        _counts.update(before)


@cache
def _count(kind: str) -> int:
    return HOST_DEVICES if kind == "host" else max(1, sum(found.kind == kind for found in devices()))


def place(number: int = 0) -> str:
    """Return the name of device `number`, counted from the default one, modulo the number of devices."""
    kind, _, index = os.environ["DAGPU_DEVICE"].partition(":")
    return f"{kind}:{(int(index or 0) + number) % (_counts.get(kind) or _count(kind))}"


def elsewhere() -> str:
    """Return the name of a device other than the default one: a host device if there is no other of its kind."""
    here, there = place(0), place(1)
    return "host:0" if there == here else there
