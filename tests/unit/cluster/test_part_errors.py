"""The error of a part arrives as it was raised, whatever Dask does to errors."""

import pytest

pytest.importorskip("distributed", reason="a cluster needs Dask: pip install 'dagpu[cluster]'")

from distributed.core import clean_exception, error_message

from dagpu import ClusterError, CompileError, OutOfMemoryError
from dagpu.cluster.dask_tasks import received_error, sent_error


class Unreadable(Exception):
    """An error of a user's, whose pickle cannot be read: its arguments are not those of `__init__`."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")

    def __reduce__(self) -> tuple[type["Unreadable"], tuple[object, ...]]:
        return type(self), self.args


def _sent(error: Exception) -> BaseException:
    """The error as a run gets it, which a worker has raised."""
    error.add_note("dagpu: on worker w1")
    try:
        raise error from KeyError("cause")
    except Exception as raised:
        sent = sent_error(raised)
    message = error_message(sent)
    _, arrived, _ = clean_exception(message["exception"].data, None)
    assert arrived is not None
    return received_error(arrived)


@pytest.mark.parametrize("length", [1, 100_000])
def test_an_error_arrives_as_it_was_raised(length: int) -> None:
    """With its type, text of any length, attributes, notes, cause and traceback."""
    for error in (CompileError("x" * length), OutOfMemoryError("x" * length, 2), ValueError("x" * length, 7)):
        found = _sent(error)
        assert type(found) is type(error)
        assert (found.args, vars(found)) == (error.args, vars(error))
        assert type(found.__cause__) is KeyError
        assert found.__traceback__ is not None


def test_an_error_that_is_no_pickle_says_what_it_was() -> None:
    """Its type and text are in the error of its place, with the notes, so that the worker is named."""
    found = _sent(Unreadable(1, 2))
    assert type(found) is ClusterError
    assert "Unreadable: 1 and 2" in str(found)
    assert found.__notes__ == ["dagpu: on worker w1"]


def test_other_errors_are_left_alone() -> None:
    """What Dask itself raises is none of a part."""
    error = RuntimeError("of Dask")
    assert received_error(error) is error
