"""The devices that a test runs on, by number: it names none itself, so that it can be run on any kind of device.

`DAGPU_DEVICE` says which kind: the host (`tests/conftest.py`), or a GPU (`tests/gpu/conftest.py`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from dagpu import devices

HOST_DEVICES = 8
"""How many devices of the host can be had by name."""


_counts: dict[str, int] = {}
"""How many devices of a kind `counted` says there are."""


@contextmanager
def counted(kind: str, count: int) -> Iterator[None]:
    """Within the `with` block there are `count` devices of this kind."""
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
    """The name of device `number`, counted from the default one; where there are fewer, they come round again."""
    kind, _, index = os.environ["DAGPU_DEVICE"].partition(":")
    return f"{kind}:{(int(index or 0) + number) % (_counts.get(kind) or _count(kind))}"


def elsewhere() -> str:
    """The name of another device than the default one: one of the host's where there is no other of its kind."""
    here, there = place(0), place(1)
    return "host:0" if there == here else there
