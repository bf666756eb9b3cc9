"""Parts of an object that ends with the function, which are lent beyond it; borrows that an object keeps."""

from dataclasses import dataclass

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, vector


@dataclass
class Holder:
    t: Tensor[f32]
    name: str = ""


def local_attribute_borrowed() -> TensorRef[f32]:
    h = Holder(vector())
    return h.t.borrow()  # E: dagpu-borrow-escape


def local_item_borrowed() -> TensorRef[f32]:
    ts = [vector()]
    return ts[0].borrow()  # E: dagpu-borrow-escape


def local_tuple_borrowed() -> TensorRef[f32]:
    pair = (vector(), 1)
    return pair[0].borrow()  # E: dagpu-borrow-escape


class Registry:
    def __init__(self) -> None:
        self.refs: list[TensorRef[f32]] = []
        self.last: TensorRef[f32] | None = None
        self.ts: list[Tensor[f32]] = []

    def add(self, r: TensorRef[f32]) -> None:
        self.refs.append(r)

    def set_last(self, r: TensorRef[f32]) -> None:
        self.last = r

    def show(self) -> None:
        print([r.shape for r in self.refs], self.last)

    def own(self, t: Tensor[f32]) -> None:
        self.ts.append(t)

    def look(self, r: TensorRef[f32]) -> None:
        print(r.shape)


def registered() -> None:
    reg, t = Registry(), vector()
    reg.add(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    reg.show()


def registered_last() -> None:  # R: runs
    reg, t = Registry(), vector()
    reg.set_last(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    reg.show()


def registered_outlives(reg: Registry) -> None:
    t = vector()
    reg.add(t.borrow())  # E: dagpu-borrow-escape
