"""A cache of plans that another thread clears in the middle of a call."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from dagpu.runtime.execute import execute, execute_now
from tests.behaviour.pipelines.pipeline_calls import Calls, number_in, scaled, shared
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.simulated.raising import ActingAt, lines_of_call, lines_to_try


async def in_task(op: Any) -> Any:
    """Run an op in a task."""
    return await op


@pytest.mark.parametrize("function", [execute_now, execute, None])
@pytest.mark.parametrize("awaits", [False, True])
def test_a_call_whose_plan_is_removed_gives_its_result(function: Callable[..., object] | None, awaits: bool) -> None:
    """Whatever line it has come to, in a thread and in a task."""
    p = Calls(lambda x: scaled(2.0, x))
    for _ in range(2):
        p(shared(1)).sync()
    for code, line in lines_of_call(p.pipeline, awaits=awaits) if function is None else lines_to_try(function):
        for _ in range(2):
            p(shared(3)).sync()
        op = p(shared(4))
        with ActingAt(code, line, p.pipeline.cache_clear):
            result = trio.run(in_task, op) if awaits else op.sync()
        assert number_in(result) == 8
