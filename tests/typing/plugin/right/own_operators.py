"""Operators of classes of the program that only look at an operand, or give a tensor back."""

from collections.abc import Iterator

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


class Looks:
    """Every operator looks at its operand."""

    def __init__(self) -> None:
        self.t = vector()

    def __add__(self, x: Tensor[f32]) -> int:
        return x.size

    def __iadd__(self, x: Tensor[f32]) -> "Looks":
        print(x.shape)
        return self

    def __contains__(self, x: Tensor[f32]) -> bool:
        return x.size > 3

    def __eq__(self, other: object) -> bool:
        return other is self

    def __hash__(self) -> int:
        return 1

    def __setitem__(self, n: int, x: Tensor[f32]) -> None:
        print(n, x.shape)

    def __getitem__(self, n: int) -> Tensor[f32]:
        return vector()

    def __len__(self) -> int:
        return self.t.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.t.shape)

    def __sub__(self, r: TensorRef[f32]) -> float:
        return total(r)

    def __ior__(self, x: Tensor[f32]) -> "Looks":
        eat(self.t)
        self.t = x
        return self


def looked_at() -> None:
    t, x = Looks(), vector()
    print(t + x, x in t, x not in t, t == x, t != x, x is None)
    t += x
    t[0] = x
    eat(x)


def of_the_object() -> None:
    t = Looks()
    for n in t:
        print(n, len(t), bool(t), 1 if t else 2)
    print(t - t.t.borrow(), [n for n in t if t])
    eat(t.t)


def items() -> None:
    t = Looks()
    eat(t[0])
    eat(t[0])


def replaced_in_place() -> None:
    t = Looks()
    t |= vector()
    t |= vector()
    eat(t.t)


class Holder:
    """Operators give the tensors back that it holds, or new ones."""

    def __init__(self, t: Tensor[f32], u: Tensor[f32]) -> None:
        self.t = t
        self.u = u
        self.n = 3

    def __getitem__(self, n: int) -> Tensor[f32]:
        return self.t

    def __neg__(self) -> Tensor[f32]:
        return self.u

    def __add__(self, n: int) -> "Holder":
        return Holder(vector(), vector())

    def __iadd__(self, n: int) -> "Holder":
        return self

    def __matmul__(self, x: Tensor[f32]) -> Tensor[f32]:
        return x

    def __xor__(self, n: int) -> Tensor[f32]:
        return vector()

    def __invert__(self) -> Tensor[f32]:
        given, self.t = self.t, vector()
        return given

    def __len__(self) -> int:
        return self.n

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Tensor[f32]]:
        return iter([self.t, self.u])

    def new_ones(self) -> Iterator[Tensor[f32]]:
        yield vector()

    def replaced(self) -> Iterator[Tensor[f32]]:
        yield self.t
        self.t = vector()


class Once:
    """An iterator over one tensor, which stays in it."""

    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t
        self.left = 1

    def __iter__(self) -> "Once":
        return self

    def __next__(self) -> Tensor[f32]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.t


def given_back() -> None:
    h = Holder(vector(), vector())
    print(h[0].shape, (-h).shape, [t.shape for t in h], total(h[0].borrow()))
    t = h[0]
    print(t.shape, h.t.shape)
    eat(h[0])
    eat(-h)


def new_ones() -> None:
    h = Holder(vector(), vector())
    eat(h ^ 1)
    eat(h ^ 1)
    eat(h @ vector())
    eat(h @ vector())
    eat(~h)
    eat(~h)
    eat((h + 1).t)
    eat((h + 1).t)
    for t in h.new_ones():
        eat(t)
    for t in h.replaced():
        eat(t)
    eat(h.t)


def itself() -> None:
    h = Holder(vector(), vector())
    h += 1
    with h as same:
        eat(same.t)
    eat(h.u)


def each_of_them_once() -> None:
    h = Holder(vector(), vector())
    for t in h:
        eat(t)
    o = Once(vector())
    for t in o:
        eat(t)


class Entered:
    """Its block gets the tensor that it keeps."""

    def __init__(self) -> None:
        self.t = vector()

    def __enter__(self) -> Tensor[f32]:
        return self.t

    def __exit__(self, *_: object) -> None:
        pass


def borrow_of_what_is_entered(e: Entered) -> TensorRef[f32]:
    with e as t:
        return t.borrow()


def made_where_it_is_asked() -> None:
    t, u, v = vector(), vector(), vector()
    print(len(Holder(t, u)))
    for w in Once(v):
        eat(w)


def formatted_in_place() -> None:
    t = vector()
    text = "%s"
    text %= t
    print(text)
    eat(t)


def formatted_in_place_with_others(text: str = "%s %s") -> str:
    t = vector()
    text %= (t, t.borrow())
    eat(t)
    return text
