"""The error of a part on its way to the caller: as it was raised, with its notes, causes and traceback.

What Dask would send is not that error if its text is longer than 10,000 characters, as a compiler's can be, or if a
pickle of it cannot be read: then its notes are dropped, and with them the worker that they name.
"""

from typing import final

import tblib.pickling_support
from distributed.protocol import pickle

from dagpu.common.errors import ClusterError

_SHOWN = 200
"""The characters of an error's text in the logs of Dask."""


@final
class SentError(Exception):
    """An error as a pickle, for which Dask has nothing to cut off. Its arguments are the pickle and a short text."""

    def __str__(self) -> str:
        return str(self.args[1])

    def __repr__(self) -> str:
        return f"SentError({self})"


def sent_error(error: BaseException) -> SentError:
    """Return what is raised on a worker for an error of a part."""
    text = f"{type(error).__name__}: {error}"
    tblib.pickling_support.install(error)
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception as failed:
        content = pickle.dumps(_without_type(text, failed, getattr(error, "__notes__", ())))
    return SentError(content, text[:_SHOWN])


def received_error(error: BaseException) -> BaseException:
    """Return the error of a part that has come from a worker; another error as it is."""
    if not isinstance(error, SentError):
        return error
    try:
        found: BaseException = pickle.loads(error.args[0])
    except Exception as failed:
        return _without_type(str(error), failed, ())
    return found


def _without_type(text: str, failed: Exception, notes: "tuple[str, ...] | list[str]") -> ClusterError:
    """Return the error for one whose pickle cannot be written or read."""
    stand_in = ClusterError(
        f"{text}\n(A worker raised it, and its type does not survive a pickle: {type(failed).__name__}: {failed})"
    )
    for note in notes:
        stand_in.add_note(note)
    return stand_in
