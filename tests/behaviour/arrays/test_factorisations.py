"""Factorisations and systems of equations on every kind of device: NumPy's values, layouts, pipelines, refusals."""

import threading
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    CaptureError,
    KernelArgumentError,
    ShapeError,
    array,
    bf16,
    c64,
    c128,
    f16,
    f32,
    f64,
    from_host,
    i32,
    memcpy,
    ones,
    pipeline,
    zeros,
    zip_ops,
)
from tests.behaviour.arrays.array_places import cut, steps
from tests.behaviour.arrays.library_places import libraries_on_each_device as libraries_on_each_device
from tests.behaviour.arrays.library_places import where as where

anyhow: Any = array
TYPES: Any = (f32, f64, c64, c128)
SHAPES = ((1, 1), (2, 5), (5, 2), (6, 6), (1, 4), (4, 1), (17, 9))


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> NDArray[Any]:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    found: NDArray[Any] = parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]
    return found.astype(dtype)


def definite(n: int, dtype: Any, seed: int = 0) -> NDArray[Any]:
    """A Hermitian matrix whose eigenvalues are n and more."""
    m = normal((n, n), dtype, seed)
    found: NDArray[Any] = m @ m.conj().T + n * np.eye(n)
    return found.astype(dtype)


def near(found: NDArray[Any], expected: Any) -> None:
    eps = np.finfo(found.dtype).eps
    size = max(abs(expected).max(initial=0), 1)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=100 * eps * size * max(*found.shape, 4))


def arrays_of(op: Any) -> Any:
    return [t.to_host().sync() for t in op.sync()]


# ---- values
@pytest.mark.parametrize("dtype", TYPES)
def test_a_cholesky_factor_is_numpys(with_libraries: Any, dtype: Any) -> None:
    """Of the lower triangle alone; the input stays as it was."""
    for n in (1, 2, 7, 33):
        x = definite(n, dtype)
        disturbed = np.tril(x) + np.triu(np.full_like(x, np.nan), 1)
        t = from_host(disturbed).sync()
        found = array.cholesky(t.borrow()).to_host().sync()
        assert found.dtype == dtype
        near(found, np.linalg.cholesky(x))
        assert t.to_host().sync().tobytes() == disturbed.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_solution_is_numpys(with_libraries: Any, dtype: Any) -> None:
    """Of one column and of several, of matrices whose rows have to change places."""
    for n in (1, 2, 7, 20):
        a = normal((n, n), dtype) + np.eye(n, dtype=dtype)[::-1] * 4
        for shape in ((n,), (n, 1), (n, 3), (n, 40)):
            b = normal(shape, dtype, 1)
            t, right = from_host(a).sync(), from_host(b).sync()
            found = array.solve(t.borrow(), right.borrow()).to_host().sync()
            assert found.dtype == dtype
            near(found, np.linalg.solve(a, b))
            assert (t.to_host().sync().tobytes(), right.to_host().sync().tobytes()) == (a.tobytes(), b.tobytes())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_is_q_times_r(with_libraries: Any, dtype: Any, shape: tuple[int, int]) -> None:
    """With orthonormal columns and a triangle, which are NumPy's but for signs."""
    x = normal(shape, dtype)
    q, r = arrays_of(array.qr(from_host(x)))
    assert q.dtype == r.dtype == dtype
    near(q @ r, x)
    near(q.conj().T @ q, np.eye(min(shape)))
    assert not np.tril(r, -1).any()
    near(abs(r), abs(np.linalg.qr(x).R))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_is_its_singular_values(with_libraries: Any, dtype: Any, shape: tuple[int, int]) -> None:
    """With as many columns and rows as NumPy's, of either kind."""
    x, small = normal(shape, dtype), min(shape)
    for full in (True, False):
        found = arrays_of(array.svd(from_host(x), full))
        expected = np.linalg.svd(x, full)
        assert [(each.shape, each.dtype) for each in found] == [(each.shape, each.dtype) for each in expected]
        u, s, vh = found
        near(s, expected.S)
        near((u[:, :small] * s) @ vh[:small], x)
        near(u.conj().T @ u, np.eye(u.shape[1]))
        near(vh @ vh.conj().T, np.eye(len(vh)))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_part_has_the_bits_of_its_copy(with_libraries: Any, data: st.DataObject) -> None:
    """Whatever steps and directions its axes have."""
    part = cut(normal((9, 9), data.draw(st.sampled_from(TYPES))), (data.draw(steps), data.draw(steps)))
    if not part.array.size:
        return
    copied = np.array(part.array, order="C")
    for call in (array.qr, array.svd):
        for one, other in zip(arrays_of(call(part.lent())), arrays_of(call(from_host(copied))), strict=True):
            assert one.tobytes() == other.tobytes()
    n = min(copied.shape)
    square = cut(part.array, (slice(n), slice(n)))
    found = array.solve(square.lent(), from_host(copied[:n])).to_host().sync()
    again = array.solve(from_host(np.array(square.array, order="C")), from_host(copied[:n])).to_host().sync()
    assert found.tobytes() == again.tobytes()


