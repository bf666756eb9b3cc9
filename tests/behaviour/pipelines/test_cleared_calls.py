"""A cache of plans that another thread clears in the middle of a call."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import trio

from dagpu.runtime.calls.direct_call import begin_call, call_in_task, call_now
from dagpu.runtime.execute import execute, execute_now
from tests.behaviour.pipelines.pipeline_calls import Calls, number_in, scaled, shared
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.simulated.raising import lines_to_try


def acting_at(code: CodeType, line: int, act: Callable[[], None]) -> Any:
    """A trace function that acts before each run of a line, as another thread may."""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not code:
            return None
        if event == "line" and frame.f_lineno == line:
            act()
        return trace

    return trace


async def in_task(op: Any) -> Any:
    """Run an op in a task."""
    return await op


@pytest.mark.parametrize("function", [execute_now, execute, call_now, call_in_task, begin_call])
@pytest.mark.parametrize("awaits", [False, True])
def test_a_call_whose_plan_is_removed_gives_its_result(function: Callable[..., object], awaits: bool) -> None:
    """Whatever line it has come to, in a thread and in a task."""
    p = Calls(lambda x: scaled(2.0, x))
    for _ in range(2):
        p(shared(1)).sync()
    for code, line in lines_to_try(function):
        for _ in range(2):
            p(shared(3)).sync()
        op = p(shared(4))
        sys.settrace(acting_at(code, line, p.pipeline.cache_clear))
        try:
            result = trio.run(in_task, op) if awaits else op.sync()
        finally:
            sys.settrace(None)
        assert number_in(result) == 8
