"""Direct calls do what the general way does: results, errors, moves, locks and driver calls are equal with both."""

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import pytest
import trio
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dagpu import CudaGraph, empty, full, pipeline, value
from dagpu.common.errors import DagpuError
from dagpu.handles import HandleBase, state_of
from dagpu.handles.handle_state import Storage
from dagpu.runtime.direct_call import OFTEN
from dagpu.runtime.plan_lookup import PlanLookup
from dagpu.testing import Locks, storage_of
from tests.programs.arithmetic import axpy, scale
from tests.simulated.cuda import driver, installed

S: Final = (2, 2)
WARM: Final = OFTEN + 2
"""Runs before the one that is compared: by then a direct call exists."""


class Scene(NamedTuple):
    """An op that has run before, or of whose structure others have, and the handles that it uses."""

    op: Any
    handles: dict[str, Any]


def full_shared(number: float, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).share().sync()


def called_pipeline(way: "Way", *, a: Any = 3.0, big: bool = False) -> Scene:
    """A call with an owned tensor, a number and a borrow. It also makes a tensor."""

    @pipeline
    def f(t: Any, a: float, x: Any) -> Any:
        return axpy(value(t).partition(S), a, x).first().unpartition()

    lender: Any = full(S, 2).sync()
    for number in range(WARM):
        way(f(full(S, 1).sync(), float(number), lender.borrow()))
    t = full(S, 1).sync()
    borrowed = full((4, 2), 2).sync().slice(slice(0, 2), slice(0, 2)) if big else lender.borrow()
    return Scene(f(t, a, borrowed), {"t": t, "x": lender})


def op_again(way: "Way", **_: Any) -> Scene:
    """One op that runs again and again, over a shared tensor and a borrow."""
    lender: Any = full(S, 2).sync()
    s = full_shared(5)
    op = axpy(scale(empty(S).partition(S), 2.0, s).first(), 3.0, lender.borrow()).first().unpartition()
    for _run in range(WARM):
        way(op)
    return Scene(op, {"x": lender, "s": s})


def launched_graph(way: "Way", **_: Any) -> Scene:
    """Launches of one captured graph."""
    held, x = full(S, 1).sync(), full_shared(2)
    graph: CudaGraph[Any] = axpy(value(held.borrow_mut()).partition(S), 1.0, x).graph()
    for number in range(WARM + 1):
        op = graph.launch()
        if number < WARM:
            way(op)
    return Scene(op, {"x": held, "s": x})


def fresh_op(way: "Way", *, a: Any = 3.0, big: bool = False) -> Scene:
    """An op that a loop builds again in each round, over a tensor of the round before, a number and a borrow."""
    lender: Any = full(S, 2).sync()
    t: Any = full(S, 1).sync()
    for number in range(WARM + 1):
        last = number == WARM
        borrowed = full((4, 2), 2).sync().slice(slice(0, 2), slice(0, 2)) if last and big else lender.borrow()
        factor = a if last and a == 3 else float(number)  # the call itself refuses others
        op = axpy(value(t).partition(S), factor, borrowed).first().unpartition()
        if not last:
            t = way(op)
    return Scene(op, {"x": lender, "t": t})


SCENES: Final = {"pipeline": called_pipeline, "again": op_again, "graph": launched_graph, "fresh": fresh_op}

Way = Callable[[Any], Any]


async def _awaited(op: Any) -> Any:
    return await op


WAYS: Final[dict[str, Way]] = {"sync": lambda op: op.sync(), "await": lambda op: trio.run(_awaited, op)}


def _lock(scene: Scene, name: str, exclusive: bool) -> None:
    Locks(None).acquire({storage_of(scene.handles[name]): exclusive})


def _lose_memory(scene: Scene) -> None:
    storage = storage_of(scene.handles["x"])
    storage.memory, storage.lost = None, "a run failed"


def _leave_no_memory(machine: Any) -> None:
    with driver().gpu.current():
        driver().memory.trim()
    machine.gpus[0].fail("cuMemAlloc", 2, 1)


TROUBLES: Final[dict[str, Callable[[Scene, Any], object]]] = {
    "none": lambda scene, machine: None,
    "moved": lambda scene, machine: scene.handles["x"].share(),
    "written": lambda scene, machine: _lock(scene, "x", True),
    "read": lambda scene, machine: _lock(scene, "x", False),
    "lost": lambda scene, machine: _lose_memory(scene),
    "refused launch": lambda scene, machine: machine.gpus[0].fail("cuGraphLaunch", 1, 1),
    "lost in the launch": lambda scene, machine: machine.gpus[0].fail("cuGraphLaunch", 700, 1),
    "refused query": lambda scene, machine: machine.gpus[0].fail("cuStreamQuery", 1, 1),
    "lost in a query": lambda scene, machine: machine.gpus[0].fail("cuStreamQuery", 700, 1),
    "refused update": lambda scene, machine: machine.gpus[0].fail("cuGraphExecKernelNodeSetParams", 1, 1),
    "no memory": lambda scene, machine: _leave_no_memory(machine),
    "device lost": lambda scene, machine: machine.gpus[0].lose(700),
}


