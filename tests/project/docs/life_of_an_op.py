"""The life of one op: the modules that it passes through, from the call of its kernel to the array on the host.

Prints the picture of CONTRIBUTING.md: `python -m tests.project.docs.life_of_an_op`. The program is run once on a
simulated GPU, and a profiler notes the modules in the order in which they are first entered.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

if __name__ == "__main__":  # a profiler sees no function of C, and the picture is to be the same without them
    os.environ["DAGPU_COMPILED"] = "0"

from dagpu import from_host, ones
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import installed
from tests.support.paths import ROOT

PACKAGE: Final = str(ROOT / "dagpu") + "/"
WIDTH: Final = 110
LEFT_OUT: Final = "common"
"""The room that is not shown: every module uses it."""
SIMULATOR: Final = frozenset(str(ROOT / "tests" / "simulated" / f"{name}.py") for name in ("gpu", "graphs", "machine"))
"""The modules by which dagpu enters the simulated driver."""


@contextmanager
def profiled(calls: list[CodeType]) -> Iterator[None]:
    """Within the `with` block the functions of dagpu that this thread calls are added, in that order.

    A coroutine or generator that is resumed counts as a call. Calls of the simulated driver do not count: it computes
    kernels with the host's parts.
    """
    inside: list[CodeType] = []  # the simulator's functions under way

    def note(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if code.co_filename in SIMULATOR:
            if event == "call":
                inside.append(code)
            elif event == "return" and inside:
                inside.pop()
        elif event == "call" and not inside and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            calls.append(code)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def module_of(code: CodeType) -> str:
    """The path of a function's module inside the package, without its ending."""
    return code.co_filename.removeprefix(PACKAGE).removesuffix(".py")


def rows(calls: list[CodeType]) -> Iterator[str]:
    """One line for each room in the order in which the rooms are entered, with its modules in that order."""
    rooms: dict[str, list[str]] = {}
    for name in dict.fromkeys(map(module_of, calls)):
        room, _, module = name.rpartition("/")
        if room != LEFT_OUT:
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
            seen: list[CodeType] = []
            with profiled(seen):
                call()
            lines += [text, *rows(seen)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(picture())