def test_matrices_without_elements(with_libraries: Any) -> None:
    """Have the results of NumPy."""
    assert array.cholesky(zeros((0, 0))).to_host().sync().shape == (0, 0)
    assert array.solve(zeros((0, 0)), zeros((0, 3))).to_host().sync().shape == (0, 3)
    assert array.solve(ones((2, 2)), zeros((2, 0))).to_host().sync().shape == (2, 0)
    for shape in ((0, 3), (3, 0), (0, 0)):
        x = np.zeros(shape, f32)
        assert [each.shape for each in arrays_of(array.qr(zeros(shape)))] == [each.shape for each in np.linalg.qr(x)]
        for full in (True, False):
            found, expected = arrays_of(array.svd(zeros(shape), full)), np.linalg.svd(x, full)
            assert [each.tolist() for each in found] == [each.tolist() for each in expected]


# ---- no result
@pytest.mark.parametrize("dtype", TYPES)
def test_what_cannot_be_factored_is_nan(with_libraries: Any, dtype: Any) -> None:
    """Each element, and nothing else is touched: the next run of the same plan has its result."""

    @pipeline
    def factored(a: Any, b: Any) -> Any:
        return zip_ops(array.cholesky(a), array.solve(a, b))

    good, bad = definite(4, dtype), np.ones((4, 4), dtype)
    bad[0, 0] = -1
    bad[1] = bad[2]
    spoilt = good.copy()
    spoilt[2, 1] = np.nan
    b = normal((4, 2), dtype)
    for a in (good, bad, spoilt, good):
        t, right = from_host(a).sync().share(), from_host(b).sync().share()
        lower, x = arrays_of(factored(t, right))
        if a is good:
            near(lower, np.linalg.cholesky(good))
            near(x, np.linalg.solve(good, b))
        else:
            assert np.isnan(lower).all()
            assert np.isnan(x).all() or a is spoilt
    wrong = good.copy()
    wrong[0, 0] = np.inf
    for each in arrays_of(array.svd(from_host(wrong))):
        assert np.isnan(each).all()


# ---- plans
def test_a_pipeline_of_them(with_libraries: Any) -> None:
    """Whose tensors lie elsewhere in each call: a plan, and the values of the arguments each time."""

    @pipeline
    def composed(a: Any, b: Any) -> Any:
        lower = array.cholesky(a)
        q, r = array.qr(b).unzip()
        return zip_ops(array.matmul(lower, q), array.solve(a, r), anyhow.svd(b, full_matrices=False).unzip()[1])

    kept = []
    for seed in range(5):
        a, b = definite(3, f32, seed), normal((3, 3), f32, seed)
        kept.append((composed(from_host(a).sync().share(), from_host(b).sync().share()).sync(), a, b))
    for found, a, b in kept:
        product, x, s = [t.to_host().sync() for t in found]
        near(abs(product), abs(np.linalg.cholesky(a) @ np.linalg.qr(b).Q))
        near(abs(a @ x), abs(np.linalg.qr(b).R))
        near(s, np.linalg.svd(b).S)
    assert composed.cache_info()[:2] == (4, 1)