def _facts(storage: Storage) -> tuple[object, ...]:
    return storage.lock.readers, storage.lock.writer is not None, storage.memory is None, storage.lost


def _move(handle: HandleBase) -> object:
    return None if state_of(handle) is not None else handle._moved[0]  # noqa: SLF001  # it compares all that a run changes


def observed(form: str, way: str, trouble: str, direct: bool, spin: str, **arguments: Any) -> list[object]:
    """All that a run and the next one let a program see."""
    seen: list[object] = []
    with pytest.MonkeyPatch.context() as patch, installed(7) as machine:
        patch.setenv("DAGPU_DIRECT", str(int(direct)))
        patch.setenv("DAGPU_SPIN_US", spin)
        axpy.compile()
        scale.compile()
        run = WAYS[way]
        scene = SCENES[form](run, **arguments)
        storages = {name: storage_of(handle) for name, handle in scene.handles.items() if state_of(handle)}
        gc.collect()  # what the collector frees in between would go back to the pool
        used = driver().memory.used
        calls = machine.gpus[0].calls.copy()
        TROUBLES[trouble](scene, machine)
        for _ in range(2):
            result: Any = None
            try:
                result = run(scene.op)
            except DagpuError as error:
                seen.append((type(error), str(error).replace("0x", "")))
            if result is not None:
                seen.append(type(result))
                with suppress(DagpuError):
                    seen.append(result.borrow().to_host().sync().tobytes())
            del result
            gc.collect()
            seen.append([_move(handle) for handle in scene.handles.values()])
            seen.append({name: _facts(storage) for name, storage in storages.items()})
            seen.append(len(driver().live))
        made = machine.gpus[0].calls - calls
        seen.append({name: made[name] for name in ("cuGraphLaunch", "cuGraphExecKernelNodeSetParams", "cuMemAlloc")})
        seen.append(driver().memory.used - used)
        machine.gpus[0].heal()
        for storage in storages.values():
            storage.lock.readers, storage.lock.writer = 0, None
    return seen


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(SCENES)), st.sampled_from(sorted(WAYS)), st.sampled_from(sorted(TROUBLES)),
    st.sampled_from(["0", "1000000"]), st.sampled_from([3.0, 3, 1e300, True]), st.booleans(),
)  # fmt: skip
def test_a_direct_call_is_no_different(form: str, way: str, trouble: str, spin: str, a: Any, big: bool) -> None:
    """Whatever is in its way, and whichever arguments it gets, two runs of an op give what they give without direct
    calls: results, texts of errors, moves, locks, launches, updates of nodes, and memory in use."""
    assume(form != "graph" or trouble != "lost")  # a graph keeps its memory
    gc.freeze()  # so that the collector only walks objects of this example
    try:
        expected = observed(form, way, trouble, False, spin, a=a, big=big)
        assert observed(form, way, trouble, True, spin, a=a, big=big) == expected
    finally:
        gc.unfreeze()


def test_a_pipeline_shows_the_table_of_its_direct_call() -> None:
    """From the second call on, which finds the plan; not after the cache has been cleared."""

    @pipeline
    def f(x: Any) -> Any:
        return scale(empty(S).partition(S), 2.0, x).first().unpartition()

    x = full_shared(1)
    f(x).sync()
    assert f.source == ""
    f(x).sync()
    assert "Handle(0, SharedTensor, Layout(dtype=dtype('float32'), shape=(2, 2)" in f.source
    f.cache_clear()
    assert f.source == ""


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("form", sorted(SCENES))
def test_each_form_has_a_direct_call(form: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run after a few others does not ask the general way, unless DAGPU_DIRECT is 0."""
    with installed(7):
        asked: list[object] = []
        scene = SCENES[form](WAYS[way])
        bind = PlanLookup.bind

        def counted(lookup: PlanLookup) -> Any:
            asked.append(lookup)
            return bind(lookup)

        monkeypatch.setattr(PlanLookup, "bind", counted)
        for value_of_switch, count in (("1", 0), ("0", 1)):
            if form in ("pipeline", "fresh"):
                scene = SCENES[form](WAYS[way])
                asked.clear()
            monkeypatch.setenv("DAGPU_DIRECT", value_of_switch)
            WAYS[way](scene.op)
            assert len(asked) == count
            monkeypatch.setenv("DAGPU_DIRECT", "1")
