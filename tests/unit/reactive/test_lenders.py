"""What a feed lends to others: nothing before it is complete."""

from typing import Any, Final

import pytest

from dagpu import empty, source
from dagpu.common.places import here
from dagpu.reactive import incremental
from dagpu.reactive.incremental import IncrementalRun
from dagpu.reactive.shared_work import SharedWork
from dagpu.runtime.interpreter import current_settings
from tests.programs.arithmetic import scale

S: Final = (4, 4)


def test_a_feed_that_another_thread_meets_while_it_is_made_lends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    op: Any = scale(empty(S).partition(S), source(1.0), empty(S).sync().share())
    shared = SharedWork(op)
    seen: list[Any] = []
    maker = incremental.StageMaker

    def note(*arguments: Any) -> Any:
        seen.append(shared.lenders)
        return maker(*arguments)

    monkeypatch.setattr(incremental, "StageMaker", note)
    run = IncrementalRun(op, current_settings("observe"), None, here(), shared)
    assert seen == [None]
    assert run.explain() == ["nothing has run yet"]
    assert shared.lenders is not None
    shared.close()
