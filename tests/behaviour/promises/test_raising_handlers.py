"""A signal handler of the user's that raises, at every line of the ways of a call, on simulated GPUs."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
import trio

from dagpu import ones, pipeline, value, zeros
from dagpu.ops.base import read_plans
from dagpu.runtime.direct_call import OFTEN, DirectCall
from dagpu.runtime.loaded_plan import LEAVES
from dagpu.testing import storage_of
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import driver, installed
from tests.simulated.raising import RaisingAt, direct_call, lines_to_try

S = (2, 2)

Run = Callable[[Any], Any]


def _added(x: Any, y: Any) -> Any:
    return axpy(x.partition(S), 1.0, y).first().unpartition()


def of_pipeline(given: Any, run: Run) -> tuple[DirectCall, Callable[[], Any]]:
    """The direct call of a pipeline, and a function that makes an op of another pipeline of the same text."""
    called: Any = pipeline(graph_from=1)(_added)
    for _ in range(2):
        run(called(zeros(S).sync(), given))

    def warm() -> Any:
        f: Any = pipeline(graph_from=1)(_added)
        for _ in range(3):
            run(f(zeros(S).sync(), given))
        return f(zeros(S).sync(), given)

    return direct_call(called), warm


def of_op_again(given: Any, run: Run) -> tuple[DirectCall, Callable[[], Any]]:
    """The direct call of one op that runs again and again."""
    again = axpy(zeros(S).partition(S), 1.0, given).first().unpartition()
    for _ in range(OFTEN + 2):
        run(again)
    attached = read_plans(again)
    assert attached is not None
    return attached[0][0].direct[LEAVES], lambda: again


def of_graph(given: Any, run: Run) -> tuple[DirectCall, Callable[[], Any]]:
    """The direct call of the launches of a captured graph. They have no result; the memory of the graph stays 1."""
    graph: Any = axpy(value(ones(S).sync().borrow_mut()).partition(S), 0.0, given).graph()
    for _ in range(4):
        launch = graph.launch()
        run(launch)
    latest = launch.captured.plans.latest
    assert latest is not None
    return latest.direct[LEAVES], lambda: launch


FORMS: Final = {form.__name__: form for form in (of_pipeline, of_op_again, of_graph)}


async def _awaited(op: Any) -> Any:
    return await op


@pytest.mark.parametrize("spin", [0, 1_000_000])
@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_an_exception_at_any_line_of_a_call_leaves_nothing_locked_or_under_way(
    form: str, awaits: bool, spin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handles are back in their op if the run has not begun. Otherwise the run is over when the call ends. Only at
    the lines that release the locks they stay."""
    monkeypatch.setenv("DAGPU_SPIN_US", str(spin))

    def run(op: Any) -> Any:
        return trio.run(_awaited, op) if awaits else op.sync()

    raised = 0
    with installed(5) as machine:
        axpy.compile()
        given = ones(S).share().sync()
        direct, make = FORMS[form](given, run)
        function: Any = direct.in_task if awaits else direct.now
        text, first = inspect.getsourcelines(function)
        end = next((number for number, line in enumerate(text, first) if line.strip() == "finally:"), first + len(text))
        for code, line in lines_to_try(function):
            if line >= end:
                continue
            op = make()
            launches = machine.gpus[0].calls["cuGraphLaunch"]
            with RaisingAt(code, line) as raising, suppress(TimeoutError):
                run(op)
            raised += raising.raised
            assert not driver().live, line
            lock = storage_of(given).lock
            assert (lock.readers, lock.writer) == (0, None), line
            if raising.raised and machine.gpus[0].calls["cuGraphLaunch"] == launches:
                result = run(op)
                assert form == of_graph.__name__ or (result.borrow().to_host().sync() == 1).all(), line
    assert raised > 5
