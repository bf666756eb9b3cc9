"""Handles in lists, dictionaries, tuples and queues, moved and made anew one by one."""

from collections import deque

from dagpu import SharedTensor, Tensor, f32, ones, zeros, zip_ops
from tests.typing.plugin.kernels import eat, saxpy, scale, total, vector


def dictionary_of_weights() -> None:
    weights = {name: vector() for name in ("a", "b")}
    x = vector().share()
    for name, w in weights.items():
        saxpy(w.borrow_mut().partition((4,)), 1.0, x).sync()
        print(name)
    print({name: total(w.borrow()) for name, w in weights.items()})


def dictionary_is_updated() -> None:
    weights = {name: vector() for name in ("a", "b")}
    for name in list(weights):
        weights[name] = weights[name].reshape((2, 4))
    print([w.shape for w in weights.values()])


def dictionary_is_emptied() -> None:
    weights = {name: vector() for name in ("a", "b")}
    while weights:
        _, w = weights.popitem()
        eat(w)


def cache_by_shape() -> None:
    cache: dict[int, SharedTensor[f32]] = {}
    for n in (4, 8, 4):
        if n not in cache:
            cache[n] = ones((n,)).share().sync()
        print(cache[n].shape)


def list_by_index() -> None:
    tensors = [vector(), vector()]
    eat(tensors[0])
    eat(tensors[1])
    tensors[0] = vector()
    print(tensors[0].shape)


def list_by_variable_index() -> None:
    tensors = [vector() for _ in range(4)]
    for index in range(4):
        total(tensors[index].borrow())
    for index in range(4):
        eat(tensors[index])


def ring_of_buffers() -> None:
    ring = deque([vector(), vector(), vector()])
    for _ in range(5):
        t = ring.popleft()
        scale(t.borrow_mut().partition((4,)), 2.0).sync()
        ring.append(t)
    print([total(t.borrow()) for t in ring])


def pool_of_buffers() -> None:
    pool = [vector(), vector()]

    def acquire() -> Tensor[f32]:
        return pool.pop() if pool else vector()

    def release(t: Tensor[f32]) -> None:
        pool.append(t)

    a, b, c = acquire(), acquire(), acquire()
    release(b)
    release(a)
    release(c)
    print(len(pool))


def tuple_is_unpacked() -> None:
    a, b = vector(), vector()
    pair = (a, b)
    first, second = pair
    eat(first)
    eat(second)


def nested_tuple_is_unpacked() -> None:
    (a, b), c = (vector(), vector()), vector()
    eat(c)
    eat(a)
    eat(b)


def star_is_unpacked() -> None:
    first, *rest = [vector(), vector(), vector()]
    eat(first)
    for t in rest:
        eat(t)


def head_and_tail() -> None:
    first, *_, last = [vector(), vector(), vector()]
    eat(first)
    eat(last)


def result_is_unpacked() -> None:
    a, b = zip_ops(zeros((8,)), ones((8,))).sync()
    eat(a)
    eat(b)


def swapped() -> None:
    a, b = vector(), vector().reshape((2, 4))
    a, b = b, a
    print(a.shape, b.shape)
    eat(a)
    eat(b)


def rotated() -> None:
    a, b, c = vector(), vector(), vector()
    a, b, c = b, c, a
    eat(a)
    eat(b)
    eat(c)


def swapped_after_one_was_made_anew() -> None:
    a, b = vector(), vector()
    eat(a)
    a = vector()
    a, b = b, a
    print(a.shape, b.shape)


def passed_with_a_star() -> None:
    def use(*tensors: Tensor[f32]) -> int:
        return sum(t.size for t in tensors)

    print(use(vector(), vector()), use(*[vector() for _ in range(3)]))


def passed_with_two_stars() -> None:
    def use(**tensors: Tensor[f32]) -> int:
        return sum(t.size for t in tensors.values())

    print(use(a=vector(), b=vector()), use(c=vector()))
