"""Errors that the backends raise in the same words: too little memory, and several errors at once."""

from collections.abc import Sequence

from dagpu.backends.protocol import Failure
from dagpu.common.errors import OutOfMemoryError


def out_of_memory(problem: str, code: int = 0) -> OutOfMemoryError:
    """The error of a run that finds too little memory: `problem` is a sentence without its full stop, `code` the
    driver's CUresult, 0 if there is none."""
    return OutOfMemoryError(
        f"{problem}. Let go of handles that are no longer needed, or cut the work into smaller pieces.", code
    )


def no_room(where: str, nbytes: int) -> str:
    """The beginning of the problem: the number of bytes that do not fit, and the memory that they do not fit into."""
    return f"{where}: no room for {nbytes:,} bytes ({nbytes / 2**30:.2f} GiB)"


def error_of_graph(failures: Sequence[Failure]) -> BaseException | None:
    """The error of a launch of a graph: the error of its only failure, or a group of several; None without failures."""
    errors = [failure.error for failure in failures]
    if len(errors) > 1:
        return BaseExceptionGroup(f"{len(errors)} ops of one graph failed", errors)
    return errors[0] if errors else None
