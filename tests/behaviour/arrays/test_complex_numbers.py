"""Complex elements on every kind of device: functions of tensors, the user's kernels, foreign ops, special numbers."""

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    DeviceError,
    In,
    KernelArgumentError,
    Out,
    Tensor,
    array,
    c64,
    c128,
    convert,
    empty,
    expr,
    eye,
    f32,
    f64,
    foreign,
    from_host,
    i32,
    kernel,
    pipeline,
)
from dagpu.interop import new
from dagpu.ops.compose import Launch
from dagpu.testing import nodes_of
from tests.behaviour.arrays.array_places import cut
from tests.behaviour.arrays.library_places import libraries_on_each_device as libraries_on_each_device
from tests.behaviour.arrays.library_places import where as where
from tests.support.text_runs import launch_text

anyhow: Any = array
TEXTS = ("float2", "dagpu::complex<float>", "cuda::std::complex<float>", "thrust::complex<float>", "cuComplex")


def loose(kernel: Any) -> Any:
    """A kernel without its types: a number of Python is passed where they say one of NumPy."""
    return kernel


def drawn(shape: tuple[int, ...], dtype: Any = c64, seed: int = 0) -> NDArray[Any]:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    found: NDArray[Any] = (parts[0] + 1j * parts[1]).astype(dtype)
    return found


# ---- values
PARTS = ("abs", "real", "imag", "conj", "angle", "exp", "sqrt")


@pytest.mark.parametrize("dtype", [c64, c128])
def test_functions_of_tensors_are_numpys(where: Any, dtype: Any) -> None:
    """Of whole tensors and of parts with gaps; sizes and parts are real, of the precision of a part."""
    z = drawn((6, 9), dtype)
    part = cut(z, (slice(None, None, 2), slice(None, None, -1)))
    t = from_host(z).sync().share()
    for name in PARTS:
        expected = getattr(np, name)(z)
        for op, wanted in (
            (getattr(anyhow, name)(t), expected),
            (getattr(anyhow, name)(part.lent()), getattr(np, name)(part.array)),
        ):
            result = op.to_host().sync()
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, wanted, rtol=1e-5 if dtype is c64 else 1e-14)
    for name in ("sum", "prod", "mean"):
        for axis in (None, 0, 1):
            found = getattr(anyhow, name)(t, axis).to_host().sync()
            np.testing.assert_allclose(found, getattr(np, name)(z, axis), rtol=1e-4 if dtype is c64 else 1e-12)
    np.testing.assert_allclose(array.norm(t, 1).to_host().sync(), np.linalg.norm(z, axis=1), rtol=1e-5)
    assert array.any(t, 0).to_host().sync().all()
    assert eye(2, dtype=dtype).to_host().sync().tolist() == [[1, 0], [0, 1]]


def test_real_parts_of_real_tensors() -> None:
    """As in NumPy: themselves, 0, themselves, and the angle 0 or pi."""
    for x in (np.array([-1.5, 0.0, -0.0, 2.0], f32), np.array([-1, 0, 7], i32)):
        t = from_host(x).sync().share()
        for name in ("real", "imag", "conj"):
            found = getattr(anyhow, name)(t).to_host().sync()
            assert found.dtype == x.dtype
            assert found.tolist() == getattr(np, name)(x).tolist()
    angles = array.angle(from_host(np.array([-1.5, 2.0], f32))).to_host().sync()
    np.testing.assert_allclose(angles, [np.pi, 0], rtol=1e-6)


def test_conversions_to_complex_elements(where: Any) -> None:
    """Of each real type, by `convert` and in an expression: no imaginary part."""
    casts: Any = {
        c64: lambda x: expr(x.dtype.type)(lambda e: e.to(c64))(from_host(x)),
        c128: lambda x: expr(x.dtype.type)(lambda e: e.to(c128))(from_host(x)),
    }
    for x in (np.arange(-3, 5, dtype=i32), np.linspace(-1, 1, 7), np.array([True, False]), np.ones(3, np.float16)):
        for dtype in (c64, c128):
            for op in (convert(from_host(x), dtype), casts[dtype](x)):
                found = op.to_host().sync()
                assert found.dtype == dtype
                assert found.tobytes() == x.astype(dtype).tobytes()


@pytest.mark.parametrize("dtype", [c64, c128])
def test_products_of_matrices_are_numpys(with_libraries: Any, dtype: Any) -> None:
    """Of matrices, batches and transposed ones, and of the contractions that are made of them."""
    a, b = drawn((3, 4, 5), dtype), drawn((3, 5, 2), dtype, 1)
    s, t = from_host(a).sync().share(), from_host(b).sync().share()
    tolerance: Any = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(array.matmul(s, t).to_host().sync(), a @ b, **tolerance)
    np.testing.assert_allclose(array.matmul(s, s, transpose="b").to_host().sync(), a @ a.swapaxes(-1, -2), **tolerance)
    found = array.einsum("bij,bjk->ik", s, t).to_host().sync()
    np.testing.assert_allclose(found, np.einsum("bij,bjk->ik", a, b), **tolerance)
    found = array.tensordot(s, s, ((0, 1), (0, 1))).to_host().sync()
    np.testing.assert_allclose(found, np.tensordot(a, a, ((0, 1), (0, 1))), **tolerance)
    with pytest.raises(KernelArgumentError, match=r"f64 and|and f64"):
        anyhow.matmul(s, from_host(np.ones((5, 2))))


