"""Copies that Python makes of handles, and finalisers that use them."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, final

import trio

from dagpu import (
    CudaGraph,
    DeviceOp,
    Mesh,
    OwnershipError,
    batching,
    broadcast,
    device,
    dup,
    fill,
    flow,
    ones,
    plan_of,
    spawn,
    value,
    zip_ops,
)
from tests.behaviour.errors.cures.catalogue import TILE, Catalogue, N, Program, anything, both, new, out, scale

CATALOGUE = Catalogue()
case = CATALOGUE.add

PAIR = Mesh(["host:0", "host:1"])
scale_by_32 = scale.block(32)


def lent_twice() -> None:
    t = new()
    scale(t.borrow_mut().partition(TILE), 2.0).sync()
    scale(t.borrow_mut().partition(TILE), 2.0).sync()


def in_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@final
class Around:
    """An object that dagpu does not look into."""

    def __init__(self, inner: object) -> None:
        self.inner = inner


def recorded_copy() -> None:
    t = new()
    with CudaGraph.scope(device("host:0").stream()) as scope:
        copy.copy(scope).record(fill(t.borrow_mut(), 1.0))


def recorded_itself() -> None:
    t = new()
    with CudaGraph.scope(device("host:0").stream()) as scope:
        scope.record(fill(t.borrow_mut(), 1.0))


def awaited_by(taker: Program) -> None:
    """Await what `taker`, such as `copy.copy`, makes of a `Pending`."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, ones((N,)).to_host())
            try:
                taken = anything(taker)(pending)
            except OwnershipError as error:
                refused.append(error)
            else:
                await taken

    refused: list[OwnershipError] = []
    trio.run(main)
    for error in refused:
        raise error


def fed_by(taker: Program) -> None:
    """Take the values of what `taker` makes of a feed."""
    described = flow([1, 2])

    async def main() -> None:
        async with described as feed:
            await anything(taker)(feed).next()
        async with described as again:
            assert await again.next() == 1

    trio.run(main)


def answered(items: tuple[int, ...]) -> DeviceOp[list[int], Any]:
    """Each request is its own answer."""
    return value(list(items))


def asked_by(taker: Program) -> None:
    """Ask what `taker` makes of an `Ask`."""

    async def main() -> None:
        async with batching(answered, most=1, within=0.0) as ask:
            assert await anything(taker)(ask)(3) == 3

    trio.run(main)


# ---- copies


case(
    lambda: setattr(ones((N,)), "shape", (3,)),
    ("Build a new object with the value that you want", lambda: ones((3,)).sync()),
)
case(
    lambda: pickle.dumps(plan_of(ones((N,)))),
    ("Send its text, str(plan)", lambda: pickle.dumps(str(plan_of(ones((N,)))))),
    ("plan.to_svg()", lambda: pickle.dumps(plan_of(ones((N,))).to_svg())),
    ("the function that builds the op", lambda: plan_of(pickle.loads(pickle.dumps(ones))((N,)))),
    ("make the plan there: plan_of(op)", lambda: plan_of(pickle.loads(pickle.dumps(ones))((N,)))),
)
case(recorded_copy, ("Use the scope itself", recorded_itself))
case(
    lambda: awaited_by(anything(copy.copy)),
    ("Await the Pending itself, in any task", lambda: awaited_by(anything(lambda pending: pending))),
)
case(
    lambda: fed_by(anything(copy.copy)),
    ("Use the feed itself", lambda: fed_by(anything(lambda feed: feed))),
    ("open the flow once more", lambda: fed_by(anything(lambda feed: feed))),
)
case(
    lambda: asked_by(anything(copy.deepcopy)),
    ("Pass the Ask itself, to any task", lambda: asked_by(anything(lambda ask: ask))),
)
case(
    lambda: copy.copy(ones((N,)).graph()),
    ("Use the graph itself wherever it is wanted", lambda: [g := ones((N,)).graph(), g.launch().sync(), g.launch()]),
    ("capture the op once more with op.graph()", lambda: [ones((N,)).graph() for _ in range(2)]),
)

