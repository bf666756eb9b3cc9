"""Operators of classes of the program are calls: of methods that move an operand, or an attribute, or give one back."""

from collections.abc import AsyncIterator, Iterator

from dagpu import Tensor, TensorRef, f32, ones
from tests.typing.plugin.kernels import add, eat, vector


class Box:
    """What is asked of it moves the tensor in it, or writes it."""

    def __init__(self) -> None:
        self.t = vector()

    def __len__(self) -> int:
        eat(self.t)
        return 1

    def __neg__(self) -> int:
        eat(self.t)
        return 1

    def __iter__(self) -> Iterator[int]:
        eat(self.t)
        return iter([1])

    def __sub__(self, r: TensorRef[f32]) -> int:
        add(self.t.borrow_mut().partition((4,)), r, ones((8,))).sync()
        return 1


class Total:
    """Every operator moves its operand."""

    def __add__(self, x: Tensor[f32]) -> int:
        eat(x)
        return 1

    def __rmul__(self, x: Box) -> int:
        eat(x.t)
        return 1

    def __iadd__(self, x: Tensor[f32]) -> "Total":
        eat(x)
        return self

    def __contains__(self, x: Tensor[f32]) -> bool:
        eat(x)
        return True

    def __lt__(self, x: Tensor[f32]) -> bool:
        eat(x)
        return True

    def __getitem__(self, x: Tensor[f32]) -> int:
        eat(x)
        return 1

    def __setitem__(self, n: int, x: Tensor[f32]) -> None:
        eat(x)

    def __matmul__(self, x: Tensor[f32]) -> int:
        eat(x)
        return 1


def added() -> None:
    t, x = Total(), vector()
    print(t + x)
    print(x.shape)  # E: dagpu-use-after-move


def multiplied_from_the_left() -> None:
    t, b = Total(), Box()
    print(b * t)
    print(b.t.shape)  # E: dagpu-use-after-move


def added_in_place() -> None:
    t, x = Total(), vector()
    t += x
    print(x.shape)  # E: dagpu-use-after-move


def asked() -> None:
    t, x = Total(), vector()
    print(x in t, 1 if x.shape else 2)  # E: dagpu-use-after-move


def compared_in_a_condition() -> None:
    t, x = Total(), vector()
    if t < x:
        print(x.shape)  # E: dagpu-use-after-move


def multiplied() -> None:
    t, x = Total(), vector()
    print(t @ x)
    print(x.shape)  # E: dagpu-use-after-move


def indexed() -> None:
    t, x = Total(), vector()
    print(t[x])
    print(x.shape)  # E: dagpu-use-after-move


def item_set() -> None:
    t, x = Total(), vector()
    t[0] = x
    print(x.shape)  # E: dagpu-use-after-move


def counted() -> None:
    b = Box()
    print(len(b))
    print(b.t.shape)  # E: dagpu-use-after-move


def negated() -> None:
    b = Box()
    print(-b)
    print(b.t.shape)  # E: dagpu-use-after-move


def asked_whether_it_is_true() -> None:
    b = Box()
    if not b:
        return
    print(b.t.shape)  # E: dagpu-use-after-move


def gone_over() -> None:
    b = Box()
    for n in b:
        print(n)
    print(b.t.shape)  # E: dagpu-use-after-move


def written_while_lent() -> None:
    b = Box()
    print(b - b.t.borrow())  # E: dagpu-conflicting-borrow


class Counter:
    """An iterator, which is equal to anything once, and true once."""

    def __init__(self) -> None:
        self.t = vector()

    def __iter__(self) -> "Counter":
        return self

    def __next__(self) -> int:
        eat(self.t)
        raise StopIteration

    def __bool__(self) -> bool:
        eat(self.t)
        return True

    def __eq__(self, other: object) -> bool:
        eat(self.t)
        return other is self

    def __hash__(self) -> int:
        eat(self.t)
        return 1

    def __float__(self) -> float:
        eat(self.t)
        return 1.0


class Lender:
    """What is asked of it borrows the tensor in it."""

    def __init__(self) -> None:
        self.t = vector()

    def __neg__(self) -> TensorRef[f32]:
        return self.t.borrow()

    def __call__(self) -> TensorRef[f32]:
        return self.t.borrow()


def gone_over_as_its_own_iterator(c: Counter) -> None:
    for n in c:
        print(n)
    print(c.t.shape)  # E: dagpu-use-after-move


def unpacked(box: Box) -> None:
    (n,) = box
    print(n, box.t.shape)  # E: dagpu-use-after-move


def made_a_list(box: Box) -> None:
    print(list(box), box.t.shape)  # E: dagpu-use-after-move


def unequal(c: Counter) -> None:
    print(c != 3, c.t.shape)  # E: dagpu-use-after-move


def as_a_key(c: Counter) -> None:
    print(hash(c), c.t.shape)  # E: dagpu-use-after-move


def as_a_number(c: Counter) -> None:
    print(float(c), c.t.shape)  # E: dagpu-use-after-move


def and_then(c: Counter) -> None:
    print(c and 1, c.t.shape)  # E: dagpu-use-after-move


def borrow_by_a_sign() -> TensorRef[f32]:
    lender = Lender()
    return -lender  # E: dagpu-borrow-escape


def borrow_by_a_call() -> TensorRef[f32]:
    lender = Lender()
    return lender()  # E: dagpu-borrow-escape


