"""The undo log of a run: what it has taken goes back once, and only before the submission."""

from typing import Any

import pytest

from dagpu import MovedError, ones
from dagpu.handles import find_live_state, move_handle
from dagpu.tracing.undo_log import UndoLog


def taken() -> tuple[UndoLog, Any]:
    """Return a log, and a tensor that it has taken."""
    log = UndoLog()
    tensor: Any = ones((2,)).sync()
    log.take_handle(tensor, None)
    return log, tensor


def test_what_was_taken_goes_back() -> None:
    """A tensor that a run took is usable again after the run has put it back."""
    log, tensor = taken()
    assert find_live_state(tensor) is None
    log.put_back()
    assert find_live_state(tensor) is not None


def test_nothing_goes_back_after_the_submission() -> None:
    """Once the log is discarded, the tensor stays moved."""
    log, tensor = taken()
    log.discard()
    log.put_back()
    assert find_live_state(tensor) is None


def test_what_was_taken_goes_back_once() -> None:
    """A second `put_back` leaves a tensor alone that somebody else has moved since the first."""
    log, tensor = taken()
    log.put_back()
    move_handle(tensor, "another run", None)
    log.put_back()
    assert find_live_state(tensor) is None


def test_a_refused_take_leaves_the_note_of_the_earlier_move() -> None:
    """A tensor that cannot be taken keeps the note of its move, and does not come back with the others."""
    tensor: Any = ones((2,)).sync()
    move_handle(tensor, "an earlier run", None)
    log = UndoLog()
    with pytest.raises(MovedError, match="an earlier run"):
        log.take_handle(tensor, None)
    log.put_back()
    assert find_live_state(tensor) is None
    with pytest.raises(MovedError, match="an earlier run"):
        tensor.borrow()
