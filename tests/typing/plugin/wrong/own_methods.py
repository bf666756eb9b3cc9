"""What methods of the module take out of their object, give out of it and lend, and what is used of it afterwards."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import ClassVar, Generic, TypeVar

from dagpu import SharedTensor, Tensor, TensorRef, f32, zeros
from tests.typing.plugin.kernels import eat, saxpy, vector, yes

T = TypeVar("T")


def look(t: TensorRef[f32]) -> None:
    print(t.shape)


class Props:
    def __init__(self) -> None:
        self._t = vector()
        self.kept: list[TensorRef[f32]] = []

    @property
    def shared(self) -> SharedTensor[f32]:
        return self._t.share()

    @property
    def ref(self) -> TensorRef[f32]:
        return self._t.borrow()

    @property
    def t(self) -> Tensor[f32]:
        return self._t

    @t.setter
    def t(self, new: Tensor[f32]) -> None:
        self._t = new

    @cached_property
    def once(self) -> SharedTensor[f32]:
        return self._t.share()

    @cached_property
    def made(self) -> Tensor[f32]:
        return vector()

    def keep(self) -> None:
        t = vector()
        self.kept.append(t.borrow())  # E: dagpu-borrow-escape


def property_twice() -> None:
    p = Props()
    print(p.shared, p.shared)  # E: dagpu-use-after-move


def property_ref() -> None:
    p = Props()
    r = p.ref
    eat(p._t)  # E: dagpu-conflicting-borrow  # noqa: SLF001
    look(r)


def property_get() -> None:
    p = Props()
    eat(p.t)
    print(p.t.shape)  # E: dagpu-use-after-move


def cached_made() -> None:
    p = Props()
    eat(p.made)
    eat(p.made)  # E: dagpu-use-after-move


@cache
def weights() -> Tensor[f32]:
    return vector()


@lru_cache(maxsize=8)
def table(n: int) -> Tensor[f32]:
    return zeros((n,)).sync()


def cached_function() -> None:
    eat(weights())
    eat(weights())  # E: dagpu-use-after-move


def cached_function_args() -> None:
    eat(table(8))
    eat(table(8))  # E: dagpu-use-after-move


class Base:
    def __init__(self) -> None:
        self.t = vector()

    def drain(self) -> None:
        eat(self.t)

    def size(self) -> int:
        return self.t.size


class Derived(Base):
    def drain(self) -> None:
        super().drain()
        print(self.t.shape)  # E: dagpu-use-after-move

    def twice(self) -> None:
        self.drain()
        self.size()  # E: dagpu-use-after-move


class Stack(Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []

    def push(self, x: T) -> None:
        self.items.append(x)

    def pop(self) -> T:
        return self.items.pop()

    def peek(self) -> T:
        return self.items[-1]


def generic_stack_peek() -> None:
    s = Stack[Tensor[f32]]()
    s.push(vector())
    eat(s.peek())
    eat(s.peek())  # E: dagpu-use-after-move


class Bag:
    def __init__(self) -> None:
        self.ts = [vector(), vector()]
        self.d = {"a": vector()}

    def __getitem__(self, i: int) -> Tensor[f32]:
        return self.ts[i]

    def __iter__(self) -> Iterator[Tensor[f32]]:
        return iter(self.ts)

    def __len__(self) -> int:
        return len(self.ts)

    def first(self) -> Tensor[f32]:
        return self.ts[0]

    def named(self, name: str) -> Tensor[f32]:
        return self.d[name]


def bag_loop() -> None:
    bag = Bag()
    for t in bag:
        eat(t)
    for t in bag:
        eat(t)  # E: dagpu-use-after-move


def bag_first() -> None:
    bag = Bag()
    eat(bag.first())
    eat(bag.first())  # E: dagpu-use-after-move


class LayerLike:
    def __init__(self) -> None:
        self.w = vector()

    def __call__(self, x: Tensor[f32]) -> Tensor[f32]:
        p, *_ = saxpy(x.partition((4,)), 1.0, self.w.borrow()).sync()
        return p.unpartition()

    def __matmul__(self, x: Tensor[f32]) -> Tensor[f32]:
        x.share()
        return vector()

    def __iadd__(self, x: Tensor[f32]) -> "LayerLike":
        x.share()
        return self

    def __contains__(self, x: Tensor[f32]) -> bool:
        return x.size > 3

    def __enter__(self) -> TensorRef[f32]:
        return self.w.borrow()

    def __exit__(self, *a: object) -> None: ...


def entered() -> None:
    layer = LayerLike()
    with layer as r:
        eat(layer.w)  # E: dagpu-conflicting-borrow
        look(r)


def recursive(t: Tensor[f32], n: int) -> None:
    if n:
        recursive(t, n - 1)
        print(t.shape)  # E: dagpu-use-after-move
    else:
        eat(t)


class Made:
    def __init__(self, t: Tensor[f32]) -> None:
        self.t = t

    @classmethod
    def of(cls, t: Tensor[f32]) -> "Made":
        return cls(t)

    @staticmethod
    def give(t: Tensor[f32]) -> None:
        eat(t)

    def fluent(self) -> "Made":
        eat(self.t)
        return self


def fluent() -> None:
    m = Made(vector())
    m.fluent().fluent()  # E: dagpu-use-after-move


@dataclass
class Post:
    t: Tensor[f32]
    s: SharedTensor[f32] | None = None

    def __post_init__(self) -> None:
        self.s = self.t.share()


def post_init() -> None:
    p = Post(vector())
    print(p.t.shape)  # E: dagpu-use-after-move


class OnClass:
    table: ClassVar[Tensor[f32]] = vector()
    refs: ClassVar[list[TensorRef[f32]]] = []

    @classmethod
    def spend(cls) -> None:
        eat(cls.table)

    @classmethod
    def look(cls) -> None:
        print(cls.table.shape)


def on_class() -> None:
    OnClass.spend()
    OnClass.look()  # E: dagpu-use-after-move


def on_class2() -> None:
    OnClass.spend()
    print(OnClass.table.shape)  # E: dagpu-use-after-move


LAST = vector()


def spend_last(really: bool) -> None:
    if really:
        eat(LAST)


def show_last(title: str) -> None:
    print(title, LAST.shape)


def after_a_function() -> None:
    spend_last(yes())
    show_last("last")  # E: dagpu-use-after-move


def recursive_run() -> None:
    recursive(vector(), 1)
