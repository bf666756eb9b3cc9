"""Parts of an object that outlives the function, which are lent; borrows that an object looks at or keeps in time."""

from dataclasses import dataclass

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, vector


@dataclass
class Holder:
    t: Tensor[f32]
    name: str = ""


def parameter_attribute_borrowed(h: Holder) -> TensorRef[f32]:
    return h.t.borrow()


def attr_kept_elsewhere(hs: list[Holder]) -> TensorRef[f32]:
    h = Holder(vector())
    hs.append(h)
    return h.t.borrow()


def attr_loop(hs: list[Holder]) -> TensorRef[f32]:
    for h in hs:
        return h.t.borrow()
    raise ValueError


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


def registered_right() -> None:
    reg, t = Registry(), vector()
    reg.look(t.borrow())
    eat(t)
    reg.show()


def registered_for_as_long() -> None:
    reg, t = Registry(), vector()
    reg.add(t.borrow())
    reg.show()
    eat(t)


def given_the_object() -> None:
    held = [Holder(vector())]
    print(attr_loop(held).shape, attr_kept_elsewhere(held).shape)