case(
    lambda: pickle.dumps(scale.block(32)),
    ("Assign it to a name at the top level of a module", lambda: pickle.loads(pickle.dumps(scale_by_32))),
)

ARRAY = "the array that .to_host() gives can be copied and pickled"
case(
    lambda: copy.copy(new()),
    ("Copy its contents with dup(t.borrow())", lambda: dup(new().borrow()).sync()),
    ("share it with .share()", lambda: new().share().clone()),
    (ARRAY, lambda: pickle.dumps(copy.copy(new().to_host().sync()))),
)
case(
    lambda: copy.deepcopy(new().share()),
    ("One more handle to the same memory is .clone()", lambda: new().share().clone()),
    (ARRAY, lambda: pickle.dumps(copy.deepcopy(new().share().to_host().sync()))),
)
case(
    lambda: pickle.dumps(new().borrow()),
    ("Borrow the tensor once more with .borrow()", lambda: [t := new(), t.borrow(), t.borrow()]),
    (ARRAY, lambda: pickle.dumps(copy.copy(new().borrow().to_host().sync()))),
)
case(lambda: copy.copy(new().borrow_mut()), ("when that is done, lend it again with .borrow_mut()", lent_twice))
case(
    lambda: copy.copy(new().partition(TILE)),
    ("Put it together with .unpartition()", lambda: new().partition(TILE).unpartition()),
    ("can be copied with dup(t.borrow())", lambda: dup(new().partition(TILE).unpartition().borrow()).sync()),
)
case(
    lambda: copy.copy(broadcast(new(), PAIR).sync()),
    ("Use the value itself wherever it is wanted", lambda: broadcast(new(), PAIR).sync().to_host().sync()),
)
case(
    lambda: copy.deepcopy(ones((N,))),
    ("Use the op itself wherever it is wanted", lambda: [op := ones((N,)), op.sync(), op.sync()]),
    (".shared() gives its result to several", lambda: [op := ones((N,)).shared(), both(out(), op, op).sync()]),
)
case(
    lambda: value(in_itself()),
    ("Wrap it in an object of a class of your own", lambda: value(Around(in_itself())).sync()),
)


class Late:
    """Calls a function when it goes."""

    def __init__(self, when_gone: Program) -> None:
        self._when_gone = when_gone

    def __del__(self) -> None:
        self._when_gone()


def dropping(late: Program) -> Any:
    """An op whose run drops a `Late` while dagpu is at work."""
    return value(0).map(lambda _: Late(late)).map(lambda _: None)


def at_once(do: Program, during: Callable[[Program], object]) -> None:
    """A finaliser that does something while `during` is at work. Its error, which Python would only print."""
    errors: list[Exception] = []

    def late() -> None:
        try:
            do()
        except Exception as error:
            errors.append(error)

    during(late)
    if errors:
        raise errors[0]


def noted_down(do: Program, during: Callable[[Program], object]) -> None:
    """Return a case for the same operation, done later."""
    noted: SimpleQueue[Program] = SimpleQueue()
    during(lambda: noted.put(do))
    noted.get_nowait()()


def in_a_scope(how: Callable[[Program, Callable[[Program], object]], None]) -> None:
    """A finaliser that records something while something else is recorded."""
    t = new()
    with CudaGraph.scope(device("host").stream()) as scope:
        late = partial(scope.record, scale(t.borrow_mut().partition(TILE), 2.0))
        how(late, lambda late: scope.record(zip_ops(scale(t.borrow_mut().partition(TILE), 2.0), dropping(late))))


OUTSIDE = "put the work into a queue.SimpleQueue, and do it outside"


# ---- finalisers


case(
    lambda: at_once(lambda: ones((2,)).sync(), lambda late: dropping(late).sync()),
    (OUTSIDE, lambda: noted_down(lambda: ones((2,)).sync(), lambda late: dropping(late).sync())),
)
case(
    lambda: at_once(scale.compile, lambda late: dropping(late).sync()),
    (OUTSIDE, lambda: noted_down(scale.compile, lambda late: dropping(late).sync())),
    simulated=True,
)
case(lambda: in_a_scope(at_once), (OUTSIDE, lambda: in_a_scope(noted_down)))
