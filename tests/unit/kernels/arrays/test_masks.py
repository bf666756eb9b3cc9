"""Bools whose bytes are neither 0 nor 1, as those of an array of bytes that is viewed as bool: any byte but 0 is true,
in the CUDA text of every function that takes them and in its host body, which give the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import array, bf16, bool_, convert, expr, f16, f32, f64, from_host, i8, i32, i64, u8, u64
from tests.conftest import sampled
from tests.support.text_runs import by_text

RNG = np.random.default_rng(7)
MASK = RNG.choice(np.array([0, 0, 1, 2, 128, 255], np.uint8), 64 * 66).reshape(64, 66)
OTHER = RNG.choice(np.array([0, 0, 1, 3, 64, 254], np.uint8), 64 * 66).reshape(64, 66)
NUMBERS = RNG.standard_normal((64, 66)).astype(f32)

one, two, three = expr(bool_), expr(bool_, bool_), expr(bool_, bool_, bool_)
FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    # what is computed of tensors, and of NumPy's arrays of 0 and 1
    **{
        f"to {t.__name__}": (lambda x, _, t=t: one(lambda a: a.to(t))(x), lambda x, _, t=t: x.astype(t))  # type: ignore[misc]  # reason: a default binds the type
        for t in (u8, i8, i32, i64, u64, f16, f32, f64, bf16)
    },
    "same": (lambda x, _: one(lambda a: a)(x), lambda x, _: x),
    "invert": (lambda x, _: one(lambda a: ~a)(x), lambda x, _: ~x),
    "equal": (lambda x, y: two(lambda a, b: a == b)(x, y), np.equal),
    "not equal": (lambda x, y: two(lambda a, b: a != b)(x, y), np.not_equal),
    "less": (lambda x, y: two(lambda a, b: a < b)(x, y), np.less),
    "less or equal": (lambda x, y: two(lambda a, b: a <= b)(x, y), np.less_equal),
    "and": (lambda x, y: two(lambda a, b: a & b)(x, y), np.logical_and),
    "or": (lambda x, y: two(lambda a, b: a | b)(x, y), np.logical_or),
    "xor": (lambda x, y: two(lambda a, b: a ^ b)(x, y), np.logical_xor),
    "broadcast": (lambda x, _: two(lambda a, b: a ^ b)(x, mask_op(OTHER[:1])), lambda x, _: x ^ (OTHER[:1] > 0)),
    "choice": (lambda x, y: three(lambda a, b, c: array.where(a, b, c))(x, y, x), lambda x, y: np.where(x, y, x)),
    "where": (lambda x, y: array.where(x, y, x), lambda x, y: np.where(x, y, x)),
    "where of numbers": (
        lambda x, _: array.where(x, from_host(NUMBERS), 0.0),
        lambda x, _: np.where(x, NUMBERS, f32(0)),
    ),
    "all": (lambda x, _: array.all(x, 1), lambda x, _: x.all(1)),
    "any": (lambda x, _: array.any(x, 0), lambda x, _: x.any(0)),
    "all of one": (lambda _, __: array.all(mask_op(OTHER[:1]), 0), lambda _, __: OTHER[0] > 0),
    "any of differences": (lambda x, y: two(lambda a, b: a ^ b).any(1)(x, y), lambda x, y: (x ^ y).any(1)),
    "all of equals": (lambda x, y: two(lambda a, b: a == b).all(0)(x, y), lambda x, y: (x == y).all(0)),
    "sum": (lambda x, _: one(lambda a: a.to(i32)).sum(1)(x), lambda x, _: x.sum(1, dtype=i32)),
    "amax": (lambda x, _: one(lambda a: a.to(u8)).amax(0)(x), lambda x, _: x.astype(u8).max(0)),
    "argsort": (lambda x, _: array.argsort(x), lambda x, _: np.argsort(x, 1, kind="stable")),
    "argsort of columns": (lambda x, _: array.argsort(x, 0), lambda x, _: np.argsort(x, 0, kind="stable")),
    "argsort of a long row": (lambda x, _: array.argsort(x, None), lambda x, _: np.argsort(x, None, kind="stable")),
    "places of the largest": (
        lambda x, _: array.topk(x, 5).map(lambda pair: pair[1]),
        lambda x, _: np.argsort(~x, 1, kind="stable")[:, :5],
    ),
}
"""The functions that compute with bools: their results have bytes of 0 and 1."""

MOVES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[NDArray[np.uint8], NDArray[np.uint8]], Any]]] = {
    "concatenate": (lambda x, y: array.concatenate((x, y)), lambda x, y: np.concatenate((x, y))),
    "stack": (lambda x, y: array.stack((x, y), 1), lambda x, y: np.stack((x, y), 1)),
    "transpose": (lambda x, _: array.transpose(x), lambda x, _: x.T),
    "take": (lambda x, _: array.take(x, from_host(np.arange(9)[::-1].copy()), 1), lambda x, _: x[:, 8::-1]),
    "sort": (lambda x, _: array.sort(x), lambda x, _: np.take_along_axis(x, np.argsort(x > 0, 1, kind="stable"), 1)),
    "sort of a long row": (
        lambda x, _: array.sort(x, None),
        lambda x, _: x.ravel()[np.argsort(x.ravel() > 0, kind="stable")],
    ),
}
"""The functions that move elements: they keep their bytes."""


def mask_op(raw: NDArray[np.uint8]) -> Any:
    return from_host(raw.view(np.bool_))


def bytes_of(found: Any) -> tuple[str, tuple[int, ...], bytes]:
    array_ = np.ascontiguousarray(found)
    return array_.dtype.name, array_.shape, array_.tobytes()


def expected(name: str) -> Any:
    if name in MOVES:
        return bytes_of(np.asarray(MOVES[name][1](MASK, OTHER)).view(np.bool_))
    return bytes_of(FUNCTIONS[name][1](MASK != 0, OTHER != 0))


@pytest.mark.parametrize("name", [*FUNCTIONS, *MOVES])
def test_any_byte_but_zero_is_true(name: str) -> None:
    """What computes gives the bits of the same mask of 0 and 1, and what moves elements keeps their bytes."""
    call = {**FUNCTIONS, **MOVES}[name][0]
    x, y = (mask_op(each).sync().share() for each in (MASK, OTHER))
    assert bytes_of(call(x, y).to_host().sync()) == expected(name)


def test_a_mask_with_gaps_is_read_as_any_other() -> None:
    """In reverse, every second element: where NumPy computes with other loops than for neighbours."""
    x, y = (mask_op(each).sync().slice(slice(None), slice(None, None, -2)) for each in (MASK, OTHER))
    found = two(lambda a, b: a == b)(x, y).to_host().sync()
    assert bytes_of(found) == bytes_of((MASK[:, ::-2] > 0) == (OTHER[:, ::-2] > 0))


@pytest.mark.parametrize("name", sampled([*FUNCTIONS, *MOVES]))
def test_any_byte_but_zero_is_true_in_cuda(name: str) -> None:
    """The CUDA text of each function gives the bits of its host body."""
    call = {**FUNCTIONS, **MOVES}[name][0]
    x, y = (mask_op(each).sync().share() for each in (MASK, OTHER))
    assert bytes_of(by_text(call(x, y))) == expected(name)


@pytest.mark.parametrize("dtype", [u8, i8, i64, f16, bf16, f32, f64], ids=lambda t: t.__name__)
def test_converted_masks_are_0_and_1(dtype: Any) -> None:
    """`convert` of a tensor gives 1 for any byte but 0."""
    assert bytes_of(convert(mask_op(MASK).sync(), dtype).to_host().sync()) == bytes_of((MASK != 0).astype(dtype))
