"""Kernels of existing CUDA texts, as a program declares and calls them: what is passed, and what is refused."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import (
    In,
    Lazy,
    Out,
    Tensor,
    array,
    convert,
    empty,
    f32,
    from_host,
    i32,
    i64,
    kernel,
    pipeline,
    u8,
    zeros,
)
from dagpu.backends.cuda.compile.cubins import kernel_facts
from dagpu.backends.cuda.compile.nvidia_compilers import load_nvrtc
from dagpu.backends.cuda.kernels.fill_and_copy import MOST_ADDRESSES, addresses
from dagpu.common.errors import DagpuError, KernelArgumentError, ShapeError
from dagpu.kernels.cuda_types import VECTORS
from dagpu.kernels.declaration import numpy_record
from dagpu.kernels.decorator import Kernel
from tests.simulated.cuda import installed

PARAMS = "struct Params { float scale; short counts[3]; double offset; };\n"
PARAMS_DTYPE = np.dtype([("scale", "f4"), ("counts", "i2", 3), ("offset", "f8")], align=True)
PARTICLE = "struct Particle { float3 at; int kind; };\n"
PARTICLE_DTYPE = np.dtype([("at", [("x", "f4"), ("y", "f4"), ("z", "f4")]), ("kind", "i4")])


def declared(cuda: str, function: Callable[..., None], *name: str, **settings: Any) -> Kernel[Any]:
    return kernel(*name, cuda=cuda, abi="pointers", block=64, **settings)(function)


def refused(cuda: str, function: Callable[..., None], *name: str, **settings: Any) -> str:
    with pytest.raises(KernelArgumentError) as caught:
        declared(cuda, function, *name, **settings)
    return str(caught.value)


def floats(*values: float) -> NDArray[f32]:
    return np.array(values, f32)


# ---- structures by value
def affine(y: Out[f32], p: np.void) -> None: ...


def made_affine() -> Kernel[Any]:
    made = declared(PARAMS + "__global__ void affine(float* y, Params p) {}", affine)

    @made.host(whole=True)
    def _(y: Any, p: Any) -> None:
        assert p.dtype.names == ("scale", "counts", "offset")
        y[...] = p["scale"] * p["counts"][1] + p["offset"]

    return made


def call_affine(p: object) -> list[float]:
    return list(made_affine()(empty((4,)).partition((4,)), p).first().unpartition().to_host().sync())


@pytest.mark.parametrize(
    "p",
    [
        np.void((2, (1, 2, 3), 0.5), PARAMS_DTYPE),
        np.void((2, (1, 2, 3), 0.5), [("scale", "f4"), ("counts", "i2", 3), ("offset", "f8")]),
        (2.0, (1, 2, 3), 0.5),
    ],
    ids=["aligned", "packed", "tuple"],
)
def test_a_structure_is_passed_by_its_fields(p: object) -> None:
    """A record of the same fields arrives, whatever the places of its fields; a tuple gives them in order."""
    assert call_affine(p) == [4.5] * 4


@pytest.mark.parametrize(
    "p",
    [1.0, (1.0, 2), None, np.void((1, 2), [("a", "f4"), ("b", "f4")]), np.zeros(1, PARAMS_DTYPE), b"123"],
    ids=["number", "few", "none", "other", "array", "bytes"],
)
def test_another_value_is_refused_with_the_fields(p: object) -> None:
    """The error names the call, the declaration and the fields that are wanted."""
    with pytest.raises(KernelArgumentError, match="argument 'p'") as caught:
        call_affine(p)
    assert "test_existing_cuda.py" in str(caught.value)
    assert isinstance(p, np.ndarray) or "scale: float32, counts: int16[3], offset: float64" in str(caught.value)


def test_equal_records_share_a_plan_and_others_do_not_mix() -> None:
    """The bytes of a record are part of the plan's key."""
    made = made_affine()
    for offset in (0.5, 1.5, 0.5):
        op = made(empty((4,)).partition((4,)), (2.0, (1, 2, 3), offset)).first().unpartition().to_host()
        assert op.sync()[0] == 4 + offset


