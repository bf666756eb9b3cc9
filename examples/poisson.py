"""Poisson's equation in a square by conjugate gradients: operators, slices and
functions of arrays alone.

    p --> laplacian --> q --> step = rr / sum(p q) --> u + step p
                                                  --> r - step q --> rr --> next p

Each arrow into a kernel is an operator or a function; neighbouring operators are one
kernel. An iteration is one pipeline call, and reads no number back. The solution is
compared with that of SciPy's sparse solver, if SciPy is there.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from dagpu import (
    DeviceOp,
    SharedTensor,
    Tensor,
    array,
    dup,
    f64,
    from_host,
    pipeline,
    zeros,
    zip_ops,
)

N, ITERATIONS, CHECKED = 64, 400, 25
"""Points along a side, iterations at most, and after how many the residual is read."""

laplacian = array.stencil(f64, border="constant")(
    lambda u: 4 * u[0, 0] - u[-1, 0] - u[1, 0] - u[0, -1] - u[0, 1]
)
"""The matrix of -h^2 times the Laplacian, with 0 at the border of the square."""

Shared: TypeAlias = SharedTensor[f64]
State: TypeAlias = tuple[Tensor[f64], Shared, Tensor[f64], Shared]


@pipeline
def iterate(u: Shared, r: Shared, p: Shared, rr: Shared) -> DeviceOp[State]:
    """Return the next solution (n, n), residual, direction, and square of the
    residual's norm (Hestenes and Stiefel, 1952)."""
    q = laplacian(p).shared()
    step = (rr / array.sum(p * q)).shared()
    rest = (r - step * q).shared()
    left = array.sum(rest * rest).shared()
    return zip_ops(u + step * p, rest, rest + (left / rr) * p, left)


def solve(right: Shared) -> tuple[Shared, int]:
    """Return the solution for a right side (n, n), and the number of iterations."""
    n = right.shape[0]
    u, r, p = zeros((n, n), f64).sync().share(), right, right
    rr = array.sum(right * right).sync().share()
    for done in range(1, ITERATIONS + 1):
        u_next, r, p_next, rr = iterate(u, r, p, rr).sync()
        u, p = u_next.share(), p_next.share()
        if done % CHECKED == 0 and rr.to_host().sync() < 1e-20:
            return u, done
    return u, ITERATIONS


def main() -> None:
    x = (np.arange(N) + 1) / (N + 1)
    wave = np.sin(np.pi * x)[:, None] * np.sin(2 * np.pi * x)
    right = from_host(wave + x[:, None] * x).sync().share()
    u, iterations = solve(right)
    print(
        f"{N * N} unknowns, {iterations} iterations, {iterate.cache_info().misses} plan"
    )

    rest = right - laplacian(u)
    print(f"largest residual {array.amax(abs(rest)).to_host().sync():.1e}")
    middle = dup(u[N // 2, ::16]).to_host().sync()
    print("along the middle", np.round(middle, 2))
    if find_spec("scipy") is None:
        print("SciPy is not installed")
        return
    sparse: Any = import_module("scipy.sparse")
    solver: Any = import_module("scipy.sparse.linalg")
    line = sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(N, N))
    along, across = sparse.kron(line, sparse.eye(N)), sparse.kron(sparse.eye(N), line)
    wanted = solver.spsolve((along + across).tocsr(), right.to_host().sync().ravel())
    assert np.allclose(u.to_host().sync().ravel(), wanted, atol=1e-8)


if __name__ == "__main__":
    main()
