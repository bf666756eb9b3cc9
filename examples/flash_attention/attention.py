"""Attention and its gradient without the matrix of scores: an online softmax over
blocks of keys, and the same weights again, block by block, in the pass back.

    python -m examples.flash_attention [--quick] [--heads 8] [--length 1024]
                                       [--width 64] [--full] [--groups 4] [--seed 0]

The result is softmax(q k^T / sqrt(width)) v for each head, where every query sees the
keys up to its own place (all of them with --full). The scores of a single head are
`length` x `length`. The kernel never has more than a block of them, and rescales its
sums whenever a higher score occurs. Heads are independent, so they are divided into
groups, each a branch of one op: the copies of one group overlap with the kernel of
another. The pass back is by kernels too, which gradient.py declares as the derivative
of the first, so `grad` goes through it. Results and gradients are compared with NumPy,
which computes the definition in double precision.
"""

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import dagpu
from dagpu import (
    CostModel,
    DeviceOp,
    ListSchedule,
    Tensor,
    current_device,
    f32,
    from_host,
    plan_of,
    zip_ops,
)
from dagpu.grad import grad
from examples.flash_attention.gradient import Shared, attend, product
from examples.flash_attention.kernels import WIDTHS

Floats: TypeAlias = NDArray[np.float32]
Three: TypeAlias = tuple[Shared, Shared, Shared]

# ---- the pipeline -----------------------------------------------------------


def attended(q: Floats, k: Floats, v: Floats, *, causal: bool) -> DeviceOp[Floats]:
    """Return the attention of some heads, all arrays (heads, length, width).

    Raises:
        ValueError: the kernel is not compiled for the width.
    """
    width = q.shape[2]
    if width not in WIDTHS:
        raise ValueError(
            f"heads are {width} wide; the kernel knows {', '.join(map(str, WIDTHS))}"
        )
    parts = from_host(q), from_host(k), from_host(v)
    return attend(*parts, q.shape, causal=causal).to_host()


def slopes(
    q: Floats, k: Floats, v: Floats, g: Floats, *, causal: bool
) -> DeviceOp[tuple[Floats, ...]]:
    """Return the gradients of sum(g * attention) by q, k and v."""

    def loss(given: Three, weights: Shared) -> DeviceOp[Tensor[f32], Any]:
        return product.sum()(attend(*given, given[0].shape, causal=causal), weights)

    def found(
        parts: tuple[Shared, Shared, Shared, Shared],
    ) -> DeviceOp[tuple[Floats, ...]]:
        *given, weights = parts
        return grad(loss)((given[0], given[1], given[2]), weights).then(
            lambda slopes: zip_ops(*[slope.to_host() for slope in slopes])
        )

    shared = [from_host(x).map(lambda t: t.share()) for x in (q, k, v, g)]
    return zip_ops(shared[0], shared[1], shared[2], shared[3]).then(found)


def in_groups(
    q: Floats, k: Floats, v: Floats, causal: bool, groups: int
) -> DeviceOp[tuple[Floats, ...]]:
    """Return the attention with the heads in `groups` groups that overlap, as one array
    for each."""
    parts = zip(*(np.array_split(x, groups) for x in (q, k, v)), strict=True)
    return zip_ops(*(attended(*group, causal=causal) for group in parts))


# ---- the same in plain NumPy ------------------------------------------------