def test_a_vector_is_a_record_of_its_lanes() -> None:
    """`float4` has the fields x, y, z and w; `half2` two of float16."""

    def shift(y: Out[f32], by: np.void, h: np.void) -> None: ...

    made = declared("__global__ void shift(float* y, float4 by, __half2 h) {}", shift)

    @made.host(whole=True)
    def _(y: Any, by: Any, h: Any) -> None:
        y[...] = by["x"] + by["w"] + h["y"]

    op = made(empty((2,)).partition((2,)), (1.0, 2.0, 3.0, 4.0), (0.0, 0.5)).first().unpartition().to_host()
    assert list(op.sync()) == [5.5, 5.5]


def test_records_have_the_layout_of_cuda() -> None:
    """Each vector type has the size and the offsets that CUDA gives it."""
    for name, vector in VECTORS.items():
        made = numpy_record(vector)
        assert made.itemsize == vector.size, name
        assert vector.size % vector.align == 0


# ---- structures and vectors by pointer
def test_structures_in_memory_are_arrays_of_records() -> None:
    """A structured array is an input, an output and a new tensor."""

    def move(out: Out[np.void], x: In[np.void], dx: float) -> None: ...

    made = declared(PARTICLE + "__global__ void move(Particle* out, const Particle* x, float dx) {}", move)

    @made.host(whole=True)
    def _(out: Any, x: Any, dx: float) -> None:
        out["kind"] = x["kind"]
        out["at"]["x"] = x["at"]["x"] + dx

    particles = np.zeros(6, PARTICLE_DTYPE)
    particles["kind"] = range(6)
    result = cast(Any, made).new((6,), (2,))(from_host(particles), 1.5).to_host().sync()
    assert result.dtype == PARTICLE_DTYPE
    assert list(result["kind"]) == list(range(6))
    assert list(result["at"]["x"]) == [1.5] * 6
    with pytest.raises(KernelArgumentError, match=r"structures .* are wanted"):
        made.new((6,), (2,))(from_host(np.zeros(6, [("kind", "i4")])).sync(), 1.0)


def test_vectors_in_memory_are_elements_of_their_lanes() -> None:
    """A `float4*` takes a tensor of f32 with whole vectors, at a place that is aligned to them."""

    def total(y: Out[f32], x: In[f32]) -> None: ...

    made = declared("__global__ void total(float* y, const float4* x) {}", total)

    @made.host(whole=True)
    def _(y: Any, x: Any) -> None:
        y[...] = x.sum()

    def call(x: Any) -> Any:
        return made(empty((1,)).partition((1,)), x).first().unpartition().to_host().sync()

    assert call(from_host(np.ones((2, 4), f32))) == [8]
    with pytest.raises(KernelArgumentError, match="7 elements, but the CUDA declaration has vectors of 4"):
        call(from_host(np.ones(7, f32)).sync())
    assert call(from_host(np.ones(9, f32)).sync().slice(slice(4, 8))) == [4]
    with pytest.raises(KernelArgumentError, match=r"begins at byte 4 .* a multiple of 16") as caught:
        call(from_host(np.ones(9, f32)).sync().slice(slice(1, 9)))
    assert "dup(...)" in str(caught.value)


# ---- pointers without a type, null pointers, inputs without const
def test_memory_of_any_type_and_null() -> None:
    """`void*` takes the elements that Python declares, and None is a null pointer where the declaration says so."""

    def raw(y: Out[f32], x: In[i32], bias: In[f32] | None, state: In[u8]) -> None: ...

    cuda = "__global__ void raw(void* y, void* x, const float* bias, curandState* state) {}"
    made = declared(cuda, raw)

    @made.host(whole=True)
    def _(y: Any, x: Any, bias: Any, state: Any) -> None:
        y[...] = x + (100 if bias is None else bias)

    def call(bias: Any) -> list[float]:
        x = from_host(np.arange(2, dtype=i32))
        op = made(empty((2,)).partition((2,)), x, bias, from_host(np.zeros(1, u8)))
        return list(op.first().unpartition().to_host().sync())

    assert call(None) == [100, 101]
    assert call(from_host(floats(1, 2))) == [1, 3]
    assert call(None) == [100, 101]
    with pytest.raises(KernelArgumentError, match=r"declared In\[...\] \| None"):
        made(empty((2,)).partition((2,)), None, None, from_host(np.zeros(1, u8)))


