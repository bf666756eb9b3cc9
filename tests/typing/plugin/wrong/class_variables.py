"""Variables of classes: moved, lent and filled with loans, under the names of the class and of its instances."""

from typing import ClassVar

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, total, vector


class Model:
    """Weights that all instances share."""

    weights: ClassVar[Tensor[f32]] = vector()
    bias: Tensor[f32] = vector()

    @classmethod
    def spend_cls(cls) -> None:
        eat(cls.weights)
        print(cls.weights.shape)  # E: dagpu-use-after-move

    def spend_self(self) -> None:
        eat(self.weights)
        print(self.weights.shape)  # E: dagpu-use-after-move

    def spend_mixed(self) -> None:
        eat(Model.weights)
        print(self.weights.shape)  # E: dagpu-use-after-move

    def spend_mixed2(self) -> None:
        eat(self.weights)
        print(Model.weights.shape)  # E: dagpu-use-after-move

    def spend_type(self) -> None:
        eat(type(self).weights)
        print(self.weights.shape)  # E: dagpu-use-after-move

    def spend_class(self) -> None:
        eat(self.__class__.weights)
        print(Model.weights.shape)  # E: dagpu-use-after-move

    @staticmethod
    def fill() -> None:
        Model.weights = vector()


def method_spend_cls() -> None:
    Model.fill()
    Model().spend_cls()


def method_spend_self() -> None:
    Model.fill()
    Model().spend_self()


def method_spend_mixed() -> None:
    Model.fill()
    Model().spend_mixed()


def method_spend_mixed2() -> None:
    Model.fill()
    Model().spend_mixed2()


def method_spend_type() -> None:
    Model.fill()
    Model().spend_type()


def method_spend_class() -> None:
    Model.fill()
    Model().spend_class()


def by_name() -> None:
    Model.weights = vector()
    eat(Model.weights)
    print(Model.weights.shape)  # E: dagpu-use-after-move


def by_name_loop() -> None:
    Model.weights = vector()
    for _ in range(2):
        eat(Model.weights)  # E: dagpu-use-after-move


def by_alias() -> None:
    Model.weights = vector()
    w = Model.weights
    eat(w)
    print(Model.weights.shape)  # E: dagpu-use-after-move


def by_instance() -> None:
    Model.weights = vector()
    m = Model()
    eat(m.weights)
    print(Model.weights.shape)  # E: dagpu-use-after-move


def by_two_instances() -> None:
    Model.weights = vector()
    m, n = Model(), Model()
    eat(m.weights)
    print(n.weights.shape)  # E: dagpu-use-after-move


class Sub(Model):
    """Has the weights of its base."""


def by_subclass() -> None:
    Model.weights = vector()
    eat(Sub.weights)
    print(Model.weights.shape)  # E: dagpu-use-after-move


def borrowed() -> None:  # R: runs
    Model.weights = vector()
    r = Model.weights.borrow()
    w = Model.weights.borrow_mut()  # E: dagpu-conflicting-borrow
    print(total(r), w.shape)


def moved_while_lent() -> None:
    Model.weights = vector()
    r = Model.weights.borrow()
    eat(Model.weights)  # E: dagpu-conflicting-borrow
    print(total(r))


class Config:
    """Tables that all instances share."""

    table: ClassVar[TensorRef[f32] | None] = None
    ref: TensorRef[f32]


def stored_on_class() -> None:
    t = vector()
    Config.table = t.borrow()  # E: dagpu-borrow-escape


def stored_on_class_2() -> None:
    t = vector()
    r = t.borrow()
    Config.table = r  # E: dagpu-borrow-escape
    print(total(r))


def setattr_on_class() -> None:
    t = vector()
    Config.table = t.borrow()  # E: dagpu-borrow-escape


class Registry:
    """Loans that outlive their tensors."""

    refs: ClassVar[list[TensorRef[f32]]] = []
    named: ClassVar[dict[str, TensorRef[f32]]] = {}

    @classmethod
    def add_local(cls) -> None:
        t = vector()
        cls.refs.append(t.borrow())  # E: dagpu-borrow-escape

    @classmethod
    def set_local(cls) -> None:
        t = vector()
        cls.named["x"] = t.borrow()  # E: dagpu-borrow-escape

    @classmethod
    def store_cls(cls) -> None:
        t = vector()
        cls.ref = t.borrow()  # E: dagpu-borrow-escape

    ref: ClassVar[TensorRef[f32]]


def appended_to_class() -> None:
    t = vector()
    Registry.refs.append(t.borrow())  # E: dagpu-borrow-escape


def put_in_class_dict() -> None:
    t = vector()
    Registry.named["a"] = t.borrow()  # E: dagpu-borrow-escape


def on_class_via_type() -> None:
    t = vector()
    type(Registry()).ref = t.borrow()  # E: dagpu-borrow-escape


def class_methods_store() -> None:  # R: runs
    Registry.add_local()
    Registry.set_local()
    Registry.store_cls()
