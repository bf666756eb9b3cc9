"""Plans launched as CUDA graphs on simulated GPUs: they give what streams give, whatever changes between runs."""

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import RoundRobin, device, dup, empty, f32, from_host, ones, u64, zeros, zip_ops
from dagpu.backends.cuda import instruction_selection
from dagpu.backends.cuda.commands import buffers
from dagpu.backends.cuda.graphs import instances
from dagpu.backends.cuda.graphs.instances import FEW_NODES, INSTANCES
from dagpu.backends.cuda.resources.pools import MemoryBlock
from dagpu.testing import HOST, Buffer, Launch, Program, Role
from tests.programs.arithmetic import axpy, scale
from tests.programs.graph_trials import (
    block,
    bound,
    contents,
    driver_array,
    failed,
    graph_calls,
    mixture,
    mixture_in_numpy,
    prepared,
    program_of,
    results,
    run,
    texts,
    with_cells,
)
from tests.programs.plain_programs import programs
from tests.simulated.cuda import driver, installed
from tests.simulated.machine import Machine
from tests.simulated.runs import chain, fresh_machine, stray  # noqa: F401  # fixtures
from tests.unit.backends.cuda.cuda_results import in_order, mixing

seeds = st.integers(0, 2**16)


def _role(buffer: Buffer) -> Role:
    """No function of the host writes results."""
    return Role.TEMPORARY if buffer.device == HOST and buffer.role is Role.OUTPUT else buffer.role


def on_one_device(drawn: Program) -> Program | None:
    """A program of `programs()` whose launches really mix what they read, all on one device."""
    buffers = tuple(replace(b, device=min(b.device, 0), role=_role(b)) for b in drawn.buffers)
    written = {n for n, b in enumerate(buffers) if b.role is Role.INPUT}
    launches = [i for i in drawn.instructions if isinstance(i, Launch)]
    mixed = tuple(mixing(n, replace(i, device=0), buffers, written) for n, i in enumerate(launches))
    same = len(launches) == len(drawn.instructions)
    policies, policy_of = (drawn.policies, drawn.policy_of) if same else ((RoundRobin(3),), (0,) * len(launches))
    return Program(("cuda:0",), buffers, mixed, policies, policy_of) if launches else None


# ---- kinds of nodes


