"""The texts that dagpu makes, on the host, and what is like them in texts of users."""

import threading
from typing import Any

import numpy as np
import pytest

from dagpu import In, KernelMismatchError, Out, array, expr, f16, f32, from_host, kernel
from dagpu.backends.host.cuda_text import loaded_kernel, precompiled_header
from dagpu.backends.host.cuda_text.compilers import CxxCompiler
from dagpu.testing import Mode, checking_kernels, find_cxx, texts_run

pytestmark = pytest.mark.host_only("the texts run on the host")

X = np.linspace(0, 1, 100, dtype=np.float32)


def test_a_kernel_may_have_the_name_of_a_function() -> None:
    """Of one of C++, which the text calls, and of a template of its own."""
    with checking_kernels() as checked:
        found = array.exp(from_host(X)).to_host().sync()
    np.testing.assert_allclose(found, np.exp(X), rtol=1e-6)
    assert checked.launches == {"exp": 1}

    text = """
        template <class T> __device__ T floor(T x, T by) { return by * std::floor(x / by); }
        __global__ void floor(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = floor(x[i], 0.25f); }
    """

    @kernel(cuda=text)
    def floor(y: Out[f32], x: In[f32]) -> None: ...

    made: Any = floor.new((100,), (32,), partial=True)(from_host(X)).to_host().sync()
    np.testing.assert_array_equal(made, np.floor(X / 0.25) * 0.25)


def test_halves_are_compared() -> None:
    """By calls that the compiler makes of functions of its own."""
    x = np.array([1, np.nan, 3, -np.inf], f16)
    y = np.array([2, 2, np.nan, 5], f16)
    with checking_kernels():
        found = array.minimum(from_host(x), from_host(y)).to_host().sync()
    np.testing.assert_array_equal(found, np.minimum(x, y))


def test_a_long_sort_is_right() -> None:
    """Its host bodies do together what its launches do one by one, so that only the whole can be compared."""
    rows = np.random.default_rng(0).integers(0, 9999, (2, 9000)).astype(np.float32)
    with checking_kernels() as checked:
        found = array.sort(from_host(rows)).to_host().sync()
        largest = array.topk(from_host(rows), 3).first().to_host().sync()
    np.testing.assert_array_equal(found, np.sort(rows))
    np.testing.assert_array_equal(largest, np.sort(rows)[:, :-4:-1])
    assert checked.launches == {"count_digits": 4, "add_up_counts": 4, "scatter_by_digit": 4, "sort_tile": 2}


@pytest.mark.parametrize("options", [(), ("-fmad=false",)])
def test_contraction_is_checked_where_a_gpu_contracts(options: tuple[str, ...]) -> None:
    """A difference by contraction is told with a tolerance, but not of a kernel that is compiled without it."""

    @kernel(
        cuda="__global__ void rest(Tile<float, 1> y, View<const float, 1> x) "
        "{ for (auto i : y) y[i] = x[i] * x[i] - 0.3f; }",
        options=options,
    )
    def rest(y: Out[f32], x: In[f32]) -> None: ...

    op: Any = rest.new((100,), (32,), partial=True)(from_host(X))
    with checking_kernels(tolerance=0):
        if options:
            op.sync()
            return
        with pytest.raises(KernelMismatchError, match="with contraction"):
            op.sync()


def test_threads_share_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come first at once load it once: a process has no room for the memory of many."""
    begun, made = threading.Barrier(4), list[object]()

    class Loaded:
        def __init__(self, compiler: object) -> None:
            made.append(compiler)

    monkeypatch.setattr(loaded_kernel, "Runtime", Loaded)
    compiler, found = CxxCompiler(("nowhere",), "none"), list[object]()

    def run() -> None:
        begun.wait()
        found.append(loaded_kernel._runtime(compiler))  # noqa: SLF001  # no public function loads it alone

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [compiler]
    assert len(set(map(id, found))) == 1


def test_headers_are_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """g++ has them in a form of its own, from the cache too; without it a text compiles just the same."""
    if find_cxx().is_clang:
        pytest.skip("clang has another form")
    monkeypatch.setenv("DAGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(precompiled_header, "_headers", {})
    with texts_run(mode=Mode(checked=False)), checking_kernels():
        expr(f32)(lambda x: x * 3 + 0.125)(from_host(X)).sync()
    (kept,) = tmp_path.glob("*.gch")
    assert kept.stat().st_size > 1 << 20

    monkeypatch.setattr(precompiled_header, "_headers", {})
    kept.write_bytes(b"damaged")
    monkeypatch.setattr(precompiled_header.PrecompiledHeader, "_compiled", lambda *_: None)
    with checking_kernels():
        found = expr(f32)(lambda x: x * 5 + 0.25)(from_host(X)).to_host().sync()
    np.testing.assert_array_equal(found, X * 5 + f32(0.25))
