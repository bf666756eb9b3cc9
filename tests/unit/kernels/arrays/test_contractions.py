"""`einsum`, `tensordot` and `dot`: the numbers of NumPy, for axes in any order and layout."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import KernelArgumentError, ShapeError, array, f32, f64, from_host, ones

EXTENTS = dict(zip("abcdef", (2, 3, 4, 1, 5, 0), strict=True))


def tensor(labels: str, seed: int, dtype: Any = f64) -> tuple[Any, Any]:
    """Random numbers with an extent for each label, as an array and as a shared tensor that runs backwards."""
    shape = tuple([EXTENTS[label] for label in labels])
    x = np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)
    t: Any = from_host(np.asarray(np.flip(x)).copy()).sync()
    return x, t.slice(*[slice(None, None, -1)] * x.ndim) if x.ndim else t.share()


@st.composite
def contractions(draw: st.DrawFn) -> tuple[list[str], str | None]:
    """The labels of one to three operands, and of the result, or None for NumPy's."""
    labels = "abcde" if draw(st.integers(0, 5)) else "abcdef"
    inputs = [
        "".join(draw(st.permutations(sorted(draw(st.sets(st.sampled_from(labels), max_size=4))))))
        for _ in range(draw(st.integers(1, 3)))
    ]
    given_labels = sorted(set("".join(inputs)))
    if not given_labels or draw(st.integers(0, 4)) == 0:
        return inputs, None
    return inputs, "".join(draw(st.permutations(sorted(draw(st.sets(st.sampled_from(given_labels)))))))


@settings(max_examples=150)
@given(contractions())
def test_einsum_is_numpys(case: Any) -> None:
    """Of one operand, two and three, with batches, and with axes of one operand that are summed over."""
    inputs, wanted = case
    text = ",".join(inputs) + ("" if wanted is None else f"->{wanted}")
    both = [tensor(labels, n) for n, labels in enumerate(inputs)]
    expected = np.einsum(text, *[x for x, _ in both])
    found = array.einsum(text, *[t for _, t in both]).to_host().sync()
    assert found.shape == expected.shape, text
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=text)


@pytest.mark.parametrize(
    ("a", "b", "axes"),
    [
        ("abc", "bca", 0),
        ("abc", "cba", 1),
        ("cab", "abe", 2),
        ("abc", "cab", ((0, 2), (1, -3))),
        ("abc", "bae", (0, 1)),
    ],
)  # fmt: skip
def test_tensordot_is_numpys(a: str, b: str, axes: Any) -> None:
    """With a count, lists of axes, and one axis of each."""
    (x, s), (y, t) = tensor(a, 1), tensor(b, 2)
    found = array.tensordot(s, t, axes).to_host().sync()
    np.testing.assert_allclose(found, np.tensordot(x, y, axes), rtol=1e-9, strict=True)


@pytest.mark.parametrize(("a", "b"), [("a", "a"), ("ab", "bc"), ("ab", "b"), ("abc", "ca"), ("ab", "abc"), ("a", "ab")])
def test_dot_is_numpys(a: str, b: str) -> None:
    """Of vectors, matrices and more axes."""
    (x, s), (y, t) = tensor(a, 1, f32), tensor(b, 2, f32)
    if len(b) > 1 and EXTENTS[a[-1]] != EXTENTS[b[-2]]:
        with pytest.raises(ShapeError, match="Give both as many"):
            array.dot(s, t)
        return
    np.testing.assert_allclose(array.dot(s, t).to_host().sync(), np.dot(x, y), rtol=1e-5)


def test_what_is_refused() -> None:
    """Diagonals, dots, unknown letters, another number of operands or axes; nothing moves."""
    t = ones((3, 3)).sync()
    for text in ("ii", "i...", "ij->k", "ij,jk", "ij->ii"):
        with pytest.raises(KernelArgumentError, match="Give each operand letters"):
            array.einsum(text, t)
    with pytest.raises(ShapeError, match="Name each axis once"):
        array.einsum("i", t)
    with pytest.raises(ShapeError, match="Give a count"):
        array.tensordot(t.borrow(), t.borrow(), ((0,), (0, 1)))
    assert array.einsum("ij->", t).to_host().sync() == 9
