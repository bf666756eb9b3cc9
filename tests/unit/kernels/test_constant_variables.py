"""`__constant__` variables that a declaration sets: each launch gets its own values, in any schedule and in graphs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import (
    In,
    KernelArgumentError,
    Out,
    RoundRobin,
    Tile,
    bf16,
    empty,
    f16,
    f32,
    f64,
    from_host,
    i32,
    kernel,
    ones,
    pipeline,
    zip_ops,
)
from dagpu.kernels import annotations
from dagpu.kernels.module_variables import read_constants
from tests.simulated.cuda import installed

ANNOTATIONS: Any = annotations  # as mypy sees it, an alias is no value

TEXT = """
#define N 4
namespace image { static __constant__ float taps[2][N / 2]; }
__constant__ float bias;
__global__ void weigh(Tile<float, 1> y, View<const float, 1> x) {
    for (auto i : y) y[i] = x[i] * image::taps[i & 1][0] + bias;
}
"""


@kernel(cuda=TEXT)
def weigh(y: Out[f32], taps: In[f32], x: In[f32], bias: In[f32]) -> None: ...


@weigh.host(whole=True)
def _(y: Tile[f32], taps: NDArray[f32], x: NDArray[f32], bias: NDArray[f32]) -> None:
    y[...] = x * np.float32(taps.sum()) + bias[0]


def of(dtype: Any) -> Any:
    """Return `In` of an element type that is known at run time."""
    return ANNOTATIONS.In[dtype]


def weighed(x: Any, taps: Any, bias: Any) -> Any:
    return weigh.new((8,), (4,))(taps, x, bias)


def two(x: Any, a: Any, b: Any, bias: Any) -> Any:
    return zip_ops(weighed(x, a, bias).to_host(), weighed(x, b, bias).to_host())


def shared(*values: float) -> Any:
    return from_host(np.array(values, f32)).sync().share()


@settings(max_examples=20)
@given(st.integers(0, 1000), st.lists(st.integers(-9, 9), min_size=4, max_size=4))
def test_each_launch_has_its_own_values(seed: int, values: list[int]) -> None:
    """Two launches in one run, with values that differ: as an op, on two lanes, and as a graph whose inputs change.
    What the contents leave is zero."""
    with installed(seed):
        x, bias = shared(*range(8)), shared(0.5)
        a, b, short = shared(*values), shared(1, 2, 3, 4), shared(7)
        piped = pipeline(two)
        for first, second in ((a, b), (b, a), (a, short), (short, b)) * 2:
            wanted = [float(each.to_host().sync().sum()) for each in (first, second)]
            for op in (two(x, first, second, bias), piped(x, first, second, bias)):
                for found, total in zip(op.schedule(RoundRobin(2)).sync(), wanted, strict=True):
                    assert found.tolist() == [total * n + 0.5 for n in range(8)]


@pytest.mark.parametrize("abi", ["views", "pointers"])
@pytest.mark.parametrize("dtype", [f32, f64, i32, f16, bf16, np.uint8], ids=lambda dtype: np.dtype(dtype).name)
def test_strided_contents_of_any_elements(abi: Any, dtype: Any) -> None:
    """They are copied densely, for kernels of plain pointers too."""
    element = {"float16": "__half", "bfloat16": "__nv_bfloat16", "uint8": "unsigned char"}.get(
        np.dtype(dtype).name, {"float32": "float", "float64": "double", "int32": "int"}.get(np.dtype(dtype).name)
    )
    y = {"views": "Tile<float, 1> y", "pointers": "float* y"}[abi]

    def last(y: Out[f32], c: Any) -> None: ...

    last.__annotations__["c"] = of(dtype)
    made = kernel(cuda=f"__constant__ {element} c[3]; __global__ void last({y}) {{ y[0] = c[2]; }}", abi=abi, block=32)(
        last
    )

    @made.host(whole=True)
    def _(y: Any, c: Any) -> None:
        y[...] = float(c[2].item())

    with installed():
        c = from_host(np.arange(6).reshape(3, 2).astype(dtype)).sync()
        for _again in range(3):
            found: Any = (
                made(empty((1,)).partition((1,)), c.borrow().slice(slice(None), slice(1, 2))).first().unpartition()
            )
            assert found.to_host().sync().tolist() == [5.0]


def test_structures_and_vectors() -> None:
    """A structure's contents are a tensor of structures; a vector's are one of its elements."""

    @kernel(
        cuda="""struct P { float a; int n; }; __constant__ P ps[2]; __constant__ float4 v[1];
        __global__ void mixed(Tile<float, 1> y) { y[0] = ps[1].a + v[0].w; }"""
    )
    def mixed(y: Out[f32], ps: In[np.void], v: In[f32]) -> None: ...

    @mixed.host(whole=True)
    def _(y: Any, ps: Any, v: Any) -> None:
        y[...] = ps["a"][1] + v[3]

    with installed():
        ps = from_host(np.array([(1, 2), (3, 4)], [("a", "f4"), ("n", "i4")])).sync().share()
        v = shared(1, 2, 3, 4)
        for _again in range(3):
            assert mixed.new((1,), (1,))(ps, v).to_host().sync().tolist() == [7.0]


def test_a_parameter_of_the_same_name_hides_the_variable() -> None:
    """As in C++."""

    @kernel(cuda="__constant__ float c[2] = {1, 2}; __global__ void k(Tile<float, 1> y, View<const float, 1> c) {}")
    def k(y: Out[f32], c: In[f32]) -> None: ...

    assert k.spec.state is None
    assert not k.spec.constants


def declared(text: str, annotation: Any) -> Any:
    def k(y: Out[f32], c: Any) -> None: ...

    k.__annotations__["c"] = annotation
    return kernel(cuda=f"{text} __global__ void k(Tile<float, 1> y) {{ y[0] = c[0]; }}")(k)


@pytest.mark.parametrize(
    ("text", "annotation", "says"),
    [
        ("__constant__ float c[2];", of(f64), r"float64 against float32.*Declare 'c: In\[np.float32\]'"),
        ("__constant__ float c;", float, r"a scalar against an array.*one value is an array of one element"),
        ("__constant__ float c[2];", ANNOTATIONS.Out[f32], r"an output is not const"),
        ("__constant__ float c[2];", of(f32) | None, r"or None"),
        ("__constant__ float* c;", of(f32), r"it holds addresses.*Pass the contents as an input"),
        ("__constant__ Unknown c[2];", of(f32), r"its type cannot be read"),
        ("__constant__ float c[2]; __constant__ float d;\n#define c d\n", of(f32), "differ|does not use"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(text: str, annotation: Any, says: str) -> None:
    """The error shows both sides, and what to declare."""
    with pytest.raises(KernelArgumentError, match=says):
        declared(text, annotation)


def test_a_variable_that_nothing_uses_or_sets_is_refused() -> None:
    """The cure of the one that is not set is a parameter of its name."""

    def k(y: Out[f32]) -> None: ...

    text = "__constant__ float c[2]; __global__ void k(Tile<float, 1> y) {{ y[0] = {}; }}"
    with pytest.raises(KernelArgumentError, match=r"nothing sets.*set it by a parameter of its name in Python, c: In"):
        kernel(cuda=text.format("c[0]"))(k)
    with pytest.raises(KernelArgumentError, match=r"which the kernel does not use. Use it, or leave out 'c'"):

        @kernel("k", cuda=text.format("1"))
        def unused(y: Out[f32], c: In[f32]) -> None: ...


def test_more_contents_than_it_has_are_refused() -> None:
    """On every device, at the call; where the text leaves the extent open, when the kernel is compiled."""
    made = declared("__constant__ float c[2];", of(f32))
    with pytest.raises(KernelArgumentError, match=r"3 elements, but its __constant__ variable has 2"):
        made(empty((1,)).partition((1,)), ones((3,)).sync())
    made = declared("__constant__ float c[] = {1, 2};", of(f32))
    with installed():
        op = made(empty((1,)).partition((1,)), ones((300,))).first().unpartition()
        with pytest.raises(KernelArgumentError, match=r"has 1200 bytes, but its __constant__ variable has 1024"):
            op.sync()


def test_variables_of_a_text() -> None:
    """Their names, elements and counts, with macros, namespaces and several in one declaration."""
    text = """
    #define N 5
    namespace ns { static __constant__ float taps[N], more[2][N * 2] = {}, gain; }
    constexpr int M = N - 2; using Real = double;
    __constant__ Real r[M]; __constant__ float4 v[2]; __constant__ unsigned int u[] = {1, 2};
    extern "C" { __device__ __constant__ const float w[4]; }
    __device__ float d[3];
    """
    names = ["taps", "more", "gain", "r", "v", "u", "w", "d"]
    found = {name: (each.param.element, each.elements) for name, each in read_constants(text, names, "k").items()}
    assert found == {
        "taps": ("float", 5), "more": ("float", 20), "gain": ("float", 1), "r": ("double", 3), "v": ("float4", 2),
        "u": ("unsigned int", 0), "w": ("float", 4),
    }  # fmt: skip
