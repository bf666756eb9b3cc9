"""Runs of one plan in any order on a simulated GPU, as graphs and through streams, failing, cancelled, dropped."""

import gc
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dagpu import DeviceError, RoundRobin, f32
from dagpu.backends.cuda.graphs.instances import INSTANCES
from dagpu.testing import Run
from tests.programs.graph_trials import (
    bound,
    mixture,
    mixture_in_numpy,
    prepared,
    program_of,
    results,
    texts,
    with_cells,
)
from tests.simulated.cuda import installed
from tests.simulated.runs import assert_nothing_is_held

CALLS = (
    "cuGraphInstantiate", "cuGraphLaunch", "cuGraphExecKernelNodeSetParams", "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams", "cuGraphExecDestroy", "cuMemAlloc", "cuMemHostAlloc",
)  # fmt: skip


class Runs(RuleBasedStateMachine):
    """Each gives what it should, or an error of ours where a call was made to fail; at the end nothing is held."""

    def __init__(self) -> None:
        super().__init__()
        self.installed: Any = None
        self.under_way: list[tuple[Run, list[Any], list[bytes], bool]] = []
        self.kept: list[tuple[list[Any], list[bytes]]] = []
        self.faulty = False

    @initialize(seed=st.integers(0, 2**16))
    def install(self, seed: int) -> None:
        gc.freeze()  # the collector need not walk what other tests have left
        self.installed = installed(seed)
        self.machine = self.installed.__enter__()
        program, inputs = program_of(mixture(), RoundRobin(3))
        program, self.cells = with_cells(program, "scale")
        (self.source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
        self.inputs = inputs
        self.plan: Any = prepared(program)

    @rule(graph=st.booleans(), number=st.integers(0, 9), factor=st.sampled_from([2.0, -1.0, 0.5]))
    def submit(self, graph: bool, number: int, factor: float) -> None:
        array = np.arange(40, dtype=f32).reshape(2, 20) + f32(number)
        bindings = bound(self.plan, {**self.inputs, self.source: array, **dict.fromkeys(self.cells, factor)})
        try:
            run = self.plan.submit(bindings, graph=graph)
        except DeviceError:
            assert self.faulty
            return
        self.under_way.append((run, bindings, texts(mixture_in_numpy(array, factor)), False))

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def finish(self, which: int, keep: bool) -> None:
        run, bindings, wanted, cancelled = self.under_way.pop(which % len(self.under_way))
        assert run.wait()
        failures = run.failures()
        if failures:
            assert self.faulty
            assert all(isinstance(failure.error, DeviceError) for failure in failures)
        elif not cancelled:
            found = results(self.plan, bindings)
            assert texts(found) == wanted
            if keep:
                self.kept.append((found, wanted))

    @precondition(lambda self: self.under_way)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        number = which % len(self.under_way)
        run, bindings, wanted, _ = self.under_way[number]
        run.cancel()
        self.under_way[number] = run, bindings, wanted, True

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        self.kept.pop(which % len(self.kept))

    @rule(call=st.sampled_from(CALLS), nth=st.integers(1, 3), code=st.sampled_from([1, 2]))
    def fail(self, call: str, nth: int, code: int) -> None:
        self.machine.gpus[0].fail(call, code, nth)
        self.faulty = True

    @invariant()
    def what_was_given_stays(self) -> None:
        assert all(texts(found) == wanted for found, wanted in self.kept)
        if self.installed is not None:
            assert 0 <= self.plan.graphs.instances <= INSTANCES

    def teardown(self) -> None:
        if self.installed is None:
            return
        try:
            while self.under_way:
                self.under_way.pop()[0].wait()
            self.machine.gpus[0].heal()
            self.kept.clear()
            self.plan = None
            assert_nothing_is_held()
        finally:
            self.installed.__exit__(None, None, None)
            gc.unfreeze()


TestRuns = Runs.TestCase
TestRuns.settings = settings(max_examples=30, stateful_step_count=25)
