"""Checked, not run: gradients have the class of what they are by, and wrong models and arguments are errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_type

from typing_extensions import TypeVar

from dagpu import (
    DeviceOp,
    Elem,
    Partials,
    Replicated,
    Sharded,
    ShardedRef,
    SharedTensor,
    Tensor,
    TensorMut,
    array,
    c64,
    expr,
    f32,
    i32,
    pipeline,
)
from dagpu.grad import (
    Parameterized,
    adam,
    derivative,
    grad,
    parameters,
    sgd,
    updated,
    value_and_grad,
    vjp,
    zip_parameters,
)

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Mlp(Parameterized[T]):
    w1: T
    b1: T
    w2: T

    def mapped(self, f: Callable[[T], U], /) -> "Mlp[U]":
        return Mlp(f(self.w1), f(self.b1), f(self.w2))


Shared = SharedTensor[f32]
entropy = expr(f32, f32)(lambda p, h: -h * array.log(p)).sum(1)


@expr
def relu_bias(x: Elem[f32], b: Elem[f32]) -> Elem[f32]:
    return array.maximum(x + b, 0)


def loss(m: Mlp[Shared], x: Shared, hot: Shared) -> DeviceOp[Tensor[f32], Any]:
    h = relu_bias(array.matmul(x, m.w1), m.b1)
    return array.mean(entropy(array.softmax(array.matmul(h, m.w2)), hot))


@pipeline
def step(m: Mlp[Shared], x: Shared, hot: Shared) -> DeviceOp[tuple[Tensor[f32], Mlp[Shared]], Any]:
    return value_and_grad(loss)(m, x, hot)


def of_integers(m: Mlp[SharedTensor[i32]], x: Shared) -> DeviceOp[Tensor[i32], Any]:
    raise NotImplementedError


def use(m: Mlp[Shared], x: Shared, hot: Shared) -> None:
    value, slopes = value_and_grad(loss)(m, x, hot).sync()
    assert_type(value, Tensor[f32])
    assert_type(slopes, Mlp[Shared])
    assert_type(parameters(slopes), list[Shared])
    assert_type(zip_parameters(m, slopes), list[tuple[Shared, Shared]])
    assert_type(grad(loss)(m, x, hot).sync(), Mlp[Shared])
    assert_type(vjp(lambda x: array.exp(x), x, cotangent=x).sync(), tuple[Tensor[f32], Shared])
    expr(f32)(derivative(lambda x: x * x))
    value_and_grad(loss)(m, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    value_and_grad(loss)(x, x, hot)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    value_and_grad(of_integers)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def in_place(m: Mlp[TensorMut[f32]], x: Shared, hot: Shared) -> None:
    op = updated(m, lambda m: value_and_grad(loss)(m, x, hot), lambda w, g: sgd(w, g, 0.1))
    assert_type(op.sync(), Tensor[f32])


def complex_step(
    w: TensorMut[c64], g: SharedTensor[c64], m: TensorMut[c64], v: TensorMut[f32], count: float
) -> tuple[object, ...]:
    wrong = adam(w, g, m, m, count)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return sgd(w, g, 0.1), adam(w, g, m, v, count), wrong


def of_shards(w: ShardedRef[f32], x: Shared) -> DeviceOp[Replicated[f32], Any]:
    raise NotImplementedError


def of_replicas(w: Replicated[f32], x: Shared) -> DeviceOp[Replicated[f32], Any]:
    raise NotImplementedError


def of_pairs(w: tuple[ShardedRef[f32], ShardedRef[f32]]) -> DeviceOp[Tensor[f32], Any]:
    raise NotImplementedError


def of_whole(w: Shared) -> DeviceOp[Replicated[f32], Any]:
    raise NotImplementedError


def on_several_devices(s: ShardedRef[f32], r: Replicated[f32], x: Shared) -> None:
    assert_type(vjp(lambda s: of_shards(s, x), s).sync(), tuple[Replicated[f32], Sharded[f32]])
    assert_type(vjp(lambda r: of_replicas(r, x), r).sync(), tuple[Replicated[f32], Partials[f32]])
    assert_type(vjp(of_pairs, (s, s)).sync(), tuple[Tensor[f32], tuple[Sharded[f32], Sharded[f32]]])
    assert_type(value_and_grad(of_whole)(x).sync(), tuple[Replicated[f32], Shared])
    value_and_grad(of_pairs)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
