"""Factorisations and systems of equations by cuSOLVER on the GPU.

The tolerance is `20 * eps * n` times the size of what is compared, with eps of the type of the parts and n the larger
extent. Matrices are well conditioned, so that results and not only residuals are compared.
"""

from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from dagpu import CaptureError, Device, array, c64, c128, f32, f64, from_host, memcpy, pipeline, zip_ops
from dagpu.grad import assert_gradient

TYPES: Any = (f32, f64, c64, c128)
SQUARES = (1, 2, 3, 31, 64, 257, 1000)
SHAPES = ((1, 1), (1, 7), (7, 1), (3, 5), (5, 3), (64, 64), (300, 41), (41, 300), (513, 512))
anyhow: Any = array


def normal(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> NDArray[Any]:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    found: NDArray[Any] = parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]
    return found.astype(dtype)


def definite(n: int, dtype: Any, seed: int = 0) -> NDArray[Any]:
    m = normal((n, n), dtype, seed)
    found: NDArray[Any] = m @ m.conj().T + n * np.eye(n)
    return found.astype(dtype)


def regular(n: int, dtype: Any, seed: int = 0) -> NDArray[Any]:
    """A matrix whose rows have to change places, and whose singular values are between n and 6 n or so."""
    found: NDArray[Any] = normal((n, n), dtype, seed) + np.eye(n)[::-1] * 3 * n**0.5
    return found.astype(dtype)


def near(found: NDArray[Any], expected: Any) -> None:
    assert found.shape == expected.shape
    size = max(abs(expected).max(initial=0), 1)
    bound = 20 * np.finfo(found.dtype).eps * max(*found.shape, 1) * size
    worst = abs(found - expected).max(initial=0)
    assert worst <= bound, (worst, bound)


def arrays_of(op: Any) -> Any:
    return [t.to_host().sync() for t in op.sync()]


@pytest.fixture(autouse=True)
def with_bindings(cuda: Device) -> None:
    pytest.importorskip("nvmath", reason="nvmath-python is not installed")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SQUARES)
def test_linear_cholesky(dtype: Any, n: int) -> None:
    """NumPy's factor, of the lower triangle alone; the same bits in each call, and the input stays as it was."""
    x = definite(n, dtype)
    disturbed = np.tril(x) + np.triu(np.full_like(x, np.nan), 1)
    t = from_host(disturbed).sync()
    found = array.cholesky(t.borrow()).to_host().sync()
    near(found, np.linalg.cholesky(x))
    assert not np.triu(found, 1).any()
    assert array.cholesky(t.borrow()).to_host().sync().tobytes() == found.tobytes()
    assert t.to_host().sync().tobytes() == disturbed.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", SQUARES)
def test_linear_solve(dtype: Any, n: int) -> None:
    """NumPy's solution, of one column and of several; the inputs stay as they were."""
    a = regular(n, dtype)
    t = from_host(a).sync()
    for shape in ((n,), (n, 1), (n, 3), (n, 100)):
        b = normal(shape, dtype, 1)
        right = from_host(b).sync()
        near(array.solve(t.borrow(), right.borrow()).to_host().sync(), np.linalg.solve(a, b))
        assert right.to_host().sync().tobytes() == b.tobytes()
    turned = array.solve(t.slice(slice(None, None, -1), slice(None)), from_host(a[::-1].copy())).to_host().sync()
    near(turned, np.eye(n))
    assert t.to_host().sync().tobytes() == a.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_qr(dtype: Any, shape: tuple[int, int]) -> None:
    """A triangle, and orthonormal columns, whose product is the matrix."""
    x = normal(shape, dtype)
    t = from_host(x).sync()
    q, r = arrays_of(array.qr(t.borrow()))
    assert (q.dtype, r.dtype) == (x.dtype, x.dtype)
    near(q @ r, x)
    near(q.conj().T @ q, np.eye(min(shape)))
    assert not np.tril(r, -1).any()
    near(abs(np.diag(r)), abs(np.diag(np.linalg.qr(x).R)))
    assert t.to_host().sync().tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_linear_svd(dtype: Any, shape: tuple[int, int]) -> None:
    """NumPy's singular values, and orthonormal vectors with which they make the matrix; the input stays as it was."""
    x, small = normal(shape, dtype), min(shape)
    t = from_host(x).sync()
    for full in (True, False):
        u, s, vh = arrays_of(array.svd(t.borrow(), full))
        expected = np.linalg.svd(x, full)
        assert [(each.shape, each.dtype) for each in (u, s, vh)] == [(each.shape, each.dtype) for each in expected]
        near(s, expected.S)
        near((u[:, :small] * s) @ vh[:small], x)
        near(u.conj().T @ u, np.eye(u.shape[1]))
        near(vh @ vh.conj().T, np.eye(len(vh)))
    assert t.to_host().sync().tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_linear_matrices_without_a_result(dtype: Any) -> None:
    """Are NaN, on the GPU as on the host, and the next call with a good matrix is right."""
    good, bad = definite(40, dtype), definite(40, dtype)
    bad[25] = bad[24]
    bad[25, 25] = -1
    singular = np.ones((40, 40), dtype)
    spoilt = good.copy()
    spoilt[30, 3] = np.nan
    for _ in range(2):
        assert np.isnan(array.cholesky(from_host(bad)).to_host().sync()).all()
        assert np.isnan(array.cholesky(from_host(spoilt)).to_host().sync()).all()
        assert np.isnan(array.solve(from_host(singular), from_host(good)).to_host().sync()).all()
        near(array.cholesky(from_host(good)).to_host().sync(), np.linalg.cholesky(good))
        near(array.solve(from_host(good), from_host(good)).to_host().sync(), np.eye(40))


