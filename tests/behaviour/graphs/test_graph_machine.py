"""Graphs, launches, updates, failures and cancellations in any order: results, locks and memory are as a model says.

A tensor of the model is a list of one number, which stands for all its elements. A graph of the model is a list of
steps on such lists; a launch does them.
"""

import gc
import threading
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dagpu import (
    BorrowError,
    CudaGraph,
    In,
    MovedError,
    Out,
    OwnershipError,
    Tensor,
    Tile,
    current_device,
    f32,
    full,
    kernel,
    memcpy,
    pipeline,
    zeros,
    zip_ops,
)
from dagpu.testing import Locks, plans, storage_of

pytestmark = pytest.mark.host_only("a kernel's host body fails when told")

S = (4,)
NBYTES = 16
MODULO = 64

Cell: TypeAlias = list[float]


ADDS = """
__global__ void adds(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] = fmodf(y[i] + a * x[i], 64.f);
}
"""
TOLD = threading.Event()


@kernel(cuda=ADDS)
def adds(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a * x; fails where TOLD is set, before it writes."""


@adds.host
def _(y: Tile[f32], a: float, x: Any) -> None:
    if TOLD.is_set():
        raise ArithmeticError("as told")
    y[...] = np.fmod(y + f32(a) * x[y.at], f32(MODULO))


@kernel(cuda=ADDS.replace("adds", "puts"))
def puts(y: Out[f32], a: float, x: In[f32]) -> None:
    """Add like `adds`, but never fail."""


@puts.host
def _(y: Tile[f32], a: float, x: Any) -> None:
    y[...] = np.fmod(y + f32(a) * x[y.at], f32(MODULO))


def into(y: Tensor[Any], a: float, x: Tensor[Any], how: Any = adds) -> Any:
    return how(y.borrow_mut().partition(S), a, x.borrow()).map(lambda _: None)


def contents(t: Any) -> float:
    array = t.borrow().to_host().sync()
    assert (array == array[0]).all()
    return float(array[0])


@pipeline
def as_pipeline(y: Any, a: float, x: Any) -> Any:
    """Return the same function as a pipeline."""
    return adds(y.partition(S), a, x).map(lambda _: None)


@final
@dataclass
class Graph:
    """A graph and its model."""

    graph: CudaGraph[Any]
    steps: list[tuple[Cell, float, Cell]]
    """Each: this += factor * that."""
    zeroed: Cell | None
    """What each launch starts anew: its output."""
    failures: int = 0
    """Of updates, which the next launch raises."""

    def cells(self) -> list[Cell]:
        return [cell for target, _, source in self.steps for cell in (target, source)]

    def launched(self) -> None:
        if self.zeroed is not None:
            self.zeroed[0] = 0.0
        for target, factor, source in self.steps:
            target[0] = float(np.fmod(target[0] + factor * source[0], MODULO))


numbers = st.integers(0, 7)
factors = st.sampled_from([1.0, 2.0, -1.0])
ways = st.sampled_from(["sync", "trio", "then", "zip"])


class GraphMachine(RuleBasedStateMachine):
    """Tensors and graphs are named by their place in a list, so that nothing but these lists keeps them."""

    def __init__(self) -> None:
        super().__init__()
        plans.clear()
        as_pipeline.cache_clear()
        gc.collect()
        self.device = current_device()
        self.before = self.device.memory_used()
        self.tensors: list[tuple[Any, Cell]] = []
        self.gone: list[Cell] = []
        """What has been moved away: graphs that use it cannot be launched."""
        self.graphs: list[Graph] = []

    # ---- tensors

    @precondition(lambda self: len(self.tensors) < 5)
    @rule(number=numbers)
    def make(self, number: int) -> None:
        self.tensors.append((full(S, number).sync(), [float(number)]))

    @precondition(lambda self: self.tensors)
    @rule(data=st.data(), how=st.sampled_from(["drop", "share"]))
    def take_away(self, data: st.DataObject, how: str) -> None:
        """A tensor that nobody has is dropped, but for the graphs that it was lent to; one that is shared has moved.
        What the launches of a graph write cannot be."""
        tensor, cell = self.tensors.pop(self._index(data, self.tensors))
        if how == "share" and any(graph.zeroed is cell for graph in self.graphs):
            with pytest.raises(OwnershipError, match="every launch writes it again"):
                tensor.share()
            self.tensors.append((tensor, cell))
        elif how == "share":
            tensor.share()
            self.gone.append(cell)
        del tensor

    @precondition(lambda self: self.tensors)
    @rule(data=st.data(), number=numbers)
    def write(self, data: st.DataObject, number: int) -> None:
        tensor, cell = self._tensor(data)
        memcpy(tensor.borrow_mut(), full(S, number).sync()).sync()
        cell[0] = float(number)

    @precondition(lambda self: len(self.tensors) > 1)
    @rule(data=st.data(), a=factors)
    def call_pipeline(self, data: st.DataObject, a: float) -> None:
        (y, to), (x, of) = self._two(data)
        as_pipeline(y.borrow_mut(), a, x.borrow()).sync()
        to[0] = float(np.fmod(to[0] + a * of[0], MODULO))

    # ---- capturing

    @precondition(lambda self: len(self.tensors) > 1 and len(self.graphs) < 4)
    @rule(data=st.data(), a=factors)
    def capture_in_place(self, data: st.DataObject, a: float) -> None:
        """It is run once."""
        (y, to), (x, of) = self._two(data)
        self.graphs.append(Graph(into(y, a, x).graph(), [(to, a, of)], None))
        self.graphs[-1].launched()

    @precondition(lambda self: self.tensors and len(self.graphs) < 4)
    @rule(data=st.data(), a=factors, take=st.booleans())
    def capture_output(self, data: st.DataObject, a: float, take: bool) -> None:
        """A temporary and an output of its own, taken or not."""
        x, of = self._tensor(data)
        op = adds(zeros(S).partition(S), a, x.borrow()).first().unpartition()
        graph, made = adds(zeros(S).partition(S), 1.0, op).first().unpartition().graph(), [0.0]
        self.graphs.append(Graph(graph, [(made, a, of)], made))
        self.graphs[-1].launched()
        if take:
            self.tensors.append((graph.take_output(), made))
            with pytest.raises(MovedError, match="works once"):
                graph.take_output()

    @precondition(lambda self: len(self.tensors) > 1 and len(self.graphs) < 4)
    @rule(data=st.data(), a=factors, fails=st.booleans())
    def record(self, data: st.DataObject, a: float, fails: bool) -> None:
        """Nothing runs; where an exception leaves the scope, nothing is left of it."""
        (y, to), (x, of) = self._two(data)
        try:
            with CudaGraph.scope(self.device.stream()) as scope:
                scope.record(into(y, a, x))
                scope.record(into(y, 2.0, x))
                if fails:
                    raise LookupError
        except LookupError:
            return
        self.graphs.append(Graph(scope.graph, [(to, a, of), (to, 2.0, of)], None))

    @precondition(lambda self: len(self.tensors) > 1)
    @rule(data=st.data(), told=st.booleans())
    def fail_to_capture(self, data: st.DataObject, told: bool) -> None:
        """A kernel that fails, or a lock in the way: no graph, and nothing changes."""
        (y, _), (x, _) = self._two(data)
        op = into(y, 1.0, x)
        if told:
            with _told(), pytest.raises(ArithmeticError):
                op.graph()
        else:
            with _locked(x), pytest.raises(BorrowError):
                op.graph()

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def drop_graph(self, data: st.DataObject) -> None:
        self.graphs.pop(self._index(data, self.graphs))

    # ---- launching

    @precondition(lambda self: self.graphs)
    @rule(data=st.data(), way=ways)
    def launch(self, data: st.DataObject, way: str) -> None:
        self._launch(self._graph(data), way)

    def _launch(self, graph: Graph, way: str | None) -> None:
        if way is None or self._refused(graph):
            return
        expected = ArithmeticError if graph.failures == 1 else ExceptionGroup
        if graph.failures:
            with pytest.raises(expected):
                _run(graph, way)
            gc.collect()  # trio has errors in cycles, and their frames have the tensors
        else:
            _run(graph, way)
        graph.failures = 0
        graph.launched()

    @precondition(lambda self: self.graphs)
    @rule(data=st.data(), number=numbers)
    def copy_and_launch(self, data: st.DataObject, number: int) -> None:
        """Copy the inputs and launch the graph, as one op."""
        graph = self._graph(data)
        source = graph.steps[0][2]
        tensor = next((tensor for tensor, cell in self.tensors if cell is source), None)
        if tensor is None or graph.failures or self._refused(graph):
            return
        memcpy(tensor.borrow_mut(), full(S, number).sync()).then(lambda _: graph.graph.launch()).sync()
        source[0] = float(number)
        graph.launched()

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Before it is submitted: it is not launched, and what was enqueued is done."""
        graph = self._graph(data)
        if graph.failures or self._refused(graph):
            return

        async def body() -> bool:
            with trio.CancelScope() as scope:
                scope.cancel()
                await graph.graph.launch()
            return scope.cancelled_caught

        assert trio.run(body)

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def fail_to_launch(self, data: st.DataObject) -> None:
        """Its kernels fail before they write."""
        graph = self._graph(data)
        if graph.failures or self._refused(graph):
            return
        with _told(), pytest.raises((ArithmeticError, ExceptionGroup)):
            graph.graph.launch().sync()
        if graph.zeroed is not None:
            graph.zeroed[0] = 0.0

    @precondition(lambda self: self.graphs)
    @rule(data=st.data())
    def be_in_the_way(self, data: st.DataObject) -> None:
        """A launch that finds a lock is refused; what was enqueued is done."""
        graph = self._graph(data)
        target = graph.steps[0][0]
        tensor = next((tensor for tensor, cell in self.tensors if cell is target), None)
        if tensor is None or graph.failures or self._refused(graph):
            return
        with _locked(tensor), pytest.raises(BorrowError):
            graph.graph.launch().sync()

    # ---- updates

    @precondition(lambda self: self.graphs and self.tensors)
    @rule(data=st.data(), number=numbers, way=ways | st.none())
    def update(self, data: st.DataObject, number: int, way: str | None) -> None:
        """A copy, just before the launch, if there is one."""
        graph = self._graph(data)
        tensor, cell = self._tensor(data)
        graph.graph.update(memcpy(tensor.borrow_mut(), full(S, number).sync()))
        cell[0] = float(number)
        self._launch(graph, way)

    @precondition(lambda self: self.graphs and len(self.tensors) > 1)
    @rule(data=st.data(), a=factors, way=ways | st.none())
    def update_by_kernels(self, data: st.DataObject, a: float, way: str | None) -> None:
        """Two, one after the other."""
        graph = self._graph(data)
        (y, to), (x, of) = self._two(data)
        for _ in range(2):
            graph.graph.update(into(y, a, x, puts))
            _settle(graph)
            to[0] = float(np.fmod(to[0] + a * of[0], MODULO))
        self._launch(graph, way)

    @precondition(lambda self: self.graphs and len(self.tensors) > 1)
    @rule(data=st.data())
    def update_that_fails(self, data: st.DataObject) -> None:
        """It writes nothing, and the next launch raises."""
        graph = self._graph(data)
        (y, _), (x, _) = self._two(data)
        with _told():
            graph.graph.update(into(y, 1.0, x))
            _settle(graph)
        graph.failures += 1

    # ---- what always holds

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        """Once what was enqueued is done: no lock, the contents, and the memory of each tensor that somebody has, or a
        graph uses, and of each graph's temporary."""
        for graph in self.graphs:
            _settle(graph)
        for tensor, cell in self.tensors:
            storage = storage_of(tensor)
            assert (storage.lock.writer, storage.lock.readers) == (None, 0)
            assert contents(tensor) == cell[0]
        cells = {id(cell) for _, cell in self.tensors}
        arenas = 0
        for graph in self.graphs:
            cells.update(map(id, graph.cells()))
            arenas += graph.zeroed is not None
        assert self.device.memory_used() == self.before + NBYTES * (len(cells) + arenas)

    def teardown(self) -> None:
        self.graphs.clear()
        self.tensors.clear()
        assert self.device.memory_used() == self.before

    # ---- helpers

    def _index(self, data: st.DataObject, items: list[Any]) -> int:
        return data.draw(st.integers(0, len(items) - 1))

    def _tensor(self, data: st.DataObject) -> tuple[Any, Cell]:
        return self.tensors[self._index(data, self.tensors)]

    def _two(self, data: st.DataObject) -> tuple[tuple[Any, Cell], tuple[Any, Cell]]:
        first = self._index(data, self.tensors)
        second = data.draw(st.integers(0, len(self.tensors) - 2))
        return self.tensors[first], self.tensors[second + (second >= first)]

    def _graph(self, data: st.DataObject) -> Graph:
        return self.graphs[self._index(data, self.graphs)]

    def _refused(self, graph: Graph) -> bool:
        """Does it use a tensor that has moved away? Then a launch says so."""
        borrowed = [cell for cell in graph.cells() if cell is not graph.zeroed]
        if not any(cell is gone for cell in borrowed for gone in self.gone):
            return False
        for op in (graph.graph.launch(), zip_ops(graph.graph.launch(), zeros((1,)))):
            with pytest.raises(MovedError, match="capture the graph again"):
                op.sync()
        return True


def _run(graph: Graph, way: str) -> None:
    op: Any = graph.graph.launch()
    if way == "then":
        op = op.then(lambda _: zeros((1,))).map(lambda _: None)
    elif way == "zip":
        op = zip_ops(op, zeros((1,)).map(lambda _: None))
    if way == "trio":

        async def body() -> None:
            await op

        trio.run(body)
    else:
        op.sync()


def _settle(graph: Graph) -> None:
    """Until what was enqueued is done, and its locks are back."""
    zeros((1,)).sync_on(graph.graph.stream)


class _told:  # noqa: N801  # a `with` block
    """Kernels fail."""

    def __enter__(self) -> None:
        TOLD.set()

    def __exit__(self, *_: object) -> None:
        TOLD.clear()


class _locked:  # noqa: N801  # a `with` block
    """A run that writes this tensor is under way."""

    def __init__(self, tensor: Any) -> None:
        self._storage = storage_of(tensor)
        self._locks = Locks(None)

    def __enter__(self) -> None:
        self._locks.acquire({self._storage: True})

    def __exit__(self, *_: object) -> None:
        self._locks.release()


TestGraphs = GraphMachine.TestCase
TestGraphs.settings = settings(max_examples=20, stateful_step_count=25)
