"""The named DAGs, on which every scheduler is tested.

Each function builds a new op from pure constructors. `EXPECTED` computes its result by NumPy, with another algorithm.
The result of an op is a tuple of arrays, exact on every device.

    fork_join       one root, chains of equal length, one sum                      x -> a..a, b..b, .. -> +
    butterfly       a transform over blocks: each stage pairs blocks further apart  log2(n) stages of n / 2
    cholesky        the right-looking tiled factorisation                           O(tiles^3 / 6) tile updates
    lu              the same for L U, without pivoting                              O(tiles^3 / 3) tile updates
    transformer     norm, heads of attention, residual, norm, two-layer net, residual; in small whole numbers
    reduction_tree  leaves summed pairwise                                          depth log2(leaves)
    mlp_step        one training step of a two-layer net, its batch in shards, gradients summed over them
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, arange, empty, f32, from_host, full, i32, zeros, zip_ops
from tests.programs.named_kernels import (
    PRIME,
    affine,
    blend,
    gate,
    gather,
    gemm,
    getrf,
    potrf,
    squash,
    step,
    subtract,
    trsm_left,
    trsm_right,
    twist,
)

Op: TypeAlias = DeviceOp[Any, Any, Any]
Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = tuple[Array, ...]


def _cut(*extents: int) -> tuple[int, ...]:
    """Return a tile for elementwise work: all of a small array, else a power of two up to 16, or 256 in rank 1."""
    most = 256 if len(extents) == 1 else 16
    return tuple(n if n <= most else max(2**k for k in range(9) if 2**k <= most and n % 2**k == 0) for n in extents)


def _on_host(ops: Sequence[Op]) -> Op:
    """Return an op whose result is a tuple of arrays: a `zip_ops` of any number of ops."""
    return zip_ops(*[op.to_host() for op in ops])


def _first(launch: Op) -> Op:
    """Return an op for the tensor that a kernel's first argument was cut from."""
    return launch.first().unpartition()


def _whole_numbers(shape: tuple[int, ...], seed: int, low: int, high: int) -> Array:
    """Return random i32 numbers from `low` to `high`, exclusive."""
    return np.random.default_rng(seed).integers(low, high, shape, dtype=i32)


# ---- fork-join


def fork_join(branches: int = 4, depth: int = 3, size: int = 16) -> Op:
    """`branches` chains of `depth` kernels over `size` elements from one root, then their sum."""
    root = arange(size, i32).shared()
    total: Op | None = None
    for branch in range(branches):
        op = _first(affine(empty((size,), i32).partition(_cut(size)), root, branch + 2, 1))
        for link in range(1, depth):
            op = _first(step(op.partition(_cut(size)), branch + 2, link))
        total = op if total is None else _first(gather(total.partition(_cut(size)), op))
    assert total is not None, "a fork-join has at least one branch"
    return _on_host([total])


def _fork_join(branches: int = 4, depth: int = 3, size: int = 16) -> Arrays:
    total = np.zeros(size, i32)
    for branch in range(branches):
        x: Array = np.arange(size, dtype=i32)
        for link in range(depth):
            x = (x * (branch + 2) + max(link, 1)) % 9973
        total += x
    return (total,)


# ---- butterfly