# ---- pointers to pointers
TOTAL = "__global__ void total(float* y, const float** xs, int n, float* const* ys) {}"


def made_total() -> Kernel[Any]:
    def total(y: Out[f32], xs: list[In[f32]], n: int, ys: list[Out[f32]]) -> None: ...

    made = declared(TOTAL, total)

    @made.host(whole=True)
    def _(y: Any, xs: Any, n: int, ys: Any) -> None:
        y[...] = sum(x.sum() for x in xs) + n
        for number, out in enumerate(ys):
            out[...] = number

    return made


def call_total(made: Kernel[Any], first: int, second: int) -> tuple[list[float], list[list[float]]]:
    inputs = [from_host(np.full(3, number, f32)) for number in range(first)]
    outputs = [empty((number + 1,)).partition((number + 1,)) for number in range(second)]
    result = made(empty((2,)).partition((2,)), inputs, 5, outputs).sync()
    assert len(result) == 2 + first + second
    assert result[1 + first] == 5
    arrays = [list(each.unpartition().to_host().sync()) for each in (result[0], *result[2 + first :])]
    return arrays[0], arrays[1:]


def test_a_list_of_tensors_is_an_array_of_pointers() -> None:
    """Lists of any lengths, inputs and outputs; a body gets lists of arrays, the result has each tensor by itself."""
    made = made_total()
    for first, second in ((1, 2), (2, 1), (3, 3), (1, 2)):
        y, ys = call_total(made, first, second)
        assert y == [3 * sum(range(first)) + 5] * 2
        assert ys == [[number] * (number + 1) for number in range(second)]


def test_lists_reach_a_gpu_in_streams_and_graphs() -> None:
    """The addresses are written to memory of the launch, right before it."""
    made = made_total()
    with installed() as machine:
        for first, second in ((1, 2), (2, 1), (600, 1)):
            y, ys = call_total(made, first, second)
            assert y == [3 * sum(range(first)) + 5] * 2
            assert ys == [[number] * (number + 1) for number in range(second)]

        @pipeline
        def add(a: Tensor[f32], b: Tensor[f32]) -> Any:
            op = made(empty((2,)).partition((2,)), [a, b], 1, [empty((1,)).partition((1,))])
            return op.first().unpartition().to_host()

        for number in range(4):
            a, b = (from_host(np.full(3, number + each, f32)).sync() for each in (0, 1))
            assert list(add(a, b).sync()) == [6 * number + 4] * 2
        assert machine.problems == []


def test_structures_and_null_pointers_reach_a_gpu() -> None:
    """As they reach the host body."""

    def k(y: Out[f32], p: np.void, bias: In[f32] | None) -> None: ...

    made = declared(PARAMS + "__global__ void k(float* y, Params p, float* bias) {}", k)

    @made.host(whole=True)
    def _(y: Any, p: Any, bias: Any) -> None:
        y[...] = p["offset"] + p["counts"][2] + (0 if bias is None else bias)

    def call(bias: Any) -> list[float]:
        op = made(empty((2,)).partition((2,)), (1, (2, 3, 4), 0.5), bias)
        return list(op.first().unpartition().to_host().sync())

    with installed() as machine:
        assert call(None) == [4.5, 4.5]
        assert call(from_host(floats(1, 2))) == [5.5, 6.5]
        assert call(None) == [4.5, 4.5]
        assert machine.problems == []


def test_the_launch_that_writes_addresses_compiles() -> None:
    """Also the largest one."""
    nvrtc = load_nvrtc()
    if nvrtc is None:
        pytest.skip("needs NVRTC")
    for count in (1, MOST_ADDRESSES):
        made = addresses(count)
        cubin = nvrtc.compile(made.source, "addresses.cu", ["-arch=sm_80"])
        assert isinstance(cubin, bytes)
        assert [size for _, size in kernel_facts(cubin, made.name).parameters] == [8, 8 * count]


@pytest.mark.parametrize("given", [[], None, 3], ids=["empty", "none", "number"])
def test_what_is_no_list_is_refused(given: object) -> None:
    """With the parameter, the call and the cure."""
    with pytest.raises(KernelArgumentError, match=r"argument 'xs': got .* a list of one tensor or more") as caught:
        made_total()(empty((2,)).partition((2,)), given, 5, [empty((1,)).partition((1,))])
    assert "Pass a list of them: [a, b]" in str(caught.value)