def test_a_graph_of_them(with_libraries: Any) -> None:
    """Is launched with the contents that its input has then."""
    first, second = definite(5, f64), definite(5, f64, 1)
    t = from_host(first).sync()
    graph = zip_ops(array.cholesky(t.borrow()), array.qr(t.borrow())).graph()
    outputs = graph.take_output()
    for a in (first, second, first):
        graph.update(memcpy(t.borrow_mut(), from_host(a).sync()))
        graph.launch().sync()
        lower, (q, r) = outputs
        near(lower.borrow().to_host().sync(), np.linalg.cholesky(a))
        near(q.borrow().to_host().sync() @ r.borrow().to_host().sync(), a)


def test_a_solution_is_in_no_cuda_graph(with_libraries: Any) -> None:
    """The driver refuses the library's work there: a graph of one says so, and a pipeline goes through streams."""
    a, b = definite(5, f64), normal((5, 2), f64)
    t, columns = from_host(a).sync().share(), from_host(b).sync().share()
    if hasattr(with_libraries, "threads"):
        with pytest.raises(CaptureError, match=r"the driver refuses what .* computes solve\. Take solve out"):
            array.solve(t, columns).graph()
    solved = pipeline(lambda x, y: array.solve(x, y))
    for _ in range(4):
        near(solved(t, columns).to_host().sync(), np.linalg.solve(a, b))


def test_singular_values_are_in_no_cuda_graph(with_libraries: Any) -> None:
    """The library waits for the device: a graph of one says so, and a pipeline goes through streams."""
    x = normal((4, 3), f32)
    t = from_host(x).sync().share()
    if hasattr(with_libraries, "threads"):
        with pytest.raises(CaptureError, match=r"the library that computes svd waits for the device\. Take svd out"):
            array.svd(t).graph()
    values = pipeline(lambda a: anyhow.svd(a).unzip()[1])
    for _ in range(4):
        near(values(t).to_host().sync(), np.linalg.svd(x).S)


def test_a_task_that_waits_lets_others_run(with_libraries: Any) -> None:
    """Another thread calls what waits for the device."""
    x = from_host(normal((4, 3), f32)).sync().share()

    async def main() -> Any:
        return [await t.to_host() for t in await array.svd(x)]

    u, s, vh = trio.run(main)
    near((u[:, :3] * s) @ vh, normal((4, 3), f32))
    if with_libraries is not None and hasattr(with_libraries, "threads"):
        assert with_libraries.threads["xgesvd"] != threading.get_ident()


# ---- refusals
def test_what_a_factorisation_refuses(where: Any) -> None:
    """Other elements, numbers, and what is no matrix, before anything runs."""
    for name in ("cholesky", "qr", "svd"):
        call = getattr(anyhow, name)
        for dtype in (i32, f16, bf16):
            with pytest.raises(KernelArgumentError, match="it takes elements of f32, f64, c64 or c128"):
                call(zeros((2, 2), dtype))
        with pytest.raises(KernelArgumentError, match="a is a number"):
            call(2.0)
        for shape in ((), (3,)):
            with pytest.raises(ShapeError, match="a matrix has two axes"):
                call(zeros(shape))
        with pytest.raises(ShapeError, match="a call takes one matrix"):
            call(zeros((2, 3, 3)))
    with pytest.raises(ShapeError, match="is to be square"):
        array.cholesky(zeros((2, 3)))
    with pytest.raises(ShapeError, match="is to be square"):
        array.solve(zeros((2, 3)), zeros((2,)))
    for other in ((3,), (3, 2), (), (2, 2, 2)):
        with pytest.raises(ShapeError, match="b has the shape"):
            array.solve(zeros((2, 2)), zeros(other))
    with pytest.raises(KernelArgumentError, match="a has elements of f32, and b of f64"):
        anyhow.solve(zeros((2, 2)), zeros((2,), f64))
    with pytest.raises(KernelArgumentError, match="b is a number"):
        anyhow.solve(zeros((2, 2)), 2.0)
