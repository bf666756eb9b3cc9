"""Errors that all backends raise with the same words: too little memory, and several errors of one graph."""

from collections.abc import Sequence

from dagpu.backends.protocol import Failure
from dagpu.common.errors import OutOfMemoryError


def out_of_memory(problem: str, code: int = 0) -> OutOfMemoryError:
    """Return the error of a run for which there is too little memory.

    `problem` is a sentence without its full stop. `code` is the driver's CUresult, 0 without one.
    """
    return OutOfMemoryError(
        f"{problem}. Drop handles that are no longer needed, or cut the work into smaller pieces.", code
    )


def no_room(where: str, nbytes: int) -> str:
    """Return the first part of the problem: the number of bytes that do not fit, and the memory that is too small."""
    return f"{where}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB)"


def error_of_graph(failures: Sequence[Failure]) -> BaseException | None:
    """Return the error of a graph launch: the error of its only failure, or a group of several; None without one."""
    errors = [failure.error for failure in failures]
    if len(errors) > 1:
        return BaseExceptionGroup(f"{len(errors)} ops of one graph failed", errors)
    return errors[0] if errors else None