def test_a_power_spectrum_and_a_filter_stay_on_the_device(with_libraries: Any) -> None:
    """What comes of a transform goes into the next call, in a pipeline that is called again."""

    @pipeline
    def power(x: Any) -> Any:
        return expr(c64)(lambda z: z.real * z.real + z.imag * z.imag).sum(0)(array.rfft(x))

    @pipeline
    def filtered(x: Any, gain: Any) -> Any:
        return array.irfft(expr(c64, f32)(lambda z, g: z * g.to(c64))(array.rfft(x), gain))

    for seed in (0, 1):
        x = drawn((5, 16), seed=seed).real.copy()
        gain = (np.arange(9) < 3).astype(f32)
        t, g = from_host(x).sync().share(), from_host(gain).sync().share()
        np.testing.assert_allclose(
            power(t).to_host().sync(), (np.abs(np.fft.rfft(x)) ** 2).sum(0), rtol=1e-4, atol=1e-4
        )
        found = filtered(t, g).to_host().sync()
        np.testing.assert_allclose(found, np.fft.irfft(np.fft.rfft(x) * gain), rtol=1e-4, atol=1e-5)


NORMS = (None, "backward", "ortho", "forward")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_transforms_along_several_axes_are_numpys(with_libraries: Any, data: st.DataObject) -> None:
    """Of real and complex tensors, cut and lengthened, along axes in any order, with each norm."""
    name = data.draw(st.sampled_from(("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")))
    shape = tuple(data.draw(st.lists(st.integers(2, 6), min_size=2, max_size=3)))
    z = drawn(shape, data.draw(st.sampled_from((c64, c128))), data.draw(st.integers(0, 9)))
    real = name[0] == "r" or (name[:2] != "ir" and data.draw(st.booleans()))
    x = z.real.copy() if real else z
    axes = tuple(
        data.draw(st.permutations(range(len(shape))))[: 2 if name[-1] == "2" else data.draw(st.integers(1, 3))]
    )
    s = data.draw(st.one_of(st.none(), st.tuples(*[st.sampled_from((1, 4, 7)) for _ in axes])))
    norm = data.draw(st.sampled_from(NORMS))
    found = getattr(anyhow, name)(from_host(x), s, axes, norm).to_host().sync()
    expected = getattr(np.fft, name)(x, s, axes, norm)
    assert found.dtype.itemsize == expected.astype(found.dtype).itemsize
    size = np.abs(expected).max() + 1
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=(1e-5 if x.dtype.itemsize < 16 and z.dtype == c64 else 1e-13) * size
    )


def test_shifts_of_frequencies_are_numpys(where: Any) -> None:
    """Of even and odd extents, along some axes and all; one is the inverse of the other."""
    z = drawn((4, 5))
    t = from_host(z).sync().share()
    for axes in (None, 0, (1,), (0, 1)):
        for name in ("fftshift", "ifftshift"):
            found = getattr(anyhow, name)(t, axes).to_host().sync()
            assert found.tolist() == getattr(np.fft, name)(z, axes).tolist()
    assert array.ifftshift(array.fftshift(t)).to_host().sync().tolist() == z.tolist()


@pytest.mark.parametrize("dtype", [c64, c128])
def test_numbers_of_calls_may_be_complex(where: Any, dtype: Any) -> None:
    """In a pipeline that is called with others; a real number has no imaginary part. A complex one is part of the plan,
    and real ones share a plan."""
    times = expr(dtype, dtype)(lambda z, a: z * a)

    @pipeline
    def turned(t: Any, a: Any) -> Any:
        return times(t, a).to_host()

    z = drawn((5,), dtype)
    t = from_host(z).sync().share()
    for number in (2j, 3j, 2j, 1.5, 2.5, np.complex64(1j)):
        for _ in range(3):
            np.testing.assert_allclose(turned(t, number).sync(), z * dtype(number), rtol=1e-6)
    assert turned.cache_info().misses == 4


