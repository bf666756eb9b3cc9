"""The life of one op: the modules that it passes through, from the call of its kernel to the array on the host.

Prints the picture of CONTRIBUTING.md: `python -m tests.project.docs.life_of_an_op`. The program is run once on a
simulated GPU, and a profiler notes the modules in the order in which they are first entered.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import numpy as np

from dagpu import from_host, ones
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import installed
from tests.support.paths import ROOT

PACKAGE: Final = str(ROOT / "dagpu") + "/"
WIDTH: Final = 110
LEFT_OUT: Final = ("common", "backends/host")
"""Rooms that are not shown: every module uses `common`; the simulated GPU computes kernels with the host's parts."""


@contextmanager
def entered(modules: dict[str, None]) -> Iterator[None]:
    """Within the `with` block the modules of dagpu that this thread enters are added, in that order."""

    def note(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            modules.setdefault(code.co_filename.removeprefix(PACKAGE).removesuffix(".py"))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def rows(modules: dict[str, None]) -> Iterator[str]:
    """One line for each room in the order in which the rooms are entered, with its modules in that order."""
    rooms: dict[str, list[str]] = {}
    for name in modules:
        room, _, module = name.rpartition("/")
        if room not in LEFT_OUT:
            rooms.setdefault(room, []).append(module)
    for number, (room, inside) in enumerate(rooms.items(), 1):
        line = f"  {number:2} {room:<24}"
        for module in inside:
            if len(line) + len(module) + 1 > WIDTH:
                yield line.rstrip()
                line = " " * 29
            line += f"{module} "
        yield line.rstrip()


def picture() -> str:
    """The calls of a small program, each with the rooms and modules that it enters."""
    x = from_host(np.ones((4, 4), np.float32))
    y = ones((4, 4))
    made: list[Any] = []

    def build() -> None:
        made.append(axpy(y.partition((2, 4)), 2.0, x).first().unpartition().to_host())

    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("op = axpy(y.partition((2, 4)), 2.0, x).first().unpartition().to_host()", build),
        ("op.sync()", lambda: made[0].sync()),
    )
    lines = []
    with installed(gpus=1):
        for text, call in calls:
            modules: dict[str, None] = {}
            with entered(modules):
                call()
            lines += [text, *rows(modules)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(picture())
