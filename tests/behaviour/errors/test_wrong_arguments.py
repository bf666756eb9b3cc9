"""Wrong types in every argument of every public call: each is refused in words of dagpu's own.

A message names the call, the place in the user's code, and what to write instead. No AttributeError from inside, no
assertion, no silent success.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import dagpu.entry.public
from dagpu import (
    CostModel,
    CudaGraph,
    DeviceOp,
    In,
    ListSchedule,
    Out,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    Tile,
    bool_,
    current_device,
    f32,
    i32,
    kernel,
    memcpy,
    merge,
    ones,
    pipeline,
    plan_of,
    spawn,
    trace,
    use_device,
    use_interpreter,
    value,
    zeros,
    zip_flows,
    zip_ops,
)
from tests.behaviour.errors.argument_sorts import (
    CALLABLE,
    ELSEWHERE,
    FINITE,
    HELD,
    MESH_CALLS,
    MESH_OPS,
    NUMBERS,
    SEED,
    WHOLE,
    WRONG,
    Public,
    Settable,
    enter,
    tensor,
)  # fmt: skip


@kernel(cuda="__global__ void copy(Tile<float, 1> y, View<const float, 1> x, float by) {}")
def copy(y: Out[f32], x: In[f32], by: float) -> None:
    """y = by x"""


@copy.host
def _(y: Tile[f32], x: NDArray[f32], by: float) -> None:
    y[...] = f32(by) * x[y.at]


REAL = object()
"""Stands for a nursery."""


def recorded(op: Any) -> object:
    with CudaGraph.scope(current_device().stream()) as scope:
        return scope.record(op)


def updated(op: Any) -> object:
    return copy(zeros((4,)).partition((2,)), tensor(), 2.0).graph().update(op)


def spawned(nursery: Any, op: Any) -> object:
    found: list[Exception] = []

    async def main() -> None:
        async with trio.open_nursery() as real:
            try:
                await spawn(real if nursery is REAL else nursery, op)
            except Exception as error:  # or it would come as a group
                found.append(error)

    trio.run(main)
    if found:
        raise found.pop()
    return None


def interpreted(**given: Any) -> object:
    with use_interpreter(StreamInterpreter(**given)):
        return ones((4,)).to_host().sync()


def placed(policy: Any) -> object:
    return value(1).schedule(policy).sync()


def traced(path: Any = None, costs: Any = None) -> object:
    return enter(trace(path, costs=costs))


def overlapping(at_least: Any) -> object:
    with trace() as found:
        ones((4,)).sync()
    found.assert_overlap(at_least)
    return found


def seeing(x: Any) -> object:
    return declared(cuda=COPY, sees={"x": x})


def declared(**given: Any) -> object:
    @kernel(**given)
    def copy(y: Out[f32], x: In[f32], by: float) -> None: ...

    return copy


COPY = "__global__ void copy(Tile<float, 1> y, View<const float, 1> x, float by) {}"


def declared_host(body: Any) -> object:
    made: Any = declared(cuda=COPY)
    return made.host(body)


def origins(enabled: Any) -> object:
    try:
        return dagpu.record_origins(enabled)
    finally:
        dagpu.record_origins(True)


def saved(path: Any) -> object:
    ones((4,)).save_svg(path)
    return path


def asked_of(name: str, *, of: Callable[[], Any] = lambda: ones((4,))) -> Callable[..., object]:
    """A call of the method `name`."""
    return lambda *given, **named: getattr(of(), name)(*given, **named)


def by_place(call: Callable[..., object]) -> Callable[..., object]:
    """A call whose one argument goes by position."""
    return lambda **named: call(*named.values())


def awaited_run(op: Any) -> object:
    async def main() -> object:
        return await StreamInterpreter().run(op)

    return trio.run(main)


def set_to(target: Any) -> object:
    async def main() -> object:
        return await FLOW.into(target)

    return trio.run(main)


def watched(feed: Any, **given: Any) -> object:
    async def main() -> object:
        if feed is not FLOW:
            return dagpu.watch(feed, **given)
        async with FLOW as opened:
            return dagpu.watch(opened, **given)

    return trio.run(main)


FLOW: Any = dagpu.flow([1])
SHARED: Callable[[], Any] = lambda: tensor().share()  # noqa: E731  # a def would need a name for each
LENT: Callable[[], Any] = lambda: tensor().borrow()  # noqa: E731
WRITTEN: Callable[[], Any] = lambda: tensor().borrow_mut()  # noqa: E731

TABLE: dict[str, Public] = {
    "value": Public(value, lambda: {"x": 3}, {"x": tuple(WRONG.keys() - {"op"})}),
    "zip_ops": Public(
        lambda a, b: zip_ops(a, b), lambda: {"a": ones((4,)), "b": ones((4,))}, {"a": ("op",), "b": ("op",)}
    ),
    **{
        name: Public(
            getattr(dagpu, name),
            lambda: {"shape": (4,), "dtype": f32},
            {"dtype": ()},
        )
        for name in ("empty", "zeros", "ones")
    },
    "full": Public(dagpu.full, lambda: {"shape": (4,), "fill_value": 1, "dtype": f32}, {"fill_value": NUMBERS}),
    "full of whole numbers": Public(
        lambda fill_value: dagpu.full((4,), fill_value, i32),
        lambda: {"fill_value": 4.0},
        {"fill_value": ("number", "negative")},
        says="full",
    ),
    "full of truth values": Public(
        lambda fill_value: dagpu.full((4,), fill_value, bool_),
        lambda: {"fill_value": 1},
        {"fill_value": ("true",)},
        says="full",
    ),
    "fill of whole numbers": Public(
        lambda fill_value: dagpu.fill(zeros((4,), i32).sync(), fill_value),
        lambda: {"fill_value": 4},
        {"fill_value": ("number", "negative")},
        says="fill",
    ),
    "arange of whole numbers": Public(
        lambda **given: dagpu.arange(**given, dtype=i32),
        lambda: {"start": 0, "stop": 4.5, "step": 2},
        {"start": ("number", "negative"), "stop": FINITE, "step": ("number", "negative")},
        says="arange",
    ),
    "linspace of whole numbers": Public(
        lambda start, stop: dagpu.linspace(start, stop, 3, i32),
        lambda: {"start": 0, "stop": 1.0},
        {"start": ("number", "negative"), "stop": ("number", "negative")},
        says="linspace",
    ),
    "arange": Public(dagpu.arange, lambda: {"stop": 4, "dtype": f32}, {"stop": FINITE}),
    "linspace": Public(
        dagpu.linspace,
        lambda: {"start": 0, "stop": 1, "num": 4, "dtype": f32},
        {"start": FINITE, "stop": FINITE, "num": WHOLE},
    ),
    "eye": Public(dagpu.eye, lambda: {"n": 4, "m": 3, "dtype": f32}, {"n": WHOLE, "m": ("None", *WHOLE)}),
    "rand": Public(dagpu.rand, lambda: {"shape": (4,), "dtype": f32, "seed": 1}, {"seed": ("None", *SEED)}),
    "randn": Public(
        dagpu.randn,
        lambda: {"shape": (4,), "dtype": f32, "mean": 0.0, "std": 1.0, "seed": 1},
        {"seed": ("None", *SEED), "mean": FINITE, "std": ("number", "fraction")},
    ),
    "from_host": Public(dagpu.from_host, lambda: {"array": np.ones(4, f32)}, {"array": ("array",)}),
    "dup": Public(dagpu.dup, lambda: {"t": tensor()}, {"t": ("op", "tensor", "lent")}),
    "convert": Public(dagpu.convert, lambda: {"t": tensor(), "dtype": f32}, {"t": ("op", "tensor", "lent")}),
    "fold_in": Public(dagpu.fold_in, lambda: {"seed": 1, "data": 2}, {"seed": SEED, "data": SEED}),
    "fill": Public(dagpu.fill, lambda: {"t": tensor(), "fill_value": 1}, {"t": ("tensor",), "fill_value": NUMBERS}),
    "memcpy": Public(memcpy, lambda: {"dst": tensor().borrow_mut(), "src": tensor()}, {"src": ("tensor", "lent")}),
    "kernel": Public(
        declared,
        lambda: {
            "cuda": COPY,
            "block": 32,
            "abi": "views",
            "options": ["-lineinfo"],
            "checked": True,
            "in_place": False,
            "sees": {"x": dagpu.Here()},
        },
        {
            "block": ("None", "number"),
            "options": (),
            "checked": ("None", "true"),
            "in_place": ("true",),
            "sees": ("None",),
        },
    ),
    "Kernel.__call__": Public(
        copy,
        lambda: {"y": zeros((4,)).partition((2,)), "x": ones((4,)), "by": 2.0},
        {"y": ("partition",), "x": ("tensor", "lent", "op"), "by": ("number", "negative", "fraction", "nan")},
        says="copy",
    ),
    "Kernel.host": Public(
        declared_host,
        lambda: {"body": lambda y, x, by: None},
        {"body": ("None", "function", "class")},
        says="host body",
    ),
    "Kernel.grid": Public(lambda extent: copy.grid(extent), lambda: {"extent": 1}, {"extent": ("number",)}),
    "Kernel.block": Public(lambda extent: copy.block(extent), lambda: {"extent": 32}, {"extent": ("number",)}),
    "Kernel.shared_memory": Public(copy.shared_memory, lambda: {"nbytes": 64}, {"nbytes": ("number",)}),
    "device": Public(dagpu.device, lambda: {"name": "host"}),
    "use_device": Public(lambda place: enter(use_device(place)), lambda: {"place": "host"}, {"place": ("device",)}),
    "use_interpreter": Public(
        lambda interpreter: enter(use_interpreter(interpreter)), lambda: {"interpreter": StreamInterpreter()}
    ),
    "plan_of": Public(plan_of, lambda: {"op": ones((4,))}, {"op": ("op",)}),
    "pipeline": Public(
        lambda f, cache_size, graph_from: pipeline(cache_size=cache_size, graph_from=graph_from)(f),
        lambda: {"f": lambda: ones((4,)), "cache_size": 2, "graph_from": 2},
        {"f": ("function", "class"), "cache_size": ("number",), "graph_from": ("None", "number")},
    ),
    "spawn": Public(spawned, lambda: {"nursery": REAL, "op": ones((4,))}, {"op": ("op",)}),
    "trace": Public(traced, lambda: {"path": None, "costs": None}, {"path": ("None", "text"), "costs": ("None",)}),
    "Trace.assert_overlap": Public(
        overlapping, lambda: {"at_least": 0.0}, {"at_least": ("negative",)}, {"at_least": NUMBERS}
    ),
    "record_origins": Public(origins, lambda: {"enabled": True}, {"enabled": ("true",)}),
    "flow": Public(
        by_place(dagpu.flow), lambda: {"items": [1]}, {"items": ("text", "bytes", "list", "tuple", "dict", "array")}
    ),
    "source": Public(
        lambda x, equal: dagpu.source(x, equal=equal),
        lambda: {"x": 1, "equal": None},
        {"x": HELD, "equal": ("None", *CALLABLE)},
    ),
    "Source.set": Public(lambda x: dagpu.source(1).set(x), lambda: {"x": 2}, {"x": HELD}),
    "Source.write": Public(
        lambda at, data: dagpu.source(tensor()).write(at, data),
        lambda: {"at": slice(0, 4), "data": np.ones(4, f32)},
        {"data": ("array", "tensor")},
        says="written",
    ),
    "Around": Public(lambda margin: seeing(dagpu.Around(margin)), lambda: {"margin": 1}, {"margin": ("number",)}),
    "Along": Public(
        lambda axis, before, after: seeing((dagpu.Along(axis, before, after),)),
        lambda: {"axis": 0, "before": 1, "after": 1},
        {"before": ("number",), "after": ("number",)},
    ),
    "Source.change": Public(lambda f: dagpu.source(1).change(f), lambda: {"f": str}, {"f": CALLABLE}),
    "cutoff": Public(
        by_place(dagpu.cutoff),
        lambda: {"op": value(1), "equal": None},
        {"op": ("op",), "equal": ("None", *CALLABLE)},
    ),
    "observe": Public(
        lambda op, memory, check: dagpu.observe(op, memory=memory, check=check),
        lambda: {"op": value(1), "memory": None, "check": False},
        {"op": ("op",), "memory": ("None", "number"), "check": ("true",)},
    ),
    "every": Public(by_place(dagpu.every), lambda: {"seconds": 1}, {"seconds": ("number", "fraction")}),
    "merge": Public(lambda a, b: merge(a, b), lambda: {"a": FLOW, "b": FLOW}),
    "zip_flows": Public(lambda a, b: zip_flows(a, b), lambda: {"a": FLOW, "b": FLOW}),
    **{
        f"Flow.{name}": Public(by_place(getattr(FLOW, name)), lambda: {"f": lambda x: x}, {"f": ("function", "class")})
        for name in ("map", "where", "switch")
    },
    "Flow.take": Public(by_place(FLOW.take), lambda: {"n": 3}, {"n": ("number",)}),
    "Flow.window": Public(
        lambda n, step: FLOW.window(n, step), lambda: {"n": 3, "step": 1}, {"n": ("number",), "step": ("number",)}
    ),
    "Flow.run": Public(
        lambda f, **given: FLOW.run(f, **given),
        lambda: {"f": value, "in_flight": 2, "memory": None, "ordered": True},
        {
            "f": ("function", "class"),
            "in_flight": ("number",),
            "memory": ("None", "number"),
            "ordered": ("true",),
        },
    ),
    "Flow.fold": Public(
        lambda state, f, in_flight: FLOW.fold(state, f, in_flight=in_flight),
        lambda: {"state": value(0), "f": lambda s, x: value((s, x)), "in_flight": 2},
        {"state": ("op",), "f": ("function", "class"), "in_flight": ("number",)},
    ),
    "Flow.at_most": Public(by_place(FLOW.at_most), lambda: {"per_second": 3}, {"per_second": ("number", "fraction")}),
    "Flow.batched": Public(
        lambda most, within: FLOW.batched(most, within=within),
        lambda: {"most": 3, "within": 1},
        {"most": ("number",), "within": ("number", "fraction")},
    ),
    "Flow.into": Public(set_to, lambda: {"target": Settable()}, says="into"),
    "batching": Public(
        lambda f, **given: dagpu.batching(f, **given),
        lambda: {"f": value, "most": 3, "within": 1, "in_flight": 2},
        {
            "f": ("function", "class"),
            "most": ("number",),
            "within": ("number", "fraction"),
            "in_flight": ("number",),
        },
    ),
    "watch": Public(
        watched,
        lambda: {"feed": FLOW, "total": None, "title": "", "console": None},
        {"total": ("None", "number"), "title": ("text",), "console": ("None",)},
    ),
    "Stats.latency": Public(by_place(dagpu.Stats().latency), lambda: {"quantile": 0.5}, {"quantile": ()}),
    "DeviceOp.then": Public(asked_of("then"), lambda: {"f": lambda t: t.to_host()}),
    "DeviceOp.map": Public(asked_of("map"), lambda: {"f": lambda t: t}, {"f": ("function", "class")}),
    "DeviceOp.host_map": Public(asked_of("host_map"), lambda: {"f": lambda t: t}, {"f": ("function", "class")}),
    "DeviceOp.inspect": Public(asked_of("inspect"), lambda: {"f": lambda t: t}, {"f": ("function", "class")}),
    "DeviceOp.unzip": Public(
        lambda n: zip_ops(ones((1,)), ones((1,)), ones((1,))).unzip(n), lambda: {"n": 3}, {"n": ("None", "number")}
    ),
    "DeviceOp.partition": Public(
        asked_of("partition"), lambda: {"tile": (2,), "partial": False}, {"partial": ("true",)}
    ),
    "DeviceOp.reshape": Public(asked_of("reshape"), lambda: {"shape": (2, 2)}, {"shape": ("negative",)}),
    "DeviceOp.on": Public(asked_of("on"), lambda: {"place": "host"}, {"place": ("device", "stream", "policy")}),
    "DeviceOp.schedule": Public(placed, lambda: {"policy": SingleStream()}, {"policy": ("policy",)}, says="schedule"),
    "DeviceOp.sync_on": Public(
        asked_of("sync_on"), lambda: {"stream": current_device().stream()}, {"stream": ("stream",)}
    ),
    "DeviceOp.graph_on": Public(
        asked_of("graph_on"), lambda: {"stream": current_device().stream()}, {"stream": ("stream",)}
    ),
    "DeviceOp.save_svg": Public(saved, lambda: {"path": "dag.svg"}, {"path": ("text",)}),
    "Tensor.partition": Public(
        asked_of("partition", of=tensor), lambda: {"tile": (2,), "partial": False}, {"partial": ("true",)}
    ),
    "TensorMut.partition": Public(
        asked_of("partition", of=WRITTEN), lambda: {"tile": (2,), "partial": False}, {"partial": ("true",)}
    ),
    **{
        f"{kind}.reshape": Public(asked_of("reshape", of=of), lambda: {"shape": (2, 2)}, {"shape": ("negative",)})
        for kind, of in (("Tensor", tensor), ("SharedTensor", SHARED), ("TensorRef", LENT), ("TensorMut", WRITTEN))
    },
    "bounds of a slice": Public(
        lambda **bounds: tensor().slice(slice(*bounds.values())),
        lambda: {"start": 1, "stop": 3, "step": 1},
        dict.fromkeys(("start", "stop", "step"), ("None", "number", "negative")),
        dict.fromkeys(("start", "stop", "step"), ("op", "tensor", "lent", "partition")),  # their own error says more
        says="slice",
    ),
    "bounds of a written part": Public(
        lambda **bounds: dagpu.source(tensor()).write(slice(*bounds.values()), np.ones(4, f32)),
        lambda: {"start": 0, "stop": 4, "step": 1},
        {"start": ("None",), "stop": ("None",), "step": ("None",)},
        says="written",
    ),
    **{
        f"{kind}.slice": Public(
            by_place(asked_of("slice", of=of)), lambda: {"part": slice(1, 3)}, {"part": ("None", "number", "negative")}
        )
        for kind, of in (("Tensor", tensor), ("SharedTensor", SHARED), ("TensorRef", LENT), ("TensorMut", WRITTEN))
    },
    "Tensor.view": Public(asked_of("view", of=tensor), lambda: {"shape": (2, 2)}, {"shape": ("negative",)}),
    **{
        f"{kind}.view": Public(asked_of("view", of=of), lambda: {"dtype": dagpu.i32})
        for kind, of in (("SharedTensor", SHARED), ("TensorRef", LENT), ("TensorMut", WRITTEN))
    },
    "DeviceOp.view": Public(asked_of("view"), lambda: {"dtype": dagpu.i32}),
    "CudaGraph.scope": Public(
        CudaGraph.scope,
        lambda: {"stream": current_device().stream()},
        {"stream": ("stream",)},
    ),
    "CudaGraph.update": Public(updated, lambda: {"op": value(None)}),
    "Scope.record": Public(recorded, lambda: {"op": memcpy(tensor().borrow_mut(), tensor())}),
    "StreamInterpreter": Public(
        interpreted,
        lambda: {"device": "host", "policy": SingleStream(), "verify": True, "graph_from": 3, "on_plan": None},
        {
            "device": ("None", "device"),
            "policy": ("None", "policy"),
            "verify": ("None", "true"),
            "graph_from": ("None", "number"),
            "on_plan": ("None", "function", "class"),
        },
    ),
    **{
        f"StreamInterpreter.{name}": Public(
            by_place(asked_of(name, of=StreamInterpreter)), lambda: {"op": ones((4,))}, {"op": ("op",)}
        )
        for name in ("run_sync", "plan_of", "explain")
    },
    "StreamInterpreter.run": Public(awaited_run, lambda: {"op": ones((4,))}, {"op": ("op",)}),
    "StreamInterpreter.graph": Public(
        lambda op: StreamInterpreter().graph(op, None), lambda: {"op": ones((4,))}, {"op": ("op",)}
    ),
    "StreamInterpreter.scope": Public(
        lambda stream: StreamInterpreter().scope(stream),
        lambda: {"stream": current_device().stream()},
        {"stream": ("stream",)},
    ),
    "RoundRobin": Public(
        lambda **given: placed(RoundRobin(**given)),
        lambda: {"streams": 2, "memory_limit": None},
        {"streams": ("number",), "memory_limit": ("None", "number")},
    ),
    "ListSchedule": Public(
        lambda **given: placed(ListSchedule(**given)),
        lambda: {"streams": 2, "memory_limit": None, "costs": CostModel(), "runs": 10},
        {"streams": ("number",), "memory_limit": ("None", "number"), "runs": ("number", "fraction")},
    ),
    **MESH_CALLS,
    **MESH_OPS,
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some calls write files."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", TABLE)
def test_right_arguments_are_taken(name: str) -> None:
    """The arguments that the table lists as right are accepted."""
    public = TABLE[name]
    finished(public.of(**public.right()))
    for parameter, sorts in public.fine.items():
        for sort in sorts:
            finished(public.of(**{**public.right(), parameter: WRONG[sort]()}))


def finished(made: object) -> object:
    """Run what was built, and return the result."""
    return made.sync() if isinstance(made, DeviceOp) else made


def public_calls() -> Iterator[str]:
    """Every public function, and every method of a public class, that takes arguments."""
    for name in dagpu.entry.public.__all__:
        found: Any = getattr(dagpu, name)
        if inspect.isfunction(found):
            calls: dict[str, Any] = {name: found}
        elif inspect.isclass(found) and found.__module__.startswith("dagpu.") and not issubclass(found, Exception):
            calls = {f"{name}.{method}": getattr(found, method) for method in vars(found) if is_public(method)}
        else:
            continue
        for call, function in calls.items():
            if callable(function) and inspect.signature(function).parameters.keys() - {"self"}:
                yield call


def is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__call__"


def test_every_public_call_is_here() -> None:
    """A new function or method with arguments needs a row, or a reason why it has none."""
    assert set(public_calls()) - TABLE.keys() - ELSEWHERE.keys() == set()
    assert not TABLE.keys() & ELSEWHERE.keys()


PARAMETERS = [(name, parameter) for name, public in TABLE.items() for parameter in public.right()]


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=[".".join(pair) for pair in PARAMETERS])
def test_a_wrong_argument_is_refused(name: str, parameter: str) -> None:
    """The error is dagpu's own, or a TypeError or ValueError with a text of dagpu's: the call, the place, the cure."""
    public = TABLE[name]
    right = {*public.fine.get(parameter, ()), *public.untried.get(parameter, ())}
    for sort in [sort for sort in WRONG if sort not in right]:
        given = {**public.right(), parameter: WRONG[sort]()}
        with pytest.raises((dagpu.DagpuError, TypeError, ValueError)) as caught:
            finished(public.of(**given))
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert (public.says or name.rpartition(".")[2]) in text, (sort, text)
        assert re.search(re.escape(__file__) + r":\d+", text), (sort, text)
        assert re.search(r"\. [A-Z@]", text), (sort, text)
