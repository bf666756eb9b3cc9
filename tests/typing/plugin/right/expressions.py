"""Reads, moves and names made anew inside of expressions of every kind."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from threading import Thread
from typing import ParamSpec, TypeVar

import trio

from dagpu import SharedTensor, Tensor, TensorRef, dup, f32, ones, zeros, zip_ops
from tests.typing.plugin.kernels import add, async_vector, eat, maybe, saxpy, scale, total, vector, yes

P = ParamSpec("P")
R = TypeVar("R")


def in_a_format() -> None:
    t = vector()
    print(f"{t.shape} {t!r} {t.nbytes:>8} {eat(t).shape}")


def in_an_index() -> None:
    t = vector()
    print([0, 1][t.ndim], [0, 1][: t.ndim], eat(t).shape[0])


def read_then_moved_in_one_call() -> None:
    t = vector()
    print(t.size, total(t.borrow()), eat(t).size)


def read_then_moved_in_one_assignment() -> None:
    t = vector()
    shape, t = t.shape, t.reshape((2, 4))
    print(shape, t.shape)


def moved_and_made_anew_in_one_assignment() -> None:
    t = vector()
    t, s = vector(), t.share()
    print(t.shape, s.shape)


def itself_or_reshaped() -> None:
    t = vector()
    t = t if t.ndim == 2 else t.reshape((2, 4))
    t = t.reshape((8,)) if yes() else t
    eat(t)


def walrus_names_anew() -> None:
    t = vector()
    print((t := t.reshape((2, 4))).shape, t.shape)
    eat(t)


def copy_under_the_same_name() -> None:
    t = vector()
    t = dup(t.borrow()).sync()
    t = add(zeros((8,)).partition((4,)), t.borrow(), t.borrow()).first().unpartition().sync()
    eat(t)


def kernel_under_the_same_name() -> None:
    t = vector()
    for _ in range(3):
        t = saxpy(t.partition((4,)), 1.0, ones((8,))).first().unpartition().sync()
    eat(t)


def op_under_the_same_name() -> None:
    t = vector()
    op = dup(t.borrow())
    op = op.then(lambda copy: scale(copy.partition((4,)), 2.0).first().unpartition())
    print(op.to_host().sync())
    eat(t)


def message_of_an_assertion() -> None:
    t = vector()
    assert t.ndim == 1, eat(t).shape
    eat(t)


def over_a_display() -> None:
    a, b = vector(), vector()
    for t in (a, b):
        print(t.shape, total(t.borrow()))
    eat(a)
    eat(b)


def over_a_display_with_names() -> None:
    a, b = vector(), vector()
    for name, t in zip("ab", (a, b), strict=True):
        print(name, t.shape, t.nbytes, total(t.borrow()))
    for name, t in (("a", a), ("b", b)):
        print(name, t.shape)
    eat(a)
    eat(b)


def over_a_display_in_a_comprehension() -> None:
    a, b = vector(), vector()
    print([t.shape for t in (a, b)], sum(t.nbytes for t in [a, b]), all(t.ndim == 1 for t in (a, b)))
    eat(a)
    eat(b)


def over_a_display_to_write() -> None:
    a, b, x = vector(), vector(), vector().share()
    for t in (a, b):
        saxpy(t.borrow_mut().partition((4,)), 1.0, x).sync()
    print(total(a.borrow()), total(b.borrow()))


def over_a_display_to_move() -> None:
    a, b = vector(), vector()
    shared = [t.share() for t in (a, b)]
    print([s.shape for s in shared])


def largest_of_a_list() -> None:
    tensors = [vector(), vector()]
    best = max(tensors, key=lambda t: total(t.borrow()))
    print(best.shape, len(tensors))


def lists_are_cut() -> None:
    tensors = [vector() for _ in range(4)]
    head, tail = tensors[0], tensors[1:]
    print(head.shape, len(tail), [t.shape for t in reversed(tail)])
    del tensors[0]
    tensors.insert(0, vector())
    print(len(tensors))


def shared_by_name() -> None:
    weights = {name: vector() for name in ("a", "b")}
    shared = {name: w.share() for name, w in weights.items()}
    print({name: s.shape for name, s in shared.items()})


def conditional_borrow() -> None:
    t = vector()
    read = t.borrow() if yes() else None
    if read is not None:
        total(read)
    eat(t)


def optional_taken_by_a_walrus() -> None:
    class Slot:
        def __init__(self) -> None:
            self.t = maybe()

        def take(self) -> Tensor[f32] | None:
            if (t := self.t) is not None:
                self.t = None
            return t

    slot = Slot()
    first, second = slot.take(), slot.take()
    print(first, second)


def base_class_takes_it() -> None:
    class Owner:
        def __init__(self, t: Tensor[f32]) -> None:
            self.t = t

    class Named(Owner):
        def __init__(self, name: str, t: Tensor[f32]) -> None:
            self.shape = t.shape
            super().__init__(t)
            self.name = f"{name} {self.t.shape}"

        @classmethod
        def fresh(cls) -> "Named":
            return cls("fresh", vector())

    print(Named.fresh().name)


def given_to_a_thread() -> None:
    done: list[tuple[int, ...]] = []

    def work(t: Tensor[f32]) -> None:
        done.append(eat(t).shape)

    t = vector()
    thread = Thread(target=work, args=(t,))
    thread.start()
    thread.join()
    print(done)


def given_to_a_pool() -> None:
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(eat, vector()) for _ in range(2)]
        print([future.result().shape for future in futures], list(pool.map(eat, [vector(), vector()])))


async def given_to_a_worker_thread() -> None:
    t = await async_vector()
    s = await trio.to_thread.run_sync(eat, t)
    print(s.shape)


def decorated_with_wraps() -> None:
    def logged(f: Callable[P, R]) -> Callable[P, R]:
        @wraps(f)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            print("calling")
            return f(*args, **kwargs)

        return wrapper

    @logged
    def measure(t: Tensor[f32], read: TensorRef[f32]) -> int:
        return eat(t).size + read.size

    t, u = vector(), vector()
    print(measure(t, u.borrow()))
    eat(u)


def cached_function() -> None:
    @cache
    def table(n: int) -> SharedTensor[f32]:
        return ones((n,)).share().sync()

    print(table(4).shape, table(4).shape, table(8).shape)


def iterator_class() -> None:
    class Batches:
        def __init__(self, count: int) -> None:
            self.left = count

        def __iter__(self) -> Iterator[Tensor[f32]]:
            return self

        def __next__(self) -> Tensor[f32]:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return vector()

    for batch in Batches(2):
        eat(batch)
    print(next(Batches(1)).shape, [eat(batch).size for batch in Batches(2)])


def container_class() -> None:
    class Weights:
        def __init__(self) -> None:
            self._tensors = {"a": vector()}

        def __getitem__(self, name: str) -> TensorRef[f32]:
            return self._tensors[name].borrow()

        def __setitem__(self, name: str, t: Tensor[f32]) -> None:
            self._tensors[name] = t

        def __contains__(self, name: str) -> bool:
            return name in self._tensors

        def pop(self, name: str) -> Tensor[f32]:
            return self._tensors.pop(name)

    weights = Weights()
    weights["b"] = vector()
    print(total(weights["a"]), total(weights["b"]), "a" in weights)
    eat(weights.pop("a"))
    weights["a"] = vector()
    eat(weights.pop("a"))


def runs_of_a_list() -> None:
    tensors = [vector(), vector()]
    arrays = zip_ops(*[t.to_host() for t in tensors]).sync()
    print(len(arrays))


def same_tensor_is_none_of_them() -> None:
    a, b = vector(), vector()
    print(a is b, a is not b, a is None)
    eat(a)
    eat(b)


def numbers_go_through_unharmed() -> None:
    n, text, pair = 3, "x", (1, 2)
    m, other, same = n, text, pair
    print(n, m, text, other, pair, same, [n, n], {text: pair})


def dead_code() -> None:
    t = vector()
    eat(t)
    return
    print(t.shape)


def retried_until_it_works() -> None:
    t, left = vector(), 2
    while True:
        try:
            eat(t)
            left -= 1
            if left:
                raise RuntimeError("for a test")
            break
        except RuntimeError:
            t = vector()


def made_anew_in_finally() -> None:
    t = vector()
    for _ in range(2):
        try:
            eat(t)
        finally:
            t = vector()
    print(t.shape)


def returned_from_each_arm() -> None:
    def make(which: int) -> Tensor[f32]:
        t = vector()
        try:
            if which == 0:
                return t
            if which == 1:
                return t.reshape((2, 4))
            return dup(t).sync()
        except RuntimeError:
            return vector()
        else:
            return t
        finally:
            print("made")

    print([make(which).shape for which in range(3)])