def test_a_tensor_is_declared_for_a_pointer_and_a_list_for_pointers() -> None:
    """Each refusal shows the declaration that fits."""
    assert "Declare 'const float* x'" in refused("__global__ void k(float* y, const float** x) {}", y_x, "k")

    def y_list(y: Out[f32], x: list[In[f32]]) -> None: ...

    message = refused("__global__ void k(float* y, const float* x) {}", y_list, "k")
    assert "Python 'x: list[In[float32]]', CUDA 'const float* x'" in message
    assert "a list of tensors against one. Declare 'const float** x'" in message
    declared("__global__ void k(float* y, const float** x) {}", y_list, "k")


# ---- templates, overloads, namespaces
@pytest.mark.parametrize(
    ("name", "entry"),
    [((), "scale<float, 128>"), (("scale<float, 64>",), "scale<float, 64>"), (("scale<float>",), "scale<float>")],
)
def test_an_instance_is_deduced_or_named(name: tuple[str, ...], entry: str) -> None:
    """The Python signature decides the types of a template, the defaults the rest; a name decides all."""

    def scale(y: Out[f32], a: float, n: int) -> None: ...

    cuda = "template <typename T, int B = 128> __global__ void scale(T* y, T a, int n) { y[0] = a; }"
    made = declared(cuda, scale, *name)
    assert made.spec.entry == entry


def test_the_function_may_have_another_name_than_the_kernel() -> None:
    """A name may have namespaces; messages name the function."""

    def by_two(y: Out[f32], n: int) -> None: ...

    made = declared("namespace a { namespace b { __global__ void scale(float* y, int n) {} } }", by_two, "a::b::scale")
    assert (made.spec.name, made.spec.entry) == ("by_two", "a::b::scale")
    message = refused("__global__ void scale(double* y, int n) {}", by_two, "scale")
    assert "kernel 'by_two': its Python signature" in message


def test_the_python_signature_chooses_an_overload() -> None:
    """As C++ does: by the types, and const for inputs."""
    cuda = "__global__ void k(float* y, int n) {}\n__global__ void k(double* y, int n) {}\n"

    def k(y: Out[np.float64], n: int) -> None: ...

    assert declared(cuda, k).spec.overload == "double* y, int n"
    message = refused(cuda + "__global__ void k(double* y, long n) {}", k)
    assert "it is declared with other parameters" in message
    assert "annotate the parameters with NumPy's types" in message

    def cured(y: Out[np.float64], n: i64) -> None: ...

    assert declared(cuda + "__global__ void k(double* y, long n) {}", cured, "k").spec.overload == "double* y, long n"


def test_the_compiler_finds_what_is_meant() -> None:
    """Instances, overloads and structures compile, and the sizes of the parameters are held."""
    cuda = PARAMS + (
        "namespace n { template <typename T, int B> __global__ void k(T* y, Params p) { y[0] = B * p.scale; } }\n"
        "__global__ void k(float* y, Params p) { y[0] = p.scale; }\n"
        "template __global__ void n::k<double, 2>(double*, Params);\n"
    )
    try:
        declared(cuda, affine, "n::k<float, 256>").compile("sm_80")
    except DagpuError as error:
        if "was found" in str(error):
            pytest.skip("needs a CUDA compiler")
        raise
    declared(cuda + "__global__ void k(double* y, Params p) {}", affine, "::k").compile("sm_80")
    packed = cuda.replace("struct", "#pragma pack(1)\nstruct")
    with pytest.raises(DagpuError, match="laid out in another way than its text says"):
        declared(packed, affine, "n::k<float, 256>").compile("sm_80")


# ---- each refusal, and its cure
def y_n(y: Out[f32], n: int) -> None: ...


def y_s(y: Out[f32], s: np.void) -> None: ...


def y_x(y: Out[f32], x: In[f32]) -> None: ...


def y_bytes(y: Out[f32], x: In[u8]) -> None: ...


