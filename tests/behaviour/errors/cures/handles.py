"""Mistakes with handles: moved, lent and shared ones."""

from typing import Any

import numpy as np

from dagpu import (
    dup,
    empty,
    ones,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors.cures.catalogue import (
    TILE,
    Catalogue,
    N,
    add,
    anything,
    awaited,
    lent_for_writing_twice,
    loose,
    new,
    out,
    run,
)

CATALOGUE = Catalogue()
case = CATALOGUE.add
same: Any = new()


def passed_twice() -> None:
    x = new()
    run(add(out(), x))
    run(add(out(), x))


def taken_back() -> None:
    x = new()
    _, x = add(out(), x).sync()
    run(add(out(), x))


def lent_to_both() -> None:
    x = new()
    run(add(out(), x.borrow()))
    run(add(out(), x.borrow()))


def shared_by_both() -> None:
    x = new().share()
    run(add(out(), x))
    run(add(out(), x))


case(
    passed_twice,
    ("use what the move gave back", taken_back),
    ("lend it with .borrow()", lent_to_both),
    ("share it with .share()", shared_by_both),
)


def cut_twice() -> None:
    t = new()
    run(add(t.partition(TILE), ones((N,))))
    run(add(t.partition(TILE), ones((N,))))


def cut_and_taken_back() -> None:
    t = new()
    p, _ = add(t.partition(TILE), ones((N,))).sync()
    run(add(p.unpartition().partition(TILE), ones((N,))))


case(
    cut_twice,
    ("use what the move gave back", cut_and_taken_back),
    ("lend it for writing: .borrow_mut().partition(tile)", lent_for_writing_twice),
)


def cut_and_read() -> None:
    t = new()
    run(add(t.partition(TILE), t))


def read_into_another() -> None:
    t = new()
    run(add(empty((N,)).partition(TILE), t))


case(cut_and_read, ("write to memory of its own, empty(shape).partition(tile), and read this", read_into_another))


def op_cut_and_read() -> None:
    x = ones((N,))
    run(loose(x.partition(TILE), x))


def op_read_into_another() -> None:
    x = ones((N,))
    run(add(empty((N,)).partition(TILE), x))


case(
    op_cut_and_read,
    ("write to memory of its own there, empty(shape).partition(tile)", op_read_into_another),
    ("build the op once for each use", lambda: run(add(ones((N,)).partition(TILE), ones((N,))))),
)


def loan_used_twice() -> None:
    t = new()
    m = t.borrow_mut()
    run(add(m.partition(TILE), ones((N,))))
    run(add(m.partition(TILE), ones((N,))))


def loan_taken_back() -> None:
    m = new().borrow_mut()
    p, _ = add(m.partition(TILE), ones((N,))).sync()
    run(add(p.unpartition().partition(TILE), ones((N,))))


case(
    loan_used_twice,
    ("use what the move gave back", loan_taken_back),
    ("lend the tensor again with .borrow_mut()", lent_for_writing_twice),
)


def unwrapped_and_used() -> None:
    s = new().share()
    s.try_unwrap()
    run(add(out(), s))


def unwrapped_and_taken() -> None:
    s = new().share()
    run(add(out(), s.try_unwrap()))


def unwrapped_and_shared() -> None:
    run(add(out(), new().share().try_unwrap().share()))


case(
    unwrapped_and_used,
    ("use what the move gave back", unwrapped_and_taken),
    ("share that again with .share()", unwrapped_and_shared),
)


def partition_used_twice() -> None:
    p = new().partition(TILE)
    run(add(p, ones((N,))))
    run(add(p, ones((N,))))


def partition_taken_back() -> None:
    p = new().partition(TILE)
    p, _ = add(p, ones((N,))).sync()
    run(add(p, ones((N,))))


case(partition_used_twice, ("use what the move gave back", partition_taken_back))


def run_twice() -> None:
    op = dup(new())
    run(op)
    run(op)


def run_twice_of_a_loan() -> None:
    t = new()
    op = dup(t.borrow())
    run(op)
    run(op)


def run_twice_of_shared() -> None:
    op = dup(new().share())
    run(op)
    run(op)


case(run_twice, ("lend it with .borrow()", run_twice_of_a_loan), ("share it with .share()", run_twice_of_shared))


def loan_outlives() -> None:
    t = new()
    r = t.borrow()
    t.share()
    run(add(out(), r))


def loan_used_before() -> None:
    t = new()
    run(add(out(), t.borrow()))
    t.share()


def shared_instead() -> None:
    s = new().share()
    run(add(out(), s))


case(
    loan_outlives, ("Use the borrow before the tensor moves", loan_used_before), ("share() the tensor", shared_instead)
)


def not_the_last() -> None:
    s = new().share()
    other = s.clone()
    s.try_unwrap()
    assert other.shape


def clone_dropped() -> None:
    s = new().share()
    other = s.clone()
    del other
    s.try_unwrap()


def copied_instead() -> None:
    s = new().share()
    other = s.clone()
    assert dup(s).sync().shape == other.shape


case(
    not_the_last,
    ("Drop the clones", clone_dropped),
    ("copy it with dup(t)", copied_instead),
)


def unwrapped_while_it_is_read() -> None:
    s = new().share()
    zip_ops(add(out(), s).map(lambda _: None), value(0).host_map(lambda _: s.try_unwrap())).sync()


def unwrapped_after_it_was_read() -> None:
    s = new().share()
    run(add(out(), s).map(lambda _: None))
    s.try_unwrap()


case(unwrapped_while_it_is_read, ("copy it with dup(t)", copied_instead))
case(
    lambda: np.asarray(new()),
    ("Get them with .to_host().sync()", lambda: np.asarray(new().to_host().sync())),
    ("or with await t.to_host() in a trio task", lambda: awaited(new().to_host())),
)
case(
    lambda: zeros((1,)).map(lambda t: float(anything(t))).sync(),
    (
        "Return t.to_host() from the function of a .then: the function after it gets an array",
        lambda: zeros((1,)).then(lambda t: t.to_host()).map(lambda a: float(a[0])).sync(),
    ),
)
case(
    lambda: len(anything(new().partition(TILE))),
    (
        "Put it together with .unpartition(). Get them with .to_host().sync()",
        lambda: len(new().partition(TILE).unpartition().to_host().sync()),
    ),
)


def shared_graph_output() -> None:
    graph = add(out(), ones((N,))).graph()
    p, _ = graph.take_output()
    p.unpartition().share()


def graph_output() -> Any:
    graph = add(out(), ones((N,))).graph()
    return graph, graph.take_output()[0].unpartition()


def copied_graph_output() -> None:
    graph, t = graph_output()
    dup(t.borrow()).sync().share()
    graph.launch().sync()


def lent_graph_output() -> None:
    graph, t = graph_output()
    run(add(out(), t.borrow()))
    graph.launch().sync()


case(
    shared_graph_output,
    ("Copy it with dup(t.borrow())", copied_graph_output),
    ("read it with t.borrow()", lent_graph_output),
)