@pytest.mark.parametrize("dtype", [f32, f64])
def test_linear_pipelines(dtype: Any) -> None:
    """Whose tensors lie elsewhere and have other contents in each call, several under way at once."""

    @pipeline
    def composed(a: Any, b: Any) -> Any:
        q, r = array.qr(b).unzip()
        return zip_ops(array.cholesky(a), array.solve(a, b), array.matmul(q, r))

    kept = []
    for seed in range(12):
        a, b = definite(70, dtype, seed), normal((70, 20), dtype, seed)
        kept.append((composed(from_host(a).sync().share(), from_host(b).sync().share()).sync(), a, b))
    for found, a, b in kept:
        lower, x, product = [t.to_host().sync() for t in found]
        near(lower, np.linalg.cholesky(a))
        near(x, np.linalg.solve(a, b))
        near(product, b)
    print("a pipeline of cholesky, solve and qr:", composed.cache_info())  # for `pytest -rP`


@pytest.mark.parametrize("name", ["cholesky", "qr"])
def test_linear_graphs(name: str) -> None:
    """A captured graph is launched with the contents that its input has then."""
    first, second = definite(50, f64), definite(50, f64, 1)
    t = from_host(first).sync()
    ops: Any = {
        "cholesky": lambda: array.cholesky(t.borrow()),
        "qr": lambda: array.qr(t.borrow()).then(lambda pair: array.matmul(*pair)),
    }
    expected: Any = {
        "cholesky": np.linalg.cholesky,
        "qr": lambda a: a,
    }
    op = ops[name]()
    graph = op.graph()
    out = graph.take_output()
    for a in (first, second, first):
        graph.update(memcpy(t.borrow_mut(), from_host(a).sync()))
        graph.launch().sync()
        near(out.borrow().to_host().sync(), expected[name](a))


def test_linear_solve_is_in_no_graph() -> None:
    """The driver refuses its work there; a pipeline of it goes through streams."""
    t, b = from_host(definite(50, f64)).sync().share(), from_host(normal((50, 2), f64)).sync().share()
    with pytest.raises(CaptureError, match="the driver refuses what the library enqueues that computes solve"):
        array.solve(t, b).graph()
    solved = pipeline(lambda a, c: array.solve(a, c))
    for _ in range(6):
        near(solved(t, b).to_host().sync(), np.linalg.solve(definite(50, f64), normal((50, 2), f64)))


def test_linear_svd_waits() -> None:
    """It is in no graph, a pipeline of it goes through streams, and a task that awaits it lets others run."""
    x = normal((300, 200), f32)
    t = from_host(x).sync().share()
    with pytest.raises(CaptureError, match="the library that computes svd waits"):
        array.svd(t).graph()
    values = pipeline(lambda a: anyhow.svd(a).unzip()[1])
    for _ in range(6):
        near(values(t).to_host().sync(), np.linalg.svd(x).S)
    ticks = 0

    async def main() -> None:
        nonlocal ticks

        async def factor() -> None:
            for _ in range(4):
                await values(t).to_host()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(factor)
            while True:
                await trio.sleep(0.001)
                ticks += 1

    trio.run(main)
    assert ticks > 3


def test_linear_gradients() -> None:
    """Of `cholesky` and `solve`, beside central differences."""
    a, b = from_host(definite(6, f64)).sync().share(), from_host(normal((6, 2), f64)).sync().share()
    assert_gradient(lambda t: array.sum(array.cholesky(t)), a)
    assert_gradient(lambda pair: array.norm(array.solve(*pair)), (a, b))
