"""Operators and parts of tensors that mypy lets pass."""

from dagpu import DeviceOp, SharedTensor, Tensor, TensorRef, array, f32, fill, ones, value, zip_ops
from tests.typing.plugin.kernels import vector


def shared_operands(s: SharedTensor[f32]) -> None:
    (s * s + s).sync()
    (s - s.clone() / 2).sync()
    print(s.shape, s[1:].shape)


def lent_operands(t: Tensor[f32]) -> None:
    (t.borrow() * t.borrow() - t[None]).sync()
    t.share()


def an_owned_tensor_twice_in_one_operator(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
    return t * t


def the_tensor_that_comes_back(t: Tensor[f32]) -> Tensor[f32]:
    for _ in range(3):
        t = (t * 2 + 1).sync()
    return t


def ops_as_operands() -> None:
    x = ones((8,))
    y = x + 1
    (y * y - y).sync()
    z = ones((8,)).shared()
    (z < 2).sync()
    (z == value(vector()) + 1).sync()


def parts_of_one_loan(t: Tensor[f32]) -> None:
    m = t.borrow_mut()
    zip_ops(fill(m[:4], 1.0), fill(m[4:], 2.0)).sync()
    fill(m[:2], 3.0).sync()
    print(m.shape)


def a_part_before_the_move(t: Tensor[f32]) -> None:
    part = t[1:]
    (part + 1).sync()
    t.share()


def a_part_of_what_is_lent(r: TensorRef[f32]) -> TensorRef[f32]:
    return r[1:, None]


def parts_of_shared_tensors(s: SharedTensor[f32]) -> SharedTensor[f32]:
    half = s[:4]
    return half[::-1]


def operators_inside_of_a_function(s: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    return array.sum(s * s, 0) / array.amax(s - 1)
