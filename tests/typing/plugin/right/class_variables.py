"""Variables of classes: moved and replaced, lent in turn, and loans on classes that live no longer than the tensor."""

from typing import ClassVar

from dagpu import SharedTensor, Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, saxpy, total, vector


class Model:
    """Weights that all instances share, and a bias of their own."""

    weights: ClassVar[Tensor[f32]] = vector()
    bias: Tensor[f32]

    def __init__(self) -> None:
        self.bias = vector()

    @classmethod
    def refill(cls) -> None:
        eat(cls.weights)
        cls.weights = vector()
        print(cls.weights.shape)

    @staticmethod
    def refill_by_name() -> None:
        eat(Model.weights)
        Model.weights = vector()
        print(Model.weights.shape)

    def forward(self) -> float:
        return total(self.weights.borrow()) + total(self.bias.borrow())


def refilled_by_methods() -> None:
    Model.refill()
    Model.refill_by_name()
    print(Model.weights.shape)


def refilled_by_a_call_in_between() -> None:
    eat(Model.weights)
    fill_model()
    print(Model.weights.shape)


def fill_model() -> None:
    Model.weights = vector()


def instances_have_their_own() -> None:
    a, b = Model(), Model()
    eat(a.bias)
    print(b.bias.shape, b.forward())


def lent_in_turn() -> None:
    print(total(Model.weights.borrow()))
    saxpy(Model.weights.borrow_mut().partition((4,)), 1.0, vector()).sync()


def moved_in_a_loop() -> None:
    for _ in range(2):
        Model.weights = Model.weights.reshape((8,))


class Holder:
    """A tensor that many may read."""

    shared: ClassVar[SharedTensor[f32]]


def shared_on_a_class() -> None:
    Holder.shared = vector().share()
    print(Holder.shared.shape)


def loan_on_a_local_class() -> None:
    class Local:
        ref: ClassVar[TensorRef[f32]]

    t = vector()
    Local.ref = t.borrow()
    print(total(Local.ref))


def loan_of_an_argument_on_a_local_class() -> None:
    class Local:
        """Lives as long as this call."""

        refs: ClassVar[list[TensorRef[f32]]] = []

    t = vector()
    Local.refs.append(t.borrow())
    print([total(r) for r in Local.refs])


def attribute_set_by_name() -> None:
    setattr(Holder, "shared", vector().share())  # noqa: B010  # the built-in function is what is tried
    print(Holder.shared.shape)