def test_a_kernel_makes_large_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parts too, whose memory moves from run to run; a smaller copy is a memcpy node."""
    monkeypatch.setattr(instruction_selection, "LARGE_COPY", 32)
    for size, nodes in ((8, (2, 0)), (9, (1, 1))):
        x = np.arange(20, dtype=f32)
        with installed(size) as machine:
            source = from_host(x).sync()
            program, inputs = program_of(dup(source.slice(slice(3, 3 + size))).to_host())
            plan, kept = prepared(program), list[Any]()
            for number in range(4):
                kept.append(run(plan, inputs))
                assert texts(kept[-1]) == [x[3 : 3 + size].tobytes()], number
            calls = machine.gpus[0].calls  # the copy to the host is a memcpy node
            assert (calls["cuGraphAddMemcpyNode"], calls["cuGraphAddKernelNode"]) == nodes
            del plan, inputs, source


# ---- any plan


@settings(max_examples=100)
@given(programs(max_instructions=30), seeds, st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=7))
def test_any_plan_gives_what_running_it_in_order_gives(drawn: Program, seed: int, how: list[tuple[bool, bool]]) -> None:
    """A plan gives the same results as a graph and through streams, whether or not the run before is still under
    way, with inputs and outputs elsewhere each time; the results of earlier runs stay as they are."""
    program = on_one_device(drawn)
    if program is None:
        return
    start = [np.arange(b.nbytes // 8, dtype=u64) + u64(n) for n, b in enumerate(program.buffers)]
    wanted = [words.tobytes() for words in in_order(program)]
    written = {n for i in program.instructions for n in i.writes}
    with installed(seed) as machine:
        plan, under_way, kept = prepared(program), list[Any](), list[Any]()
        for graph, at_once in how:
            inputs = {
                n: block(start[n], machine)
                for n, b in enumerate(program.buffers)
                if b.role is Role.INPUT and b.device != HOST
            }
            bindings = bound(plan, inputs)
            under_way.append((plan.submit(bindings, graph=graph), bindings))
            while under_way and not at_once:
                started, before = under_way.pop()
                assert started.wait()
                assert not started.failures()
                kept.append([(n, held) for n, held in enumerate(before) if isinstance(held, MemoryBlock)])
            for n, held in (pair for each in kept for pair in each):
                if program.buffers[n].role is Role.INPUT or n in written:
                    assert contents(held, machine)[: len(wanted[n])] == wanted[n]
        for started, _ in under_way:
            assert started.wait()
        assert plan.graphs.refused is None


@settings(max_examples=30)
@given(seeds, st.lists(st.tuples(st.integers(0, 9), st.floats(-8, 8, width=16), st.booleans()), min_size=3, max_size=6))
def test_arrays_and_numbers_differ_from_run_to_run(seed: int, runs: list[tuple[int, float, bool]]) -> None:
    """Copies from and to the host, fills, copies of rows, conversions; numbers in cells."""
    with installed(seed) as machine:
        program, inputs = program_of(mixture(), RoundRobin(3))
        program, cells = with_cells(program, "scale")
        (source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
        plan = prepared(program)
        before: list[tuple[list[Any], list[bytes]]] = []
        for number, factor, hold in runs:
            array = np.arange(40, dtype=f32).reshape(2, 20) + f32(number)
            found = run(plan, {**inputs, source: array, **dict.fromkeys(cells, factor)})
            assert texts(found) == texts(mixture_in_numpy(array, factor))
            if hold:
                before.append((found, texts(found)))
            assert all(texts(earlier) == said for earlier, said in before)
        instantiated, launched, _ = graph_calls(machine)
        assert (instantiated, launched) == (1, len(runs))


def test_a_number_that_has_not_changed_is_not_written(machine: Machine) -> None:
    """Any other is."""
    program, inputs = program_of(scale(empty((2, 2)).partition((2, 2)), 1.0, ones((2, 2))).first().unpartition())
    program, (cell,) = with_cells(program, "scale")
    plan = prepared(program)
    number = 3.5
    for value in (0.0, 2.0, number, number):
        changes = graph_calls(machine)[2]
        (result,) = run(plan, {**inputs, cell: value})
        assert np.frombuffer(contents(result, machine), f32)[0] == value
        del result
    assert graph_calls(machine)[2] == changes


# ---- what is written into the nodes


def test_what_has_not_moved_is_not_written(machine: Machine) -> None:
    """A run gets the memory that the graph had before, so most change no node; a moved input changes its readers."""
    lent, elsewhere = ones((2, 2)).sync(), block(np.ones((2, 2), f32), machine)
    op = chain(5).then(lambda t: axpy(t.partition((2, 2)), 1.0, lent.borrow())).first().unpartition()
    program, inputs = program_of(op)
    plan = prepared(program)
    for _ in range(3):
        run(plan, inputs)
    assert graph_calls(machine) == (1, 3, 0)
    (other,) = [n for n, held in inputs.items() if isinstance(held, MemoryBlock)]
    run(plan, {**inputs, other: elsewhere})
    assert graph_calls(machine) == (1, 4, 1)


def test_small_temporaries_stay_with_the_graph(machine: Machine) -> None:
    """Whatever others allocate between two runs, the temporaries lie where they were, and do not count as used."""
    program, inputs = program_of(chain(5))
    plan, taken, places = prepared(program), list[MemoryBlock](), set[int]()
    ((_, size),) = plan.compiled.arenas
    before = driver().memory.used
    for _ in range(4):
        found = texts(run(plan, inputs))
        assert driver().memory.used == before
        taken.append(block(np.zeros(size, np.uint8), machine))
        before += taken[-1].nbytes
        (graph,) = plan.graphs.idle
        places |= {arena.address for arena in graph.arenas}
    assert found == texts(run(plan, inputs, graph=False))
    assert len(places) == 1


def test_a_graph_that_finds_no_memory_to_keep_runs_all_the_same(machine: Machine) -> None:
    """Its run allocates the temporaries, for which room is made; a later run keeps them."""
    program, inputs = program_of(chain(5))
    plan, gpu = prepared(program), machine.gpus[0]
    gpu.fail("cuMemAlloc", 2)
    found = texts(run(plan, inputs))
    assert not plan.graphs.idle[0].arenas
    assert texts(run(plan, inputs)) == found
    assert plan.graphs.idle[0].arenas


def test_copies_follow_what_they_copy(machine: Machine) -> None:
    """Within the device and to the host, from wherever the source lies."""
    lent = ones((2, 2)).sync()
    program, inputs = program_of(zip_ops(lent.borrow().to_host(), dup(lent.borrow()).to_host()))
    (source,) = inputs
    plan, blocks = prepared(program), [block(np.full((2, 2), n, f32), machine) for n in range(4)]
    for number in (0, 1, 1, 3, 2):
        assert all((array == number).all() for array in run(plan, {source: blocks[number]}))
    assert graph_calls(machine) == (1, 5, 6)


def test_the_nearest_idle_graph_is_taken(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs in turn: each has a graph that was written for it, if graphs are too large to be updated each time."""
    monkeypatch.setattr(instances, "FEW_NODES", 0)
    lent = ones((2, 2)).sync()
    op = scale(empty((2, 2)).partition((2, 2)), 2.0, lent.borrow())
    program, inputs = program_of(op.first().unpartition().to_host())
    (source,) = [n for n, held in inputs.items() if isinstance(held, MemoryBlock)]
    plan, blocks = prepared(program), [block(np.full((2, 2), n, f32), machine) for n in range(2)]
    with machine.hold():
        under_way = [(plan.submit(b := bound(plan, {source: each}), graph=True), b) for each in blocks]
    for started, _ in under_way:
        assert started.wait()
    del under_way, started, _, b
    changes = []
    for number in (0, 1, 1, 0, 0, 1, 0):
        (array,) = run(plan, {source: blocks[number]})
        assert (array == 2 * number).all()
        changes.append(graph_calls(machine)[2])
        del array
    assert set(changes[1:]) == {changes[1]}


