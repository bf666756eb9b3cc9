"""Methods of the module that take, give and lend parts of their object, which gets others in time."""

from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from typing import ClassVar, Generic, TypeVar

from dagpu import SharedTensor, Tensor, TensorRef, f32, zeros
from tests.typing.plugin.kernels import eat, saxpy, total, vector

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


def property_set() -> None:
    p = Props()
    eat(p.t)
    p.t = vector()
    print(p.t.shape)


def cached_moves() -> None:
    p = Props()
    print(p.once, p.once)


def cached_made_right() -> None:
    p = Props()
    total(p.made.borrow())
    eat(p.made)


@cache
def weights() -> Tensor[f32]:
    return vector()


@lru_cache(maxsize=8)
def table(n: int) -> Tensor[f32]:
    return zeros((n,)).sync()


def cached_function_args_right() -> None:
    eat(table(8))
    eat(table(16))


def cached_function_right() -> None:
    total(weights().borrow())
    print(weights().shape)


class Stack(Generic[T]):
    def __init__(self) -> None:
        self.items: list[T] = []

    def push(self, x: T) -> None:
        self.items.append(x)

    def pop(self) -> T:
        return self.items.pop()

    def peek(self) -> T:
        return self.items[-1]


def generic_stack_pop() -> None:
    s = Stack[Tensor[f32]]()
    s.push(vector())
    s.push(vector())
    eat(s.pop())
    eat(s.pop())


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


def bag_items_right() -> None:
    bag = Bag()
    eat(bag[0])
    eat(bag[1])


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


def called_layer_right() -> None:
    layer, x = LayerLike(), vector()
    for _ in range(3):
        x = layer(x)
    print(x.shape)


def contains_right() -> None:
    layer, x = LayerLike(), vector()
    print(x in layer)
    print(x.shape)


def entered_right() -> None:
    layer = LayerLike()
    with layer as r:
        look(r)
    eat(layer.w)


def recursive_right(t: Tensor[f32], n: int) -> int:
    if n:
        return recursive_right(t, n - 1)
    return t.size


class Lazily:
    def __init__(self) -> None:
        self.t: Tensor[f32] | None = None

    def take(self) -> SharedTensor[f32]:
        assert self.t is not None
        s = self.t.share()
        self.t = None
        return s


def lazily_right() -> None:
    x = Lazily()
    x.t = vector()
    x.take()
    x.t = vector()
    x.take()


LAST = vector()
TABLE: Tensor[f32] = vector()


def show_last() -> None:
    print(LAST.shape)


def looks_at_the_module() -> None:
    show_last()
    show_last()
    total(LAST.borrow())


def renew() -> None:
    global TABLE
    eat(TABLE)
    TABLE = vector()


def renewed_by_a_function() -> None:
    renew()
    renew()
    print(TABLE.shape)


def local_of_the_same_name() -> None:
    TABLE = vector()  # noqa: N806  # hides the module's tensor
    renew()
    eat(TABLE)


class OnClass:
    table: ClassVar[Tensor[f32]] = vector()

    @classmethod
    def renew(cls) -> None:
        eat(cls.table)
        cls.table = vector()

    @classmethod
    def look(cls) -> None:
        print(cls.table.shape)


def on_class() -> None:
    OnClass.renew()
    OnClass.look()


def recursive_run() -> None:
    recursive_right(vector(), 1)