def by_numpy(q: Floats, k: Floats, v: Floats, causal: bool) -> NDArray[np.float64]:
    """Compute attention by the definition, one head at a time, in double precision."""
    heads: list[NDArray[np.float64]] = []
    for query, keys, values in zip(
        *(x.astype(np.float64) for x in (q, k, v)), strict=True
    ):
        scores = query @ keys.T / math.sqrt(query.shape[1])
        if causal:
            scores[np.triu_indices_from(scores, 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ values)
    return np.stack(heads)


def slopes_by_numpy(
    q: Floats, k: Floats, v: Floats, g: Floats, causal: bool
) -> tuple[NDArray[np.float64], ...]:
    """Compute the gradients by the definition, in double precision."""
    query, keys, values, up = (x.astype(np.float64) for x in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[2])
    scores = query @ keys.transpose(0, 2, 1) * scale
    if causal:
        scores[:, np.triu(np.ones(scores.shape[1:], np.bool_), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    by_weight = up @ values.transpose(0, 2, 1)
    inner = (by_weight * weights).sum(axis=2, keepdims=True)
    by_score = weights * (by_weight - inner) * scale
    turned = by_score.transpose(0, 2, 1)
    return by_score @ keys, turned @ query, weights.transpose(0, 2, 1) @ up


# ---- the job ----------------------------------------------------------------


def job(given: argparse.Namespace) -> None:
    random, shape = (
        np.random.default_rng(given.seed),
        (given.heads, given.length, given.width),
    )
    q, k, v = (random.standard_normal(shape, dtype=np.float32) for _ in range(3))
    q *= 3  # a few high scores and many low ones, as in a trained model
    groups, causal = min(given.groups, given.heads), not given.full
    each = -(-given.heads // groups)
    # of one group: the kernel's time cannot be estimated from its bytes
    with dagpu.trace() as probe:
        attended(q[:each], k[:each], v[:each], causal=causal).sync()
    policy = ListSchedule(costs=CostModel().learn(probe.kernel_times()))
    op = in_groups(q, k, v, causal, groups).schedule(policy)
    plan = plan_of(op)
    start = time.perf_counter()
    with dagpu.trace() as trace:
        found = np.concatenate(op.sync())
    seconds = time.perf_counter() - start
    error = float(np.abs(found - by_numpy(q, k, v, causal)).max())

    pairs = given.length * (given.length + 1) // 2 if causal else given.length**2
    work = 4 * given.heads * pairs * given.width
    scores = 4 * given.heads * given.length**2
    seen = "the keys up to its own" if causal else "all keys"
    print(
        f"{given.heads} heads x {given.length} x {given.width} on "
        f"{current_device().name}; a query sees {seen}"
    )
    print(
        f"{groups} groups in {seconds * 1e3:.1f} ms with all copies: "
        f"{work / seconds / 1e9:,.1f} GFLOP/s"
    )
    print(
        f"overlap, measured: {trace.overlap:.0%} of the work was hidden behind "
        "other work, "
        f"the plan allows {trace.planned_overlap:.0%}"
    )
    print(
        f"memory: {plan.peak_bytes / 2**20:.1f} MiB in all; the scores alone would "
        f"be {scores / 2**20:.1f} MiB"
    )
    print(f"largest error against NumPy in double precision: {error:.1e}")

    heads = slice(0, min(given.heads, 2))
    g = random.standard_normal(q[heads].shape, dtype=np.float32)
    start = time.perf_counter()
    back = slopes(q[heads], k[heads], v[heads], g, causal=causal).sync()
    seconds = time.perf_counter() - start
    exact = slopes_by_numpy(q[heads], k[heads], v[heads], g, causal)
    off = max(
        float(np.abs(mine - its).max() / np.abs(its).max())
        for mine, its in zip(back, exact, strict=True)
    )
    print(
        f"gradients of {g.shape[0]} heads in {seconds * 1e3:.1f} ms; their largest "
        f"error is {off:.1e} of the largest one"
    )

    assert np.isfinite(found).all()
    assert error < 1e-5
    assert off < 1e-5
    if causal:
        # the first query sees one key
        np.testing.assert_allclose(found[:, 0], v[:, 0], rtol=1e-6)


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.flash_attention",
        description="Attention with an online softmax over blocks of keys, on dagpu.",
    )
    parser.add_argument("--quick", action="store_true", help="2 heads of 200 x 32")
    parser.add_argument("--heads", type=at_least_one, help="(8)")
    parser.add_argument(
        "--length", type=at_least_one, help="queries, and keys, of a head (1024)"
    )
    parser.add_argument("--width", type=int, choices=WIDTHS, help="of a head (64)")
    parser.add_argument(
        "--full",
        action="store_true",
        help="a query sees all keys, not just those up to its own",
    )
    parser.add_argument(
        "--groups", type=at_least_one, default=4, help="of heads, that overlap (4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the input (0)")
    given = parser.parse_args(arguments)
    heads, length, width = (2, 200, 32) if given.quick else (8, 1024, 64)
    given.heads, given.length, given.width = (
        given.heads or heads,
        given.length or length,
        given.width or width,
    )
    return given


def main(arguments: Sequence[str]) -> None:
    job(parsed(arguments))