def reading_often(machine: Machine) -> tuple[Any, dict[int, Any], int]:
    """A plan with more launches that read its input than are updated in each run; its inputs; the input's number."""
    lent = ones((2, 2)).sync()
    op: Any = chain(1)
    for _ in range(FEW_NODES + 1):
        op = axpy(op.partition((2, 2)), 1.0, lent.borrow()).first().unpartition()
    program, inputs = program_of(op.to_host())
    (source,) = [n for n, held in inputs.items() if isinstance(held, MemoryBlock)]
    return prepared(program), inputs, source


def test_inputs_that_alternate_have_a_graph_each(machine: Machine) -> None:
    """Once an address comes back, and many nodes depend on it. Then no node is changed any more."""
    plan, inputs, source = reading_often(machine)
    blocks = [block(np.full((2, 2), n, f32), machine) for n in range(2)]
    seen = []
    for number in (0, 1, 0, 1, 0, 1, 1, 0):
        (array,) = run(plan, {**inputs, source: blocks[number]})
        assert (array == 1 + number * (FEW_NODES + 1)).all()
        seen.append(graph_calls(machine))
        del array
    assert seen[-1] == (2, 8, seen[4][2])


def test_inputs_that_are_always_elsewhere_share_a_graph(machine: Machine) -> None:
    """An address that does not come back gets no graph."""
    plan, inputs, source = reading_often(machine)
    held = [block(np.full((2, 2), n, f32), machine) for n in range(12)]
    for number, each in enumerate(held):
        (array,) = run(plan, {**inputs, source: each})
        assert (array == (1 + number * (FEW_NODES + 1)) % 64).all()
        del array
    assert graph_calls(machine)[:2] == (1, 12)


@pytest.mark.parametrize("code", [2, 801])
def test_without_room_for_another_graph_inputs_share_one(machine: Machine, code: int) -> None:
    """The run that asked for another goes through streams. Later ones update the graph that exists."""
    plan, inputs, source = reading_often(machine)
    blocks = [block(np.full((2, 2), n, f32), machine) for n in range(2)]
    run(plan, {**inputs, source: blocks[0]})
    machine.gpus[0].fail("cuGraphInstantiate", code)
    for number in (1, 0, 1, 0, 1, 0):
        (array,) = run(plan, {**inputs, source: blocks[number]})
        assert (array == 1 + number * (FEW_NODES + 1)).all()
        del array
    instantiated, launched, changed = graph_calls(machine)
    assert (instantiated, launched) == (2, 6)
    assert changed > 4 * FEW_NODES