# ---- kernels of the user's
@pytest.mark.parametrize("spelled", TEXTS)
def test_kernels_take_complex_tensors_and_numbers(spelled: str) -> None:
    """Whatever the CUDA text calls them, in views and as plain pointers; a number may be complex or real."""
    texts: dict[Literal["views", "pointers"], str] = {
        "views": f"Tile<{spelled}, 1> y, View<const {spelled}, 1> x, {spelled} a",
        "pointers": f"{spelled}* y, const {spelled}* x, {spelled} a",
    }
    x = drawn((8,))
    for abi, parameters in texts.items():
        if abi == "pointers" and spelled.startswith("dagpu"):
            continue  # of the prelude, which such a text does not have

        @kernel(cuda=f"__global__ void times({parameters}) {{}}", block=8, abi=abi)
        def times(y: Out[c64], x: In[c64], a: c64) -> None: ...

        @times.host
        def _(y: Any, x: Any, a: Any) -> None:
            y[...] = x * a

        for number in (2j, 1.5, 3, np.complex64(1 - 1j)):
            op = loose(times)(empty((8,), c64).partition((8,)), from_host(x), number).first().unpartition()
            np.testing.assert_allclose(op.to_host().sync(), x * np.complex64(number), rtol=1e-6)
        with pytest.raises(KernelArgumentError, match="complex128"):
            loose(times)(empty((8,), c64).partition((8,)), from_host(x.astype(c128)), 1.0).sync()
        with pytest.raises(KernelArgumentError, match=r"a is str|'a' is str|str"):
            loose(times)(empty((8,), c64).partition((8,)), from_host(x), "2").sync()


def test_pairs_of_floats_are_still_floats() -> None:
    """A kernel whose Python says f32 gets f32, and one that says nothing of the kind does not match c64."""

    @kernel(cuda="__global__ void k(float2* y, const float2* x) {}", block=8, abi="pointers")
    def k(y: Out[f32], x: In[f32]) -> None: ...

    assert k.spec.params[0].dtype == f32
    with pytest.raises(KernelArgumentError, match=r"Declare 'float2\* y'"):

        @kernel(cuda="__global__ void w(float* y, const float2* x) {}", block=8, abi="pointers")
        def w(y: Out[c64], x: In[c64]) -> None: ...


def test_a_foreign_op_takes_complex_tensors(where: Any) -> None:
    """With a host body; on a device without one it says so."""

    @foreign
    def power(z: In[c64]) -> Tensor[f32]:
        return new((9,), f32)

    @power.host
    def _(z: Any, out: Any) -> None:
        out[...] = np.abs(z) ** 2

    z = drawn((9,))
    op = power(from_host(z)).to_host()
    try:
        found = op.sync()
    except DeviceError:
        pytest.skip("the host body is for the host")
    np.testing.assert_allclose(found, np.abs(z) ** 2, rtol=1e-6)


# ---- special numbers
ENDS = (0.0, -0.0, 1.0, -2.5, 1e30, -1e-30, 88.9, -104.0, 3e-320, -1.5e308, np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("dtype", [c64, c128])
def test_special_numbers_on_both_sides(tmp_path_factory: pytest.TempPathFactory, dtype: Any) -> None:
    """exp, sqrt, abs and angle of the CUDA text: NumPy's infinities, NaNs, zeros with their signs, and values."""
    real = f32 if dtype is c64 else f64
    with np.errstate(over="ignore"):
        parts = np.array(np.meshgrid(ENDS, ENDS)).reshape(2, -1).astype(real)
    z: NDArray[Any] = np.empty(parts.shape[1], dtype)
    z.real, z.imag = parts
    ops = {name: getattr(anyhow, name)(from_host(z)) for name in ("exp", "sqrt", "abs", "angle")}
    specs = {}
    for name, op in ops.items():
        (launch,) = [node for node in nodes_of(op) if isinstance(node, Launch)]
        specs[name] = launch.kernel
    rtol, tiny = (1e-5, 1e-44) if dtype is c64 else (1e-13, 2e-323)
    for name, op in ops.items():
        expected = op.to_host().sync()
        found = np.zeros_like(expected)
        launch_text(specs[name], [found, z], [(64,)])
        for one, other in ((found.real, expected.real), (found.imag, expected.imag)):
            # C leaves open (G.6) the sign of a zero or an infinity beside a NaN, and those of exp of -inf and no number
            settled = ~(np.isnan(found) | np.isnan(expected) | ((z.real == -np.inf) & ~np.isfinite(z.imag)))
            np.testing.assert_allclose(one[settled], other[settled], rtol=rtol, atol=tiny, err_msg=name)
            np.testing.assert_array_equal(np.signbit(one)[settled], np.signbit(other)[settled], err_msg=name)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), err_msg=name)
        np.testing.assert_array_equal(np.isinf(found), np.isinf(expected), err_msg=name)


def test_products_round_each_part_once() -> None:
    """On the host as in the CUDA text, and the same bits wherever an element lies, unlike NumPy's own."""
    a, b = drawn((1000,)), drawn((1000,), seed=1)
    found = expr(c64, c64)(lambda x, y: x * y)(from_host(a), from_host(b)).to_host().sync()
    assert found.real.tobytes() == (a.real * b.real - a.imag * b.imag).tobytes()
    assert found.imag.tobytes() == (a.real * b.imag + a.imag * b.real).tobytes()