class Holder:
    """Every operator gives the tensor back that it holds."""

    def __init__(self) -> None:
        self.t = vector()
        self.u = vector()

    def __getitem__(self, n: int) -> Tensor[f32]:
        return self.t

    def __neg__(self) -> Tensor[f32]:
        return self.t

    def __add__(self, n: int) -> Tensor[f32]:
        return self.t

    def __rsub__(self, n: int) -> Tensor[f32]:
        return self.t

    def __lt__(self, n: int) -> Tensor[f32]:
        return self.t

    def __abs__(self) -> Tensor[f32]:
        return self.t

    def __enter__(self) -> Tensor[f32]:
        return self.t

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> Tensor[f32]:
        return self.t

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Tensor[f32]]:
        yield self.t

    async def later(self) -> Tensor[f32]:
        return self.t

    def __iter__(self) -> Iterator[Tensor[f32]]:
        return iter([self.t, self.u])

    def each(self) -> Iterator[Tensor[f32]]:
        yield self.t
        yield self.u

    def each_of_them(self) -> Iterator[Tensor[f32]]:
        yield from (self.t, self.u)


class Items:
    """To set an item moves the tensor in it."""

    def __init__(self) -> None:
        self.t = vector()

    def __getitem__(self, n: int) -> int:
        return n

    def __setitem__(self, n: int, value: int) -> None:
        eat(self.t)


class Searched:
    """`in` goes over it, because it has no `__contains__`."""

    def __init__(self) -> None:
        self.t = vector()

    def __iter__(self) -> Iterator[int]:
        eat(self.t)
        return iter([1])


class Once:
    """An iterator over one tensor, which stays in it."""

    def __init__(self) -> None:
        self.t = vector()
        self.left = 1

    def __iter__(self) -> "Once":
        return self

    def __next__(self) -> Tensor[f32]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.t


def item_twice() -> None:
    h = Holder()
    eat(h[0])
    eat(h[0])  # E: dagpu-use-after-move


def item_and_attribute() -> None:
    h = Holder()
    eat(h[0])
    eat(h.t)  # E: dagpu-use-after-move


def item_by_another_name() -> None:
    h = Holder()
    t = h[0]
    eat(t)
    eat(h.t)  # E: dagpu-use-after-move


def item_consumed() -> None:
    h = Holder()
    h[0].share()
    eat(h.t)  # E: dagpu-use-after-move


def item_lent_and_moved() -> None:
    h = Holder()
    r = h[0].borrow()
    eat(h.t)  # E: dagpu-conflicting-borrow
    print(r.shape)


def sign() -> None:
    h = Holder()
    eat(-h)
    eat(h.t)  # E: dagpu-use-after-move


def sum_of_both() -> None:
    h = Holder()
    eat(h + 1)
    eat(h.t)  # E: dagpu-use-after-move


def difference_from_the_right() -> None:
    h = Holder()
    eat(1 - h)
    eat(h.t)  # E: dagpu-use-after-move


def comparison() -> None:
    h = Holder()
    eat(h < 1)
    eat(h.t)  # E: dagpu-use-after-move


def function_of_python() -> None:
    h = Holder()
    eat(abs(h))
    eat(h.t)  # E: dagpu-use-after-move


def added_in_place_by_the_plain_operator() -> None:
    h = Holder()
    x: Holder | Tensor[f32]
    x = h
    x += 2
    eat(x)
    eat(h.t)  # E: dagpu-use-after-move


def entered() -> None:
    h = Holder()
    with h as t:
        eat(t)
    eat(h.t)  # E: dagpu-use-after-move


async def entered_asynchronously(h: Holder) -> None:
    async with h as t:
        t.share()
    h.t.share()  # E: dagpu-use-after-move


async def awaited(h: Holder) -> None:
    (await h.later()).share()
    h.t.share()  # E: dagpu-use-after-move


async def gone_over_asynchronously(h: Holder) -> None:
    async for t in h:
        t.share()
    h.t.share()  # E: dagpu-use-after-move


def item_changed_in_place() -> None:
    i = Items()
    i[0] += 1
    print(i.t.shape)  # E: dagpu-use-after-move


def searched_item_by_item() -> None:
    c = Searched()
    print(1 in c)
    print(c.t.shape)  # E: dagpu-use-after-move


def gone_over_by_a_list() -> None:
    h = Holder()
    for t in h:
        eat(t)
    eat(h.u)  # E: dagpu-use-after-move


def gone_over_by_a_generator() -> None:
    h = Holder()
    for t in h.each():
        eat(t)
    eat(h.u)  # E: dagpu-use-after-move


def gone_over_by_another_one() -> None:
    h = Holder()
    for t in h.each_of_them():
        eat(t)
    eat(h.u)  # E: dagpu-use-after-move


def gone_over_in_a_comprehension() -> None:
    h = Holder()
    print([t.share() for t in h])
    eat(h.t)  # E: dagpu-use-after-move


def gone_over_once() -> None:
    o = Once()
    for t in o:
        eat(t)
    eat(o.t)  # E: dagpu-use-after-move


def next_one() -> None:
    o = Once()
    eat(next(o))
    eat(o.t)  # E: dagpu-use-after-move


class Node:
    """A tensor in a chain: `+=` goes on to the node behind."""

    def __init__(self, behind: "Node | None" = None) -> None:
        self.t = vector()
        self.behind = behind or self

    def __iadd__(self, n: int) -> "Node":
        return self.behind


def went_on_in_place() -> None:
    first = Node(Node())
    node = first
    node += 1
    eat(node.t)
    eat(first.t)
    eat(first.behind.t)  # E: dagpu-use-after-move