def test_more_runs_at_once_than_graphs(machine: Machine) -> None:
    """Some go through streams; each has its own result, and the graphs are there for later ones."""
    program, inputs = program_of(mixture())
    (source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
    plan, arrays = prepared(program), [np.full((2, 20), n, f32) for n in range(INSTANCES + 4)]
    with machine.hold():
        under_way = [(plan.submit(b := bound(plan, {**inputs, source: a}), graph=True), b) for a in arrays]
    for array, (started, bindings) in zip(arrays, under_way, strict=True):
        assert started.wait()
        assert not started.failures()
        assert texts(results(plan, bindings)) == texts(mixture_in_numpy(array, 2.0))
    assert graph_calls(machine)[:2] == (INSTANCES, INSTANCES)
    run(plan, {**inputs, source: arrays[0]})
    assert graph_calls(machine)[:2] == (INSTANCES, INSTANCES + 1)


def test_graphs_go_with_their_plan(machine: Machine) -> None:
    """The next run on the device frees a dropped plan's graphs.

    A finaliser does not, because it could be called on any thread.
    """
    program, inputs = program_of(chain(3))
    plan = prepared(program)
    run(plan, inputs)
    assert machine.gpus[0].graphs == 1
    del plan
    gc.collect()
    assert machine.gpus[0].graphs == 1
    zeros((3,)).sync()
    assert machine.gpus[0].graphs == 0


def test_outputs_that_are_there_are_written_where_they_are(machine: Machine) -> None:
    """Device memory and arrays, by a graph and through streams."""
    program, inputs = program_of(zip_ops(chain(3, 1), chain(2, 5).to_host()))
    plan = prepared(program)
    tensor, array = block(np.zeros((2, 2), f32), machine), driver_array((2, 2))
    outputs = [n for n, buffer in enumerate(plan.compiled.plan.buffers) if buffer.role is Role.OUTPUT]
    given = {n: array if plan.compiled.plan.buffers[n].device == HOST else tensor for n in outputs}
    for graph in (True, False, True):
        array[...] = 0
        found = run(plan, {**inputs, **given}, graph=graph)
        assert any(each is array for each in found)
        assert any(each is tensor for each in found)
        assert (array == 7).all()
        assert np.frombuffer(contents(tensor, machine), f32)[0] == 4
    plain = np.zeros((2, 2), f32)
    found = run(plan, {**inputs, **{n: plain if each is array else each for n, each in given.items()}})
    assert (plain == 7).all()
    assert graph_calls(machine)[1] == 2


# ---- which runs are graphs


def test_a_large_array_goes_through_streams(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is page-locked: then the graph copies from where it lies."""
    monkeypatch.setattr(buffers, "PROMPT_IN", 64)
    array = np.arange(100, dtype=f32)
    program, inputs = program_of(from_host(array).to_host())
    (source,) = inputs
    plan = prepared(program)
    (back,) = run(plan, {source: array})
    assert back.tobytes() == array.tobytes()
    assert graph_calls(machine)[1] == 0
    (again,) = run(plan, {source: back})
    assert again.tobytes() == array.tobytes()
    assert graph_calls(machine)[1] == 1


def test_without_room_for_page_locked_results_it_goes_through_streams(machine: Machine) -> None:
    """A graph copies to page-locked memory alone; the results come all the same."""
    driver().pinned_room = 2048
    program, inputs = program_of(chain(3, 1).to_host())
    plan = prepared(program)
    held = [run(plan, inputs)[0] for _ in range(6)]
    assert all((array == 4).all() for array in held)
    assert 0 < graph_calls(machine)[1] < 6
    assert plan.graphs.refused is None


def test_an_array_that_was_changed_fails_as_through_streams(machine: Machine) -> None:
    """Its copy fails, and what needs it; the other branch is done."""
    written = zeros((2, 2)).sync()
    op = zip_ops(from_host(np.ones(3, f32)).to_host(), axpy(written.borrow_mut().partition((2, 2)), 3.0, ones((2, 2))))
    program, inputs = program_of(op)
    (source,) = [n for n, held in inputs.items() if isinstance(held, np.ndarray)]
    plan = prepared(program)
    (failure,) = failed(plan, bound(plan, {**inputs, source: np.ones(4, f32)}))
    assert "expected an array of float32 and shape (3,)" in str(failure.error)
    assert (written.to_host().sync() == 3).all()


def test_host_functions_and_other_devices_go_through_streams(machine: Machine) -> None:
    """Such plans are no graphs, and nothing is different."""
    called = zip_ops(chain(2).to_host().host_map(lambda a: a + 1), chain(1))
    for op in (called, zip_ops(chain(2).on("cuda:1"), chain(3))):
        program, inputs = program_of(op)
        plan = prepared(program)
        assert plan.before_graph is None
        for _ in range(2):
            run(plan, inputs)
    assert graph_calls(machine)[1] == 0


def test_a_graph_is_launched_in_the_stream_that_was_asked_for(machine: Machine) -> None:
    """All of it, though a part of the op is elsewhere."""
    stream = device("cuda:0").stream()
    program, inputs = program_of(zip_ops(chain(3), chain(3).on(stream)))
    plan = prepared(program)
    with machine.hold():
        started = plan.submit(bound(plan, inputs), graph=True)
        (busy,) = [each for each in machine.streams if each.pending]
        assert busy.handle == stream.handle
    assert started.wait()


def test_a_large_graph_is_instantiated_ahead(machine: Machine) -> None:
    """On whatever thread; the first run then finds it. A small one is instantiated by its first run."""
    program, inputs = program_of(zip_ops(mixture(), chain(instances.PROMPT_NODES)))
    plan = prepared(program)
    ahead = plan.before_graph
    assert ahead is not None
    ahead()
    assert plan.before_graph is None
    assert graph_calls(machine)[:2] == (1, 0)
    for _ in range(2):
        last = [each for each in run(plan, inputs) if isinstance(each, MemoryBlock)][-1]
        assert np.frombuffer(contents(last, machine), f32)[0] == instances.PROMPT_NODES % 64
    assert graph_calls(machine)[:2] == (1, 2)
    assert prepared(program_of(chain(3))[0]).before_graph is None
