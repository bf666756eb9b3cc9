"""First steps of users who come from NumPy or from another way of writing kernels: the message names the cure."""

import re
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    BorrowError,
    CudaGraph,
    DeviceOp,
    KernelArgumentError,
    NotReadyError,
    OwnershipError,
    ShapeError,
    current_device,
    dup,
    ones,
    pipeline,
    spawn,
    value,
    zeros,
)
from tests.programs.arithmetic import scale

PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""

OP: Any = ones((4,)).then(dup)

ON_OPS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "arithmetic": (lambda: OP + np.ones(2), KernelArgumentError, "Bring it to the device: from_host(array)"),
    "reflected": (lambda: np.ones(2) * OP, KernelArgumentError, "Bring it to the device: from_host(array)"),
    "its value": (lambda: float(OP), NotReadyError, "a tensor's contents come with op.to_host()"),
    "metadata": (lambda: OP.shape, AttributeError, r".map(lambda t: t.shape)"),
    "a method of arrays": (lambda: OP.sum(), AttributeError, "Get the array with op.to_host().sync()"),
    "unpacking": (lambda: [*OP], TypeError, "Say .unzip()"),
    "an item by a float": (lambda: OP[0.5], ShapeError, "Write a number, a slice"),
    "no such attribute": (lambda: OP.nonsense, AttributeError, "has no attribute 'nonsense'"),
    "extents one by one": (lambda: zeros(2, 3), ShapeError, "with all extents in one tuple: (2, ...)"),  # type: ignore[arg-type]  # reason: the mistake
}


@pytest.mark.parametrize("name", ON_OPS)
def test_an_op_is_no_array(name: str) -> None:
    """It says what it is, and how to come by what was wanted."""
    mistake, kind, cure = ON_OPS[name]
    with pytest.raises(kind, match=re.escape(cure)):
        mistake()


def test_a_tensor_is_no_array() -> None:
    """Reading it is refused, by Python's functions and by NumPy's."""
    t: Any = ones((4,)).sync()
    mistakes: list[Callable[[], object]] = [lambda: float(t), lambda: np.sqrt(t), lambda: list(t)]
    for mistake in mistakes:
        with pytest.raises(Exception, match=r"Get them with \.to_host\(\)"):
            mistake()


def test_a_wrong_number_is_one_error() -> None:
    """With the place of the call, and none before it in the traceback."""
    with pytest.raises(KernelArgumentError) as caught:
        scale(zeros((2, 2)).partition((2, 2)), "two", ones((2, 2)))  # type: ignore[arg-type]  # reason: the mistake
    assert "During handling" not in "".join(traceback.format_exception(caught.value))


def test_what_a_graph_writes_is_not_shared() -> None:
    """Each launch writes its output anew; what is shared nobody writes. Without the graph it may be."""
    graph = scale(zeros((2, 2)).partition((2, 2)), 2.0, ones((2, 2))).first().unpartition().graph()
    out = graph.take_output()
    with pytest.raises(OwnershipError, match=r"every launch writes it again.*dup\(t\.borrow\(\)\)"):
        out.share()
    with pytest.raises(OwnershipError, match="every launch writes it again"):
        value(out).shared().sync()
    assert graph.plan.devices == (zeros((1,)).sync().device.name,)


def test_what_moved_into_a_graph_is_not_shared_either() -> None:
    """The memory of an owned input that comes back in the output is written by each launch too."""
    given = zeros((2, 2)).sync()
    graph = scale(given.partition((2, 2)), 2.0, ones((2, 2))).first().unpartition().graph()
    out = graph.take_output()
    with pytest.raises(OwnershipError, match="every launch writes it again"):
        out.share()
    del graph
    assert out.share().shape == (2, 2)


def test_what_moved_into_a_scope_is_not_shared() -> None:
    """A tensor that moved into a scope is not shared, neither while it is recorded nor while the graph lives.

    A borrowed tensor stays its owner's.
    """
    given, x = zeros((2, 2)).sync(), ones((2, 2)).sync()
    with CudaGraph.scope(current_device().stream()) as scope:
        written = scope.record(scale(given.partition((2, 2)), 2.0, x.borrow()).first()).unpartition()
        with pytest.raises(OwnershipError, match=r"of the output of <scope at .*every launch writes it again"):
            written.share()
    graph = scope.graph
    with pytest.raises(OwnershipError, match=r"of the output of <graph captured at .*every launch writes it again"):
        written.share()
    graph.launch().sync()
    assert (written.borrow().to_host().sync() == 2).all()
    del graph, scope
    assert written.share().shape == (2, 2)


def test_a_lock_names_the_place_of_the_spawn() -> None:
    """Of two conflicting runs, the message names the place where the other one was spawned, in this file, because its
    task's nearest frame is trio's.
    """
    t = zeros((2, 2)).sync()
    holding, go = trio.Event(), threading.Event()

    async def main() -> None:
        token = trio.lowlevel.current_trio_token()

        def hold(_: object) -> None:
            trio.from_thread.run_sync(holding.set, trio_token=token)
            go.wait(PATIENCE)

        lends: Any = value(1).then(lambda _: dup(t.borrow()))  # a borrow that only the closure knows of
        async with trio.open_nursery() as nursery:
            spawn(nursery, lends.host_map(hold))
            await holding.wait()
            try:
                with pytest.raises(BorrowError, match=r"being read by the run started at \S*test_first_steps\.py:\d+"):
                    await scale(t.borrow_mut().partition((2, 2)), 2.0, ones((2, 2)))
            finally:
                go.set()

    trio.run(main)


def test_a_pipeline_is_no_method() -> None:
    """Its first argument would be an object that may change; the class says so when it is made."""
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Model:
            @pipeline
            def step(self, x: Any) -> DeviceOp[Any]:
                return dup(x)

    error = caught.value.__cause__ or caught.value  # CPython 3.11 wraps it
    assert "self.step = pipeline(self._step) in __init__" in str(error)


def test_an_error_of_code_without_lines_is_passed_on() -> None:
    """A signal may arrive where Python knows no line, and so raise there: the error stays what it is."""

    def failing(x: object) -> object:
        raise KeyError(x)

    failing.__code__ = failing.__code__.replace(co_linetable=b"")
    for op in (value(1).map(failing), value(1).host_map(failing)):
        with pytest.raises(KeyError) as caught:
            op.sync()
        innermost = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][-1]
        assert innermost.f_code is failing.__code__