def butterfly(stages: int = 3, size: int = 8) -> Op:
    """A number-theoretic transform of length 2**stages modulo 193 (so at most 6 stages), down each of `size` columns.

    Each row is a tensor of its own. Decimation in frequency (Gentleman and Sande, 1966): results come in
    bit-reversed order.
    """
    length = 2**stages
    rows: list[Op] = [from_host(row) for row in _rows(length, size)]
    half = length // 2
    while half:
        root = pow(5, (PRIME - 1) // (2 * half), PRIME)  # 5 generates the units modulo 193
        for start in range(0, length, 2 * half):
            for k in range(start, start + half):
                x, y = (rows[n].partition(_cut(size)) for n in (k, k + half))
                parts = twist(x, y, pow(root, k - start, PRIME)).unzip()
                rows[k], rows[k + half] = parts[0].unpartition(), parts[1].unpartition()
        half //= 2
    return _on_host(rows)


def _butterfly(stages: int = 3, size: int = 8) -> Arrays:
    length = 2**stages
    root = pow(5, (PRIME - 1) // length, PRIME)
    powers = np.array([[pow(root, j * k, PRIME) for k in range(length)] for j in range(length)])
    spectrum = powers @ np.array(_rows(length, size)) % PRIME
    return tuple(spectrum[int(format(n, f"0{stages}b")[::-1], 2)].astype(i32) for n in range(length))


def _rows(length: int, size: int) -> list[Array]:
    return list(_whole_numbers((length, size), 1, 0, PRIME))


# ---- factorisations


def _triangle(tiles: int, edge: int, seed: int) -> Array:
    """Return a lower triangular matrix of whole numbers: up to five off the diagonal in each row, and 1 or 2 on it.

    The numbers are so few and so small that all sums stay exact in f32 when a product of two such matrices is
    factorised.
    """
    n = tiles * edge
    lower = np.tril(np.random.default_rng(seed).integers(-1, 2, (n, n)), -1)
    lower[np.tri(n, n, -6, dtype=bool)] = 0
    return (lower + np.diag(1 + np.arange(n) % 2)).astype(f32)


def _tile(matrix: Array, row: int, column: int, edge: int) -> Array:
    return np.ascontiguousarray(matrix[row * edge : (row + 1) * edge, column * edge : (column + 1) * edge])


def cholesky(tiles: int = 4, edge: int = 4) -> Op:
    """L with L L^T = A, for a matrix of `tiles` x `tiles` tiles of `edge` x `edge`; its lower tiles, row by row."""
    lower = _triangle(tiles, edge, 2)
    matrix = lower @ lower.T
    at: dict[tuple[int, int], Op] = {
        (r, c): from_host(_tile(matrix, r, c, edge)) for r in range(tiles) for c in range(r + 1)
    }
    whole, cut = (edge, edge), _cut(edge, edge)
    for k in range(tiles):
        at[k, k] = _first(potrf(at[k, k].partition(whole))).shared()
        for r in range(k + 1, tiles):
            at[r, k] = _first(trsm_right(at[r, k].partition(whole), at[k, k], True)).shared()
        for r in range(k + 1, tiles):
            for c in range(k + 1, r + 1):
                at[r, c] = _first(subtract(at[r, c].partition(cut), at[r, k], at[c, k], True))
    return _on_host(list(at.values()))


def _cholesky(tiles: int = 4, edge: int = 4) -> Arrays:
    lower = _triangle(tiles, edge, 2)
    # Above the diagonal of a diagonal tile, the factor has zeros, like `lower`.
    return tuple(_tile(lower, r, c, edge) for r in range(tiles) for c in range(r + 1))


def lu(tiles: int = 3, edge: int = 4) -> Op:
    """L U = A without pivoting, in one matrix of `tiles` x `tiles` tiles of `edge` x `edge`, row by row."""
    lower, upper = _lower_and_upper(tiles, edge)
    matrix = lower @ upper
    at: dict[tuple[int, int], Op] = {
        (r, c): from_host(_tile(matrix, r, c, edge)) for r in range(tiles) for c in range(tiles)
    }
    whole, cut = (edge, edge), _cut(edge, edge)
    for k in range(tiles):
        at[k, k] = _first(getrf(at[k, k].partition(whole))).shared()
        for n in range(k + 1, tiles):
            at[k, n] = _first(trsm_left(at[k, n].partition(whole), at[k, k])).shared()
            at[n, k] = _first(trsm_right(at[n, k].partition(whole), at[k, k], False)).shared()
        for r in range(k + 1, tiles):
            for c in range(k + 1, tiles):
                at[r, c] = _first(subtract(at[r, c].partition(cut), at[r, k], at[k, c], False))
    return _on_host(list(at.values()))


def _lower_and_upper(tiles: int, edge: int) -> tuple[Array, Array]:
    lower = np.tril(_triangle(tiles, edge, 3), -1) + np.eye(tiles * edge, dtype=f32)
    return lower, _triangle(tiles, edge, 4).T


def _lu(tiles: int = 3, edge: int = 4) -> Arrays:
    lower, upper = _lower_and_upper(tiles, edge)
    packed = np.tril(lower, -1) + upper
    return tuple(_tile(packed, r, c, edge) for r in range(tiles) for c in range(tiles))


# ---- networks, in whole numbers


def _product(x: Op, y: Op, shape: tuple[int, int], x_turned: bool = False, y_turned: bool = False) -> Op:
    return _first(gemm(zeros(shape, i32).partition(_cut(*shape)), x, y, x_turned, y_turned))


def _squashed(x: Op, shape: tuple[int, int], low: int) -> Op:
    return _first(squash(empty(shape, i32).partition(_cut(*shape)), x, low))


def transformer_block(tokens: int = 4, width: int = 8, heads: int = 2) -> Op:
    """One block with norms in front. Attention is unnormalised, and a norm is a shift and a cut: whole numbers."""
    weights = _transformer_weights(width, heads)
    square, wide, narrow = (tokens, width), (tokens, 4 * width), (tokens, width // heads)
    x = from_host(_whole_numbers(square, 5, -60, 61)).shared()
    normal = _squashed(x, square, -15).shared()
    total = zeros(square, i32)
    for q, k, v, out in weights["heads"]:
        query, key, values = (_product(normal, from_host(w), narrow) for w in (q, k, v))
        scores = _squashed(_product(query, key, (tokens, tokens), y_turned=True), (tokens, tokens), 0)
        mixed = _squashed(_product(scores, values, narrow), narrow, -15)
        total = _first(gemm(total.partition(_cut(*square)), mixed, from_host(out), False, False))
    after = _first(blend(total.partition(_cut(*square)), 1, x)).shared()
    up, down = weights["net"]
    hidden = _squashed(_product(_squashed(after, square, -15), from_host(up), wide), wide, 0)
    result = _first(blend(_product(hidden, from_host(down), square).partition(_cut(*square)), 1, after))
    return _on_host([result])


def _transformer_weights(width: int, heads: int) -> dict[str, Any]:
    part = width // heads
    return {
        "heads": [
            (*(_whole_numbers((width, part), 10 * h + n, -2, 3) for n in (6, 7, 8)),
             _whole_numbers((part, width), 10 * h + 9, -2, 3))
            for h in range(heads)
        ],
        "net": (_whole_numbers((width, 4 * width), 101, -2, 3), _whole_numbers((4 * width, width), 102, -2, 3)),
    }  # fmt: skip


def _transformer_block(tokens: int = 4, width: int = 8, heads: int = 2) -> Arrays:
    def cut(x: Array, low: int) -> Array:
        return np.clip(np.floor_divide(x, 4), low, 15)

    weights = _transformer_weights(width, heads)
    x = _whole_numbers((tokens, width), 5, -60, 61)
    normal, after = cut(x, -15), x.copy()
    for q, k, v, out in weights["heads"]:
        scores = cut((normal @ q) @ (normal @ k).T, 0)
        after += cut(scores @ (normal @ v), -15) @ out
    up, down = weights["net"]
    return (after + cut(cut(after, -15) @ up, 0) @ down,)


def reduction_tree(leaves: int = 16, size: int = 16) -> Op:
    """`leaves` vectors of `size` elements, summed pairwise in place."""
    level: list[Op] = [
        _first(gather(full((size,), n + 1, i32).partition(_cut(size)), arange(size, i32))) for n in range(leaves)
    ]
    while len(level) > 1:
        pairs = [_first(gather(x.partition(_cut(size)), y)) for x, y in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return _on_host(level)


def _reduction_tree(leaves: int = 16, size: int = 16) -> Arrays:
    return (leaves * np.arange(size, dtype=i32) + i32(leaves * (leaves + 1) // 2),)


def mlp_step(shards: int = 3, rows: int = 4, width: int = 4, hidden: int = 8) -> Op:
    """One step of gradient descent on |relu(x W1) W2 - t|^2, over `shards` shards of `rows` rows: both new weights."""
    first, second = _mlp_weights(width, hidden)
    w1, w2 = from_host(first).shared(), from_host(second).shared()
    sums: list[Op] = [zeros((width, hidden), i32), zeros((hidden, width), i32)]
    for n in range(shards):
        batch, target = _mlp_shard(n, rows, width)
        x = from_host(batch).shared()
        h = _squashed(_product(x, w1, (rows, hidden)), (rows, hidden), 0).shared()
        wrong = from_host(target).partition(_cut(rows, width))  # initially the negated target
        error = _first(gemm(wrong, h, w2, False, False)).shared()
        back = _product(error, w2, (rows, hidden), y_turned=True)
        slope = _first(gate(back.partition(_cut(rows, hidden)), h))
        parts = _product(x, slope, (width, hidden), x_turned=True), _product(h, error, (hidden, width), x_turned=True)
        shapes = (width, hidden), (hidden, width)
        sums = [
            _first(blend(s.partition(_cut(*shape)), 1, part))
            for s, part, shape in zip(sums, parts, shapes, strict=True)
        ]
    news = [
        _first(blend(from_host(w).partition(_cut(*w.shape)), -1, g)) for w, g in zip((first, second), sums, strict=True)
    ]
    return _on_host(news)


def _mlp_weights(width: int, hidden: int) -> tuple[Array, Array]:
    return _whole_numbers((width, hidden), 201, -4, 5), _whole_numbers((hidden, width), 202, -4, 5)


def _mlp_shard(n: int, rows: int, width: int) -> tuple[Array, Array]:
    """Return the inputs, and the negated targets."""
    return _whole_numbers((rows, width), 300 + n, -3, 4), _whole_numbers((rows, width), 400 + n, -3, 4)


def _mlp_step(shards: int = 3, rows: int = 4, width: int = 4, hidden: int = 8) -> Arrays:
    first, second = _mlp_weights(width, hidden)
    x, minus_target = map(np.concatenate, zip(*(_mlp_shard(n, rows, width) for n in range(shards)), strict=True))
    h = np.clip(np.floor_divide(x @ first, 4), 0, 15)
    error = h @ second + minus_target
    return first - x.T @ ((error @ second.T) * (h > 0)), second - h.T @ error


NAMED: Final[dict[str, Callable[..., Op]]] = {
    "fork_join": fork_join,
    "butterfly": butterfly,
    "cholesky": cholesky,
    "lu": lu,
    "transformer_block": transformer_block,
    "reduction_tree": reduction_tree,
    "mlp_step": mlp_step,
}
"""Functions that build a new op by name. Their parameters are sizes."""

EXPECTED: Final[dict[str, Callable[..., Arrays]]] = {
    "fork_join": _fork_join,
    "butterfly": _butterfly,
    "cholesky": _cholesky,
    "lu": _lu,
    "transformer_block": _transformer_block,
    "reduction_tree": _reduction_tree,
    "mlp_step": _mlp_step,
}
"""Functions that compute the result of an op by NumPy, with the same parameters."""

LARGER: Final[dict[str, dict[str, int]]] = {
    "fork_join": {"branches": 6, "depth": 5, "size": 1024},
    "butterfly": {"stages": 5, "size": 600},
    "cholesky": {"tiles": 6, "edge": 32},
    "lu": {"tiles": 4, "edge": 32},
    "transformer_block": {"tokens": 32, "width": 48, "heads": 3},
    "reduction_tree": {"leaves": 27, "size": 768},
    "mlp_step": {"shards": 5, "rows": 32, "width": 48, "hidden": 96},
}
"""Sizes for which tensors have several tiles."""
