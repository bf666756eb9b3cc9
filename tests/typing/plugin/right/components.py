"""Components of tuples and items of lists under several names, each used while it is there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import trio

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import async_vector, eat, no, saxpy, total, vector, yes


class Two(NamedTuple):
    """Two tensors."""

    first: Tensor[f32]
    second: Tensor[f32]


@dataclass
class Box:
    """Two tensors, of which each may be replaced."""

    first: Tensor[f32]
    second: Tensor[f32]


class Named(NamedTuple):
    """A tensor and its name."""

    name: str
    tensor: Tensor[f32]


def items_are_replaced() -> None:
    ts = [vector() for _ in range(3)]
    for i, t in enumerate(ts):
        ts[i] = t.reshape((2, 4))
    for t in ts:
        print(t.shape)


def list_is_emptied() -> None:
    ts = [vector() for _ in range(3)]
    while ts:
        eat(ts.pop())
    ts = [vector()]
    for t in ts:
        eat(t)
    ts.clear()
    for t in ts:
        print(t.shape)


def components_are_looked_at() -> None:
    pair = (vector(), vector())
    a, b = pair
    print(a.shape, pair[0].shape, pair[-1].shape, b.shape)
    x = pair[0]
    print(a.shape, x.shape)
    for t in pair:
        print(t.shape)


def item_gets_a_name() -> None:
    ts = [vector(), vector()]
    first = ts[0]
    print(first.shape)
    for t in ts:
        print(total(t.borrow()))


def names_are_swapped() -> None:
    a, b = vector(), vector()
    for _ in range(3):
        a, b = b, a
        print(a.shape, b.shape)
    eat(a)
    eat(b)


def named_tuple_is_swapped() -> None:
    two = Two(vector(), vector())
    two = Two(two.second, two.first)
    eat(two.first)
    eat(two.second)


def object_under_two_names() -> None:
    box = Box(vector(), vector())
    other = box
    eat(other.first)
    other.first = vector()
    print(box.first.shape)
    box.second = vector()
    print(other.second.shape)


def values_are_replaced() -> None:
    ts = {"a": vector(), "b": vector()}
    for k, t in ts.items():
        ts[k] = t.reshape((2, 4))
    for t in ts.values():
        print(t.shape)


def kernel_result_is_unpacked() -> None:
    y, x = vector(), vector()
    for _ in range(3):
        p, _, x = saxpy(y.partition((4,)), 1.0, x).sync()
        y = p.unpartition()
    print(y.shape)


def one_path_moves_and_leaves() -> None:
    if yes():
        pair = (vector(), vector())
        a, b = pair
        eat(b)
        print(pair[0].shape)
        return
    a = vector()
    eat(a)


def one_path_shares_and_leaves() -> None:
    pair = (vector(), vector())
    a = vector()
    if no():
        a, b = pair
        print(b.shape)
        return
    eat(a)
    print(pair[0].shape)


def zipped_lists() -> None:
    for a, b in zip([vector(), vector()], [vector(), vector()], strict=True):
        eat(a)
        print(b.shape)
        eat(b)


def zipped_tuples() -> None:
    x, y = vector(), vector()
    for a, b in zip((x,), (y,), strict=True):
        eat(a)
        print(b.shape)
    print(y.shape)


def pairs_are_rebuilt() -> None:
    layers = [(vector(), vector()) for _ in range(3)]
    new = []
    for w, b in layers:
        new.append((w.reshape((2, 4)), b))
    layers = new
    for w, b in layers:
        print(w.shape, b.shape)


def list_is_rebuilt() -> None:
    ts = [vector(), vector()]
    a, b = ts
    ts = [b, a]
    eat(ts[0])
    print(ts[1].shape)


def rest_is_used() -> None:
    triple = (vector(), vector(), vector())
    a, *rest = triple
    eat(a)
    for t in rest:
        print(t.shape)
    eat(rest[0])
    print(rest[1].shape, triple[2].shape)


def subject_is_a_display() -> None:
    match (vector(), vector()):
        case (a, b):
            eat(a)
            eat(b)


def captured_and_looked_at() -> None:
    two = Two(vector(), vector())
    match two:
        case Two(first=a):
            print(a.shape)
    eat(two.first)


def use(a: TensorRef[f32], b: TensorRef[f32]) -> float:
    return total(a) + total(b)


def loans_as_star_arguments() -> None:
    pair = (vector(), vector())
    refs = (pair[0].borrow(), pair[1].borrow())
    print(use(*refs), use(*refs), pair[0].shape)


def look(*ts: Tensor[f32]) -> None:
    for t in ts:
        print(t.shape)


def looked_at_by_star_arguments() -> None:
    pair = (vector(), vector())
    look(*pair)
    look(*pair)
    print(*pair)
    print(pair[0].shape)


def shared_handle_under_two_names() -> None:
    a = b = vector().share()
    print(a.shape, b.shape)
    c = d = 1
    print(c, d)


def pair_is_replaced_in_a_loop() -> None:
    pair = (vector(), vector())
    for _ in range(2):
        a, b = pair
        print(a.shape, b.shape)
        pair = (vector(), vector())
        eat(a)


def best_of_a_list() -> None:
    best = None
    for t in [vector(), vector()]:
        if best is None or t.ndim > best.ndim:
            best = t
    assert best is not None
    eat(best)


def items_are_kept() -> None:
    ts = [vector(), vector()]
    kept = [t for t in ts if t.ndim]
    print([t.shape for t in kept], [t.shape for t in ts])


def items_are_shared() -> None:
    ts = [vector(), vector()]
    shared = [t.share() for t in ts]
    print([s.shape for s in shared])


def list_is_mapped() -> None:
    ts = [vector(), vector()]
    ts = [t.reshape((2, 4)) for t in ts]
    ts = [t.reshape((8,)) for t in ts]
    print([t.shape for t in ts])


async def items_are_sent() -> None:
    send, receive = trio.open_memory_channel[Tensor[f32]](2)
    ts = [await async_vector() for _ in range(2)]
    for t in ts:
        await send.send(t)
    async for t in receive:
        await t.to_host()
        break


def pairs() -> Iterator[tuple[Tensor[f32], Tensor[f32]]]:
    for _ in range(2):
        yield vector(), vector()


def pairs_of_a_generator() -> None:
    for a, b in pairs():
        eat(a)
        eat(b)
    for pair in pairs():
        a, b = pair
        eat(a)
        eat(pair[1])


def state_of_a_loop() -> None:
    state = (vector(), vector())
    for _ in range(2):
        y, x = state
        p, _, x = saxpy(y.partition((4,)), 1.0, x).sync()
        state = (p.unpartition(), x)
    print(state[0].shape)


def nested_unpacking() -> None:
    (a, b), c = (vector(), vector()), vector()
    eat(a)
    eat(b)
    eat(c)


def slice_of_a_list() -> None:
    ts = [vector(), vector()]
    for i in range(len(ts)):
        ts[i] = ts[i].reshape((2, 4))
    for t in ts[:1]:
        eat(t)
    print(ts[1].shape)


def list_is_refilled() -> None:
    ts = [vector(), vector()]
    for t in ts:
        eat(t)
    ts[:] = [vector()]
    print(ts[0].shape)


def first_item_is_replaced() -> None:
    ts = [vector(), vector()]
    for t in ts:
        eat(t)
    ts[0] = vector()
    print(ts[0].shape)


class Net:
    """Layers in a list and in a pair."""

    def __init__(self) -> None:
        self.layers = [vector(), vector()]
        self.pair = (vector(), vector())

    def close(self) -> None:
        for t in self.layers:
            eat(t)
        self.layers = []
        for t in self.layers:
            print(t.shape)

    def step(self) -> None:
        w, b = self.pair
        w = w.reshape((2, 4))
        self.pair = w, b
        print(self.pair[0].shape)


def attributes_of_a_net() -> None:
    net = Net()
    net.step()
    net.step()
    net.close()


def items_from_both_ends() -> None:
    ts = [vector(), vector()]
    eat(ts[0])
    ts[0] = vector()
    print(ts[0].shape)
    eat(ts[-1])
    ts[1] = vector()
    print(ts[-1].shape)


def named_tuple_with_another_tensor() -> None:
    named = Named("w", vector())
    eat(named.tensor)
    named = named._replace(tensor=vector())
    print(named.tensor.shape, named[1].shape)


def other_component_stays() -> None:
    pair = (vector(), vector())
    a, b = pair
    eat(a)
    print(b.shape, pair[1].shape)


def last_item_after_append() -> None:
    ts = [vector()]
    ts.append(vector())
    eat(ts[-1])
    print(ts[0].shape)
