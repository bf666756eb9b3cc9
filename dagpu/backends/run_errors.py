"""Errors that the backends raise in the same words: too little memory, and several errors at once."""

from collections.abc import Sequence

from dagpu.backends.base import Failure
from dagpu.errors import OutOfMemoryError


def out_of_memory(problem: str, code: int = 0) -> OutOfMemoryError:
    """The error of a run that finds too little memory: `problem` is a sentence without its full stop, `code` that of
    the driver."""
    return OutOfMemoryError(
        f"{problem}. Let go of handles that are no longer needed, or cut the work into smaller pieces.", code
    )


def no_room(where: str, nbytes: int) -> str:
    """The beginning of the problem: how many bytes there is no room for, and where."""
    return f"{where}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB)"


def error_of_graph(failures: Sequence[Failure]) -> BaseException | None:
    """The error of a launch of a graph: of one failure its own, of several a group; None if there are none."""
    errors = [failure.error for failure in failures]
    if len(errors) > 1:
        return BaseExceptionGroup(f"{len(errors)} ops of one graph failed", errors)
    return errors[0] if errors else None
