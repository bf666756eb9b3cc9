"""Mistakes with CUDA graphs."""

import contextlib
from typing import Any

import numpy as np

from dagpu import (
    CudaGraph,
    array,
    device,
    f32,
    from_host,
    memcpy,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors.cures.catalogue import KEPT, TILE, Catalogue, N, Program, add, anything, new, out, scale

CATALOGUE = Catalogue()
case = CATALOGUE.add


def scoped(*ops: Program, where: str = "host") -> CudaGraph[None]:
    with CudaGraph.scope(device(where).stream()) as scope:
        for op in ops:
            scope.record(anything(op()))
    return scope.graph


def recorded_into(t: Any) -> Program:
    return lambda: scale(t.borrow_mut().partition(TILE), 2.0)


case(
    lambda: scoped(),
    ("scope.record(op)", lambda: scoped(recorded_into(new()))),
)
case(
    lambda: scoped(recorded_into(new()), where="host:1"),
    ("Give a stream of host:0", lambda: scoped(recorded_into(new()), where="host:0")),
)
case(
    lambda: value(1).graph(),
    ("Capture a kernel", lambda: add(out(), ones((N,))).graph()),
    ("a fill", lambda: ones((2,)).graph()),
)
case(
    lambda: ones((2,)).on("host:0").graph_on(device("host:1").stream()),
    ("Give a stream of host:0", lambda: ones((2,)).on("host:0").graph_on(device("host:0").stream())),
)
case(
    lambda: ones((2,)).to_host().host_map(len).graph(),
    ("Capture what comes before it", lambda: ones((2,)).to_host().graph()),
)


def nested_graphs() -> Any:
    return ones((2,)).graph(), ones((2,)).graph()


def captured_launch() -> object:
    a, b = nested_graphs()
    return a.launch().then(lambda _: b.launch()).graph()


def composed_launches() -> object:
    a, b = nested_graphs()
    return a.launch().then(lambda _: b.launch()).sync()


case(captured_launch, ("a.launch().then(lambda _: b.launch())", composed_launches))
case(
    lambda: array.compress(new() > 0, new()).graph(),
    ("Say the length: size=100", lambda: array.compress(new() > 0, new(), size=100).graph()),
)
case(
    lambda: ones((2,)).to_host().then(lambda a: from_host(a)).graph(),
    ("Capture what comes before that", lambda: ones((2,)).to_host().graph()),
)


def left_over_component() -> object:
    a, b = zip_ops(ones((2,)), zeros((2,))).unzip()
    return a.graph(), b


def component_let_go() -> object:
    a, b = zip_ops(ones((2,)), zeros((2,))).unzip()
    del b
    return a.graph()


def components_captured() -> object:
    a, b = zip_ops(ones((2,)), zeros((2,))).unzip()
    return zip_ops(a, b).graph()


case(
    left_over_component,
    ("Delete that op (del)", component_let_go),
    ("capture it too", components_captured),
)


def output_taken_twice() -> None:
    graph = ones((2,)).graph()
    graph.take_output()
    graph.take_output()


def output_kept() -> None:
    graph = ones((2,)).graph()
    t = graph.take_output()
    graph.launch().sync()
    t.borrow().to_host().sync()


case(output_taken_twice, ("keep the value that the first call returned", output_kept))


def moved_since() -> None:
    t = new()
    graph = scale(t.borrow_mut().partition(TILE), 2.0).graph()
    t.share()
    graph.launch().sync()


def kept_where_it_is() -> None:
    t = new()
    graph = scale(t.borrow_mut().partition(TILE), 2.0).graph()
    graph.launch().sync()
    t.share()


def captured_again() -> None:
    t = new()
    scale(t.borrow_mut().partition(TILE), 2.0).graph()
    u = t.reshape((N,))
    scale(u.borrow_mut().partition(TILE), 2.0).graph().launch().sync()


case(
    moved_since,
    ("Keep the tensor where it is while the graph is in use", kept_where_it_is),
    ("capture the graph again", captured_again),
)


def recorded_late() -> None:
    t = new()
    with CudaGraph.scope(device("host").stream()) as scope:
        scope.record(scale(t.borrow_mut().partition(TILE), 2.0))
    scope.record(scale(t.borrow_mut().partition(TILE), 2.0))


case(recorded_late, ("Record within its with block", lambda: scoped(recorded_into(new()))))


def graph_taken_early() -> object:
    with CudaGraph.scope(device("host").stream()) as scope:
        return scope.graph


case(graph_taken_early, ("Take it after its with block", lambda: scoped(recorded_into(new()))))


def graph_of_a_failed_scope() -> object:
    with contextlib.suppress(ZeroDivisionError), CudaGraph.scope(device("host").stream()) as scope:
        raise ZeroDivisionError
    return scope.graph


case(graph_of_a_failed_scope, ("Record it again", lambda: scoped(recorded_into(new()))))


def run_in_a_scope() -> object:
    with CudaGraph.scope(device("host").stream()):
        return ones((2,)).sync()


def run_before_a_scope() -> object:
    t = ones((N,)).sync()
    return scoped(recorded_into(t))


case(
    run_in_a_scope,
    ("Record it with scope.record(op)", lambda: scoped(recorded_into(new()))),
    ("run it before or after the with block", run_before_a_scope),
)
case(
    lambda: scoped(lambda: 3),
    ("a kernel call on t.borrow_mut().partition(tile)", lambda: scoped(recorded_into(new()))),
)


def updating(op: Program) -> object:
    t = new()
    graph = add(zeros((N,)).partition(TILE), t.borrow()).graph()
    KEPT.append(t)
    graph.update(anything(op()))
    return graph.launch().sync()


def updated_by(source: Any) -> object:
    t = new()
    graph = add(zeros((N,)).partition(TILE), t.borrow()).graph()
    graph.update(memcpy(t.borrow_mut(), source))
    return graph.launch().sync()


case(
    lambda: updated_by(from_host(np.ones(N, f32))),
    ("Run it before, t = op.sync()", lambda: updated_by(from_host(np.ones(N, f32)).sync())),
)


def updated_from() -> object:
    t = new()
    graph = add(zeros((N,)).partition(TILE), t.borrow()).graph()
    graph.update(memcpy(t.borrow_mut(), new()))
    return graph.launch().sync()


case(
    lambda: updating(lambda: ones((2,))),
    ("t.borrow_mut().partition(tile)", lambda: updating(recorded_into(new()))),
    ("op.graph()", lambda: ones((2,)).graph().launch().sync()),
)
case(lambda: updating(lambda: 3), ("memcpy(t.borrow_mut(), new)", updated_from))
case(
    lambda: updating(lambda: ones((2,)).graph().launch()),
    ("op.graph()", lambda: ones((2,)).graph().launch().sync()),
)
case(
    lambda: updating(lambda: new().to_host().host_map(len)),
    (
        "Leave to_host() and host_map() to an op that runs after the launch",
        lambda: (updated_from(), new().to_host().host_map(len).sync()),
    ),
)
