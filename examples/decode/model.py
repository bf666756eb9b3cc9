"""The transformer of examples/decode: its weights, and one decode step as one op.

Llama's layers (arXiv:2407.21783, section 3.2): RMSNorm, rotary embedding, grouped-query
attention, SwiGLU, and one table for both ends. A step is five launches a layer and
three more, in a row: each needs the result of the one before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeAlias, final

import numpy as np

from dagpu import (
    Borrowed,
    CostModel,
    DeviceOp,
    SharedTensor,
    Tensor,
    TensorMut,
    empty,
    f32,
    from_host,
    i32,
    randn,
    value,
    zeros,
)
from examples.decode.attention import PAIR, Attention
from examples.decode.layers import FeedForward, Vocabulary, pick
from examples.decode.parts import Sizes, W

Stream: TypeAlias = DeviceOp[Tensor[f32], Borrowed]
"""The residual stream through the layers: (hidden,)."""
Cache: TypeAlias = DeviceOp[Any, Borrowed]
"""The cache that is lent to a step. Each launch passes it to the next."""
Place: TypeAlias = DeviceOp[SharedTensor[i32], Borrowed]
"""The position of the token, on the device: (1,)."""
Step: TypeAlias = Callable[
    [SharedTensor[i32], TensorMut[W], int], DeviceOp[Tensor[i32], Borrowed]
]
"""A function from a token (1,), the cache and the token's position to the next
token."""

ATTENTION_ROWS, FFN_ROWS, DOWN_ROWS = 16, 32, 16
"""Rows of a block: one for each warp, and four in `gate_up`. For 2,048 and 8,192 rows
this gives about one or two blocks for each of the 132 multiprocessors of an H200, so
that all blocks run at once."""


class Weights(NamedTuple, Generic[W]):
    """The weights of all layers.

    The first axis is the layer; the kernels describe the other axes.
    """

    table: SharedTensor[W]
    attention_gains: SharedTensor[f32]
    qkv: SharedTensor[W]
    output: SharedTensor[W]
    ffn_gains: SharedTensor[f32]
    gate_up: SharedTensor[W]
    down: SharedTensor[W]
    last_gain: SharedTensor[f32]
    frequencies: SharedTensor[f32]


@final
@dataclass(frozen=True)
class Model(Generic[W]):
    """A model. `element` is the type of weights and cache."""

    sizes: Sizes
    element: type[W]
    weights: Weights[W]
    attention: Attention[W]
    feed_forward: FeedForward[W]
    vocabulary: Vocabulary[W]


def frequencies_of(sizes: Sizes) -> "np.ndarray[Any, np.dtype[f32]]":
    """Return the radians by which each pair of coordinates rotates for each position
    (arXiv:2104.09864, 3.2.2)."""
    return (sizes.theta ** (-np.arange(0, sizes.head, 2) / sizes.head)).astype(
        np.float32
    )


def random_model(sizes: Sizes, element: type[W], seed: int) -> Model[W]:
    """Draw weights from a normal distribution, such that outputs of a matrix are about
    as large as its inputs.

    Only the table is smaller, like Llama's initially. Otherwise each token would be the
    likeliest to follow itself.
    """
    s = sizes
    attended = s.heads * s.head

    def matrix(number: int, *shape: int, std: float | None = None) -> SharedTensor[W]:
        std = shape[-1] ** -0.5 if std is None else std
        return randn(shape, element, std=std, seed=16 * seed + number).sync().share()

    def gains(number: int, *shape: int) -> SharedTensor[f32]:
        return randn(shape, mean=1.0, std=0.1, seed=16 * seed + number).sync().share()

    weights = Weights(
        table=matrix(0, s.vocabulary, s.hidden, std=0.02),
        attention_gains=gains(1, s.layers, s.hidden),
        qkv=matrix(2, s.layers, s.kv_heads, s.group + 2, s.head, s.hidden),
        output=matrix(3, s.layers, s.hidden, attended),
        ffn_gains=gains(4, s.layers, s.hidden),
        gate_up=matrix(5, s.layers, s.ffn, 2, s.hidden),
        down=matrix(6, s.layers, s.hidden, s.ffn),
        last_gain=gains(7, 1, s.hidden),
        frequencies=from_host(frequencies_of(s)).sync().share(),
    )
    return model_of(s, element, weights)


def model_of(
    sizes: Sizes, element: type[W], weights: Weights[W], early: bool = True
) -> Model[W]:
    """Return a model of these weights.

    With `early`, a kernel loads its first weights while the one before it ends.
    """
    kernels = (
        Attention(element, sizes, early),
        FeedForward(element, sizes, early),
        Vocabulary(element, sizes, early),
    )
    return Model(sizes, element, weights, *kernels)


def empty_cache(model: Model[W]) -> Tensor[W]:
    """Return an empty cache for keys and values of all layers: (layers, kv_heads, 2,
    positions, head)."""
    s = model.sizes
    return zeros((s.layers, s.kv_heads, 2, s.positions, s.head), model.element).sync()


def attended(
    model: Model[W], layer: int, x: Stream, cache: Cache, at: Place
) -> tuple[Stream, Cache]:
    """Return x plus the attention to the layer's cache, after adding this position to
    the cache.

    A tile of the cache spans all layers, and a launch uses one: the cache is one
    tensor, lent once for each step.
    """
    s, w, kernels = model.sizes, model.weights, model.attention
    q, cache, x, *_ = kernels.project_qkv(
        empty((1, s.kv_heads, 1, s.group, s.head)).partition((1, 1, 1, s.group, PAIR)),
        cache.partition((s.layers, 1, 2, s.positions, PAIR)),
        x,
        w.attention_gains,
        w.qkv,
        w.frequencies,
        at,
        layer,
    ).unzip()
    splits = cache.unpartition().partition(
        (s.layers, 1, 2, s.positions // s.splits, s.head)
    )
    blank = empty((1, s.kv_heads, 1, s.splits, s.partial)).partition(
        (1, 1, 1, 1, s.partial)
    )
    found, splits, *_ = kernels.attend(
        blank, splits, q.unpartition(), at, layer
    ).unzip()
    rows = x.partition((ATTENTION_ROWS,), partial=True)
    x = (
        kernels.add_attention(rows, found.unpartition(), w.output, layer)
        .first()
        .unpartition()
    )
    return x, splits.unpartition()


def fed_forward(model: Model[W], layer: int, x: Stream) -> Stream:
    """Return x plus the output of the two layers of SwiGLU."""
    s, w, kernels = model.sizes, model.weights, model.feed_forward
    blank = empty((s.ffn,)).partition((FFN_ROWS,), partial=True)
    h, x, *_ = kernels.gate_up(blank, x, w.ffn_gains, w.gate_up, layer).unzip()
    rows = x.partition((DOWN_ROWS,), partial=True)
    return kernels.add_down(rows, h.unpartition(), w.down, layer).first().unpartition()


def next_token(model: Model[W], x: Stream) -> DeviceOp[Tensor[i32], Borrowed]:
    """Return the token (1,) of the largest logit: the largest of each block of the
    table, then the largest of these."""
    w, blocks = model.weights, model.vocabulary.blocks
    largest, rows = (
        empty((blocks,)).partition((1,)),
        empty((blocks,), i32).partition((1,)),
    )
    best, where, *_ = model.vocabulary.score(
        largest, rows, x, w.last_gain, w.table
    ).unzip()
    return pick.new((1,), (1,))(best.unpartition(), where.unpartition())


def costs_of(model: Model[Any]) -> CostModel:
    """Return a cost model with the bytes that each kernel reads of the weights and the
    cache: one layer of them."""
    s, w = model.sizes, model.weights
    element = np.dtype(model.element).itemsize
    return CostModel().count(
        {
            "embed": s.hidden * element,
            "project_qkv": w.qkv.nbytes // s.layers,
            "attend": s.kv_heads * 2 * s.positions * s.head * element,
            "add_attention": w.output.nbytes // s.layers,
            "gate_up": w.gate_up.nbytes // s.layers,
            "add_down": w.down.nbytes // s.layers,
            "score": w.table.nbytes,
        }
    )


def step(
    model: Model[W], token: SharedTensor[i32], cache: TensorMut[W], position: int
) -> DeviceOp[Tensor[i32], Borrowed]:
    """Return the next token (1,) after `token` at `position`.

    Its keys and values are added to the cache.
    """
    blank = empty((model.sizes.hidden,)).partition((model.sizes.hidden,))
    place = empty((1,), i32).partition((1,))
    row, where, *_ = model.vocabulary.embed(
        blank, place, token, model.weights.table, position
    ).unzip()
    x: Stream = row.unpartition()
    at = where.unpartition().shared()
    kept: Cache = value(cache)
    for layer in range(model.sizes.layers):
        x, kept = attended(model, layer, x, kept, at)
        x = fed_forward(model, layer, x)
    return next_token(model, x)
