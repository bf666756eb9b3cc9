"""Functions of complex and real tensors, with tensors to call them with, for the rules of their gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dagpu import array, c128, convert, dup, expr, f64, from_host, zeros

A: Any = array
DRAWS = np.random.default_rng(1)


def drawn(*shape: int) -> Any:
    return DRAWS.standard_normal(shape) + 1j * DRAWS.standard_normal(shape)


x: Any = DRAWS.uniform(0.2, 0.9, (3, 4))
z: Any = drawn(3, 4)
u: Any = drawn(4)
Z3, W3 = drawn(2, 3, 4), drawn(2, 4, 5)


def places(*numbers: int) -> Any:
    return from_host(np.array(numbers, np.int64))


def of_elements(f: Callable[..., Any], *kinds: Any) -> Any:
    return expr(*kinds)(f)


cases: dict[str, Any] = {
    "abs": (lambda z: A.abs(z), z),
    "angle": (lambda z: A.angle(z), z),
    "angle_real": (lambda x: A.angle(x), x),
    "real": (lambda z: A.real(z), z),
    "real_real": (lambda x: A.real(x), x),
    "imag": (lambda z: A.imag(z), z),
    "conj": (lambda z: A.conj(z) * z * z, z),
    "exp": (lambda z: A.exp(z), z),
    "sqrt": (lambda z: A.sqrt(z), z),
    "operators": (lambda z, u: (z * u - 2 * z) / (u + 3) + z * 1j - 1, z, u),
    "power": (lambda z: z**3, z),
    "where": (lambda z: A.where(from_host(x > 0.5), z, 1j), z),
    "spectrum": (lambda z: A.real(z) * A.real(z) + A.imag(z) * A.imag(z), z),
    "expression": (of_elements(lambda a, b: (a.to(c128) * 1j + b).conj() * b, f64, c128), x, z),
    "expression_size": (of_elements(lambda a: (abs(a * 1j + a.conj() * 2).to(c128) * a).real, c128), z),
    "expression_angle": (of_elements(lambda a: A.angle(a * a) + A.exp(a).imag, c128), z),
    "written": (lambda z, u: of_elements(lambda a, b: a * b, c128, c128).into(
        zeros((3, 4), c128).partition((1, 4)), z, u).first().unpartition(), z, u),
    "reduced_sum": (lambda z, u: of_elements(lambda a, b: a * b.conj(), c128, c128).sum(1)(z, u), z, u),
    "reduced_mean": (lambda z, u: of_elements(lambda a, b: a * b, c128, c128).mean()(z, u), z, u),
    "sum": (lambda z: A.sum(z, 0), z),
    "sum_dtype": (lambda x: A.sum(x, 0, dtype=c128), x),
    "mean": (lambda z: A.mean(z), z),
    "cumsum": (lambda z: A.cumsum(z, 1), z),
    "matmul": (lambda p, q: p @ q, Z3, W3),
    "matmul_a": (lambda p, q: A.matmul(p, q, transpose="a"), Z3.swapaxes(1, 2).copy(), W3),
    "matmul_b": (lambda p, q: A.matmul(p, q, transpose="b"), Z3, W3.swapaxes(1, 2).copy()),
    "matmul_ab": (lambda p, q: A.matmul(p, q, transpose="ab"), Z3.swapaxes(1, 2).copy(), W3.swapaxes(1, 2).copy()),
    "einsum": (lambda p, q, s: A.einsum("bij,bjk,j->ki", p, q, s), Z3, W3, u),
    "tensordot": (lambda p, q: A.tensordot(p, q, ((0, 2), (0, 1))), Z3, W3),
    "dot": (lambda p, q: A.dot(p, q), Z3, u),
    "transpose": (lambda z: A.transpose(z), Z3),
    "broadcast_to": (lambda z: A.broadcast_to(z, (2, 3, 4)), u),
    "flip": (lambda z: A.flip(z, 1), z),
    "roll": (lambda z: A.roll(z, 1, 0), z),
    "tril": (lambda z: A.tril(z), z),
    "triu": (lambda z: A.triu(z), z),
    "tile": (lambda z: A.tile(z, (2, 1)), z),
    "repeat": (lambda z: A.repeat(z, 2, 1), z),
    "pad": (lambda z: A.pad(z, ((1, 2), (0, 3))), z),
    "pad_edge": (lambda z: A.pad(z, ((1, 2), (0, 3)), "edge"), z),
    "concatenate": (lambda p, q: A.concatenate([p, q], 0), z, 2 * z),
    "stack": (lambda p, q: A.stack([p, q], 1), z, 2 * z),
    "dup": (lambda z: dup(z), z),
    "convert": (lambda x: convert(x, c128), x),
    "take": (lambda z: A.take(z, places(0, 2, 2, -1)), z),
    "take_along_axis": (lambda z: A.take_along_axis(z, from_host(np.array([[0, 2], [2, -1], [1, 1]])), 1), z),
    "scatter_add": (lambda p, q: A.scatter_add(dup(p), places(0, 2, 2), q), z, z * 2),
    "scatter_set": (lambda p, q: A.scatter_set(dup(p), places(0, 2, 2), q), z, z * 2),
    "segment_sum": (lambda z: A.segment_sum(z, places(0, 1, 0), 3), z),
    "meshgrid": (lambda p, q: A.meshgrid(p, q).then(lambda both: both[0] * both[1]), u, z[:, 0].copy()),
    "compress": (lambda z: A.compress(from_host(x > 0.5), z, size=6), z),
    "stencil": (array.stencil(c128)(lambda n: n[-1] * 1j + 2 * n[1]), u),
    "stencil_curved": (array.stencil(c128, border="wrap")(lambda n: n[-1] * n[1].conj()), u),
    "slice": (lambda z: z[1:, ::2] * 2, z),
}  # fmt: skip
for norm in ("backward", "ortho", "forward"):
    for name in ("fft", "ifft"):
        cases[f"{name}_{norm}"] = (lambda z, f=name, norm=norm: getattr(A, f)(z, norm=norm), z)
    cases[f"rfft_{norm}"] = (lambda x, norm=norm: A.rfft(x, norm=norm), x)
    cases[f"irfft_{norm}"] = (lambda z, norm=norm: A.irfft(z, norm=norm), z)
    cases[f"fft_real_{norm}"] = (lambda x, norm=norm: A.fft(x, axis=0, norm=norm), x)
    cases[f"ifft2_{norm}"] = (lambda z, norm=norm: A.ifft2(z, norm=norm), Z3)
    cases[f"irfftn_{norm}"] = (lambda z, norm=norm: A.irfftn(z, norm=norm), Z3)
for n in (2, 3, 5, 6, 7):
    for name, given in (("fft", z), ("ifft", z), ("irfft", z), ("rfft", x)):
        for axis in (0, 1):
            cases[f"{name}_{n}_{axis}"] = (lambda z, f=name, n=n, axis=axis: getattr(A, f)(z, n, axis), given)
for name, given in (("fft2", Z3), ("ifft2", Z3), ("irfft2", Z3), ("rfft2", Z3.real.copy())):
    cases[name] = (lambda z, f=name: getattr(A, f)(z), given)
    cases[f"{name}_s"] = (lambda z, f=name: getattr(A, f)(z, (5, 2), (0, 1)), given)
for name, given in (("fftn", Z3), ("ifftn", Z3), ("irfftn", Z3), ("rfftn", Z3.real.copy())):
    cases[name] = (lambda z, f=name: getattr(A, f)(z), given)
    cases[f"{name}_s"] = (lambda z, f=name: getattr(A, f)(z, (4, 3, 5)), given)
    cases[f"{name}_last"] = (lambda z, f=name: getattr(A, f)(z, (4, -1)), given)
    cases[f"{name}_axes"] = (lambda z, f=name: getattr(A, f)(z, axes=(2, 0)), given)
for name in ("fftshift", "ifftshift"):
    cases[name] = (lambda z, f=name: getattr(A, f)(z), Z3)
    cases[f"{name}_axis"] = (lambda z, f=name: getattr(A, f)(z, 1), Z3)
for mode in ("full", "same", "valid"):
    for name in ("convolve", "correlate"):
        for number, (n, m) in enumerate([(7, 3), (3, 7), (6, 4), (4, 6), (1, 5), (4, 4)]):
            case = (lambda p, q, f=name, mode=mode: getattr(A, f)(p, q, mode), drawn(n), drawn(m))
            cases[f"{name}_{mode}_{number}"] = case
    cases[f"convolve_{mode}_real"] = (lambda p, q, mode=mode: A.convolve(p, q, mode), x[0], x[1])
SYSTEM = drawn(4, 4) + 4 * np.eye(4)[::-1]
cases["solve"] = (lambda p, q: A.solve(p, q), SYSTEM, u)
cases["solve_columns"] = (lambda p, q: A.solve(p, q), SYSTEM, drawn(4, 3))
cases["filtered"] = (lambda x: A.irfft(A.rfft(x) * from_host(drawn(3) * 0 + 0.5j), 4), x)
