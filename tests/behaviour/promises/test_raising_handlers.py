"""A signal handler of the user's that raises, at every line of the ways of a call, on simulated GPUs."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dagpu import ones, pipeline, zeros
from dagpu.handles.handle_trees import storage_of
from dagpu.ops.base import attached_plans
from dagpu.runtime.calls.direct_call import OFTEN
from tests.programs.arithmetic import axpy
from tests.simulated.cuda import driver, installed
from tests.simulated.raising import RaisingAt, direct_call, lines_to_try

S = (2, 2)


def _added(x: Any, y: Any) -> Any:
    return axpy(x.partition(S), 1.0, y).first().unpartition()


@pytest.mark.parametrize("spin", [0, 1_000_000])
@pytest.mark.parametrize("way", [direct_call, attached_plans])
def test_an_exception_at_any_line_of_a_call_leaves_nothing_locked_or_under_way(
    way: Callable[..., Any], spin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handles are back in their op if the run has not begun. Otherwise the run is over when the call ends. Only at
    the lines that release the locks they stay."""
    monkeypatch.setenv("DAGPU_SPIN_US", str(spin))
    raised = 0
    with installed(5) as machine:
        axpy.compile()
        given = ones(S).share().sync()
        function: Any = way
        if way is direct_call:
            called = pipeline(graph_from=1)(_added)
            for _ in range(2):
                called(zeros(S).sync(), given).sync()
            function = direct_call(called).now
        again = axpy(zeros(S).partition(S), 1.0, given).first().unpartition()
        if way is attached_plans:
            for _ in range(OFTEN + 2):
                again.sync()
            ((loaded, _),) = attached_plans(again)
            function = loaded.again.now
        text, first = inspect.getsourcelines(function)
        end = next((number for number, line in enumerate(text, first) if line.strip() == "finally:"), first + len(text))
        for code, line in lines_to_try(function):
            if line >= end:
                continue
            f: Any = pipeline(graph_from=1)(_added)
            for _ in range(3):
                f(zeros(S).sync(), given).sync()
            op: Any = again if way is attached_plans else f(zeros(S).sync(), given)
            launches = machine.gpus[0].calls["cuGraphLaunch"]
            with RaisingAt(code, line) as raising, suppress(TimeoutError):
                op.sync()
            raised += raising.raised
            assert not driver().live, line
            lock = storage_of(given).lock
            assert (lock.readers, lock.writer) == (0, None), line
            if raising.raised and machine.gpus[0].calls["cuGraphLaunch"] == launches:
                assert (op.sync().borrow().to_host().sync() == 1).all(), line
    assert raised > 5
