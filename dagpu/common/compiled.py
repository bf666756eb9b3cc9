"""The compiled reader: the short form of a call in C, where a C compiler has built it.

A direct call reads the table of its plan (dagpu.tracing.call_guard), locks, launches an idle graph and waits. Each of
these parts has a twin in C (compiled.h names them), which reads the same rows and refuses what it does not know: then
the part in Python decides. So a call means the same with and without it. On H200s the call of a pipeline of one kernel
takes 9 to 12 us with it and 20 to 26 without, where C takes 7 for the launch and the wait alone (benchmarks.calls).

The environment variable DAGPU_COMPILED=0 turns the compiled reader off when dagpu is imported.
"""

from typing import TYPE_CHECKING, Any, Final

from dagpu.common.env_vars import COMPILED

if TYPE_CHECKING:
    from types import ModuleType

WHY_NOT: str = ""
"""The reason why calls are read by Python; empty if the compiled reader reads them."""

reader: "ModuleType | None" = None
if not COMPILED.get():
    WHY_NOT = f"{COMPILED.name} turns the compiled reader off"
else:
    try:
        from dagpu.compiled import _reader
    except ImportError as error:
        WHY_NOT = (
            f"the compiled reader is not built where dagpu was imported from ({error}). In a checkout, "
            "pip install -e . builds it there"
        )
    else:
        reader = _reader

MISS: Final = object()
"""Returned for a call that a direct call refuses. The call has had no effect; the general way runs it."""

READER: Final[Any] = reader
"""The module of C; None if calls are read by Python."""


def teach(**objects: object) -> None:
    """Give the compiled reader, if there is one, the classes and objects that it works with."""
    if READER is not None:
        READER.learn(**objects)


teach(miss=MISS)


def served() -> tuple[int, int]:
    """Return how many calls of `sync()` the compiled reader has served, and how many it has left to Python."""
    return (0, 0) if READER is None else READER.counts()
