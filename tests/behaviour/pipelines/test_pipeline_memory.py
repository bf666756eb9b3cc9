"""Pipelines: the memory that their plans keep, and what `repr` and `explain` show of them."""

import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

from dagpu import current_device, dup, f32, fill, from_host, memcpy, ones, pipeline, plan_of, trace, zeros, zip_ops
from dagpu.testing import Role, plans
from tests.behaviour.pipelines.pipeline_calls import Calls, S, added, number_in, out, scaled, shared, tensor, unlocked
from tests.behaviour.pipelines.pipeline_calls import no_plans_yet as no_plans_yet
from tests.programs.arithmetic import axpy, scale
from tests.programs.expressions import Op

# ---- memory


@pytest.mark.host_only("on a GPU a plan keeps the memory of its graphs")
def test_memory_comes_back() -> None:
    """A pipeline keeps what it closes over and nothing else; dropped, it keeps nothing. By reference counts alone."""
    here = current_device()
    plans.clear()
    gc.collect()
    gc.disable()
    try:
        before = here.memory_used()

        def make() -> Any:
            mine = ones((100,)).share().sync()
            return pipeline(
                lambda t, x, a: zip_ops(
                    dup(mine), scaled(a, x).then(lambda u: scaled(2.0, u.borrow())), fill(t, 3).share(), dup(x)
                )
            )

        p = make()
        assert here.memory_used() == before + 400
        for _ in range(3):
            results = p(tensor(), shared(1), 2.0).sync()
            zip_ops(p(tensor(), shared(1), 2.0), ones((50,))).sync()
            del results
            assert here.memory_used() == before + 400
        del p
        assert here.memory_used() == before
    finally:
        gc.enable()


@pytest.mark.host_only("on a GPU a plan keeps the memory of its graphs")
def test_the_cache_for_all_keeps_nothing_of_the_users() -> None:
    """Plans of plain ops have no handles, no arrays and no streams in them; streams of the user's keep an op out."""
    here = current_device()
    before = here.memory_used()
    h = np.ones((100,), f32)
    stream = here.stream()
    for _ in range(2):
        zip_ops(dup(shared(1)), from_host(h), fill(tensor(), 1), dup(tensor().borrow())).sync()
    assert plans.info().currsize > 0
    assert here.memory_used() == before
    size = plans.info().currsize
    ones((7,)).sync_on(stream)
    zip_ops(pipeline(lambda: ones(S))(), zeros((3,))).sync()
    assert plans.info().currsize == size
    held = gc.get_referrers(h)
    assert not any(type(holder).__module__.startswith("dagpu") for holder in held)


def test_temporaries_of_closures_are_temporaries() -> None:
    """Tensors that closures lend or move on are in the run's arena.

    They take no further memory, in a pipeline or not.
    """

    def f() -> Op:
        lent = ones(S).then(lambda t: scaled(2.0, t.borrow()))
        return lent.then(lambda t: scaled(3.0, t)).then(lambda t: fill(t, 3)).then(lambda t: scaled(3.0, t))

    for op in (f(), pipeline(f)()):
        roles = [buffer.role for buffer in plan_of(op).buffers]
        assert roles == [Role.TEMPORARY] * (len(roles) - 1) + [Role.OUTPUT]


# ---- looking


@pytest.mark.parametrize("what", ["code", "class of a tuple", "type"])
def test_what_a_key_names_lives_as_long_as_the_key(what: str) -> None:
    """An object that stands in a key by its id is kept with the plan: no other gets that id, and with it the plan."""
    p = pipeline(lambda *arguments: scaled(2.0, ones(S)))

    def run() -> Any:
        if what == "code":
            scope: dict[str, Any] = {}
            exec(compile("def built(op): return op.reshape((4,))", "elsewhere.py", "exec"), scope)
            zip_ops(scope["built"](scaled(2.0, ones(S))), zeros(S)).sync()
            return scope["built"].__code__
        made: Any = NamedTuple("Made", [("x", int)]) if what == "class of a tuple" else type("Made", (), {})
        p(made(1) if what == "class of a tuple" else made).sync()
        return made

    found = weakref.ref(run())
    gc.collect()
    assert found() is not None
    plans.clear()
    p.cache_clear()
    gc.collect()
    assert found() is None


def test_errors_name_their_own_place() -> None:
    """Another DAG of the same structure, built elsewhere, has messages of its own."""

    def failing() -> Op:
        return zip_ops(ones((3,)).reshape((2, 2)), zeros(S))

    said = []
    for op in (failing(), failing(), zip_ops(ones((3,)).reshape((2, 2)), zeros(S))):
        with pytest.raises(Exception, match="cannot reshape") as caught:
            op.sync()
        said.append(caught.value.__notes__[0])
    assert said[0] == said[1] != said[2]
    assert all(__file__ in note for note in said)


def test_plans_name_their_own_place() -> None:
    """Two DAGs of one structure at two places have two plans."""
    first = scaled(2.0, shared(1))
    second = scale(out(), 2.0, shared(1)).first().unpartition()
    for op in (first, second, first):
        op.sync()
    places = [
        [step.instruction.origin for step in plan_of(op).steps if hasattr(step, "instruction")]
        for op in (first, second)
    ]
    assert places[0] != places[1]


def test_a_call_explains_itself() -> None:
    """`explain`, `plan_of` and `to_dot` show what the function does, and use nothing up."""
    p = pipeline(lambda t, a, h: zip_ops(axpy(t.partition(S), a, from_host(h)).first(), ones(S)))
    for _ in range(2):
        op = p(tensor(1), 2.0, np.ones(S, f32))
        text = op.explain()
        assert "Launch axpy" in text
        assert "CopyHtoD" in text
        assert __file__.rsplit("/", 1)[-1] in text
        assert len(plan_of(op).steps) >= 3
        assert "pipeline <lambda>" in op.to_dot()
        assert number_in(op.sync()[0].unpartition()) == 3


@pytest.mark.host_only("on a GPU a call may be one graph")
def test_a_trace_shows_the_steps_of_each_call() -> None:
    """Each call is a run with its plan's instructions, though only the first was traced."""
    p = pipeline(lambda x, a, h: added(scaled(a, x), from_host(h)).to_host())
    with trace() as found:
        for k in range(3):
            p(shared(1), float(k), np.ones(S, f32)).sync()
    calls = [run for run in found.runs if any(piece.name == "scale" for piece in run.measured.pieces)]
    assert len(calls) == 3
    assert all(
        {piece.name for piece in run.measured.pieces} == {"CopyHtoD", "scale", "add", "CopyDtoH"} for run in calls
    )
    assert "Trace: " in str(found)


def test_it_looks_like_its_function() -> None:
    """Name, documentation and place."""

    @pipeline
    def step(x: int) -> Op:
        """One step."""
        return ones((x,))

    assert (step.__name__, step.__doc__) == ("step", "One step.")
    assert f"pipeline step at {__file__}" in repr(step)


def test_memcpy_into_what_is_lent() -> None:
    """An op with no result of its own, in each call on another tensor."""
    p = Calls(lambda m, x: memcpy(m, x))
    for k in range(3):
        t = tensor(0)
        assert p(t.borrow_mut(), shared(k)).sync() is None
        assert number_in(t) == k
        assert unlocked(t)
    assert p.count == 1