Case = tuple[str, Callable[..., None], str, str, Callable[..., None]]
REFUSALS: dict[str, Case] = {
    "reference": ("float* y, const int& n", y_n, "drop the '&'", "float* y, const int n", y_n),
    "unknown value": ("float* y, Config s", y_s, "define it in the text",
                      "float* y, Config s) {} struct Config { int a; }; __device__ void f(", y_s),
    "unknown memory": ("float* y, const Config* x", y_x, "its memory is bytes (np.uint8)",
                       "float* y, const Config* x", y_bytes),
    "number for a structure": ("float* y, float4 n", y_n, "a NumPy record (np.void)", "float* y, float4 n", y_s),
    "structure for a number": ("float* y, int s", y_s, "a structure against int", "float* y, int n", y_n),
    "const output": ("const float* y, int n", y_n, "an output is not const. Declare 'float* y'",
                     "float* y, int n", y_n),
    "three stars": ("float* y, float*** x", y_x, "Pass one flat array", "float* y, float* x", y_x),
    "function": ("float* y, void (*f)(int)", y_x, "a type that cannot be read here", "float* y, float* x", y_x),
    "pack": ("float* y, Ts... n", y_n, "a pack of parameters", "float* y, int n", y_n),
    "long double": ("float* y, long double n", y_n, "Write the C type out", "float* y, long n", y_n),
    "auto": ("float* y, auto n", y_n, "'auto' makes it a template", "float* y, int n", y_n),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS.values(), ids=list(REFUSALS))
def test_a_refusal_says_its_form_and_the_cure_works(case: Case) -> None:
    """The message names the file and the line, and what it says to do is accepted."""
    params, function, expected, cure, cured = case
    message = refused(f"__global__ void k({params}) {{}}", function, "k")
    assert expected in message
    assert "test_existing_cuda.py" in message
    assert "line 1" in message
    declared(f"__global__ void k({cure}) {{}}", cured, "k")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("int a : 3;", "it has bit-fields"),
        ("virtual void f(); int a;", "it has virtual functions"),
        ("int& a;", "cannot be read"),
        ("Unknown a;", "of unknown size"),
        ("int a[N];", "an unknown extent"),
        ("#ifdef __X\nint a;\n#endif\nint b;", "depend on a preprocessor condition"),
        ("void (*f)(int);", "a pointer to a function"),
    ],
)
def test_a_structure_of_unknown_layout_is_refused_by_value(fields: str, why: str) -> None:
    """By pointer it is bytes; a value cannot be passed."""
    text = f"struct S {{\n{fields}\n}};\n__global__ void k(float* y, "
    message = refused(f"{text}S s) {{}}", y_s, "k")
    assert why in message
    assert "Pass its fields as parameters of their own, or take it by pointer" in message
    declared(f"{text}const S* s) {{}}", y_bytes, "k")


def test_a_structure_with_addresses_is_refused() -> None:
    """What it points to would be unknown to the plan."""
    message = refused("struct S { int n; float* data; }; __global__ void k(float* y, S s) {}", y_s, "k")
    assert "S has the pointer 'data', whose memory would be unknown" in message


def test_a_template_that_nothing_decides_is_refused() -> None:
    """The cure is the name of an instance."""
    cuda = "template <int B> __global__ void k(float* y, int n) {}"
    message = refused(cuda, y_n, "k")
    assert "nothing says what its 'int B' is" in message
    assert '@kernel("k<...>", cuda=...)' in message
    declared(cuda, y_n, "k<64>")


def test_a_record_is_no_op() -> None:
    """Its bytes are known when the op is built."""

    def lazy(y: Out[f32], s: Lazy[np.void]) -> None: ...

    message = refused("__global__ void lazy(float* y, float4 s) {}", lazy)
    assert "a structure, which cannot be an op" in message


def test_structures_are_for_kernels_alone() -> None:
    """What computes with numbers refuses them, with a cure."""
    records = from_host(np.zeros(3, PARTICLE_DTYPE)).sync().share()
    with pytest.raises(ShapeError, match=r"from_host\(np.zeros\(shape, dtype\)\)"):
        zeros((3,), cast("Any", PARTICLE_DTYPE))
    with pytest.raises(ShapeError, match="structures are not converted"):
        convert(records, f32)
    with pytest.raises(KernelArgumentError, match="pass one field of them"):
        array.sum(cast("Any", records))
