"""The devices that a test runs on, by number: it names none itself, so that it can be run on any kind of device.

`DAGPU_DEVICE` says which kind: the host (`tests/conftest.py`), or a GPU (`tests/gpu/conftest.py`).
"""

import os
from functools import cache

from dagpu import devices

HOST_DEVICES = 8
"""How many devices of the host can be had by name."""


@cache
def _count(kind: str) -> int:
    return HOST_DEVICES if kind == "host" else max(1, sum(found.kind == kind for found in devices()))


def place(number: int = 0) -> str:
    """The name of device `number`, counted from the default one; where there are fewer, they come round again."""
    kind, _, index = os.environ["DAGPU_DEVICE"].partition(":")
    return f"{kind}:{(int(index or 0) + number) % _count(kind)}"


def elsewhere() -> str:
    """The name of another device than the default one: one of the host's where there is no other of its kind."""
    here, there = place(0), place(1)
    return "host:0" if there == here else there
