"""What is read out of a kernel's CUDA declaration, what is refused, and how it is held against Python."""

import subprocess
import sys
from contextlib import suppress
from enum import IntEnum
from typing import Literal

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.cuda_signature import (
    CudaParam,
    CudaSignature,
    PyParam,
    check_scalar,
    check_signature,
    parse_cuda_signature,
)
from dagpu.errors import DagpuError, KernelArgumentError

Abi = Literal["views", "pointers"]
Form = Literal["tile", "view", "pointer", "scalar"]

SAXPY = """
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""


def parse(source: str, name: str = "k", abi: Abi = "views") -> CudaSignature:
    return parse_cuda_signature(source, name, abi=abi)


def only(declaration: str, abi: Abi = "views", before: str = "") -> CudaParam:
    """The single parameter of a kernel that declares just this one."""
    (param,) = parse(f"{before}\n__global__ void k({declaration}) {{}}", abi=abi).params
    return param


def refusal(source: str, name: str = "k", abi: Abi = "views") -> str:
    with pytest.raises(KernelArgumentError) as caught:
        parse(source, name, abi)
    return str(caught.value)


def scalar(ctype: str, name: str = "n") -> CudaParam:
    return CudaParam(name, "scalar", ctype, False, None, 4)


# ---- reading --------------------------------------------------------------------------------
def test_reads_tiles_views_and_scalars() -> None:
    """The form, element type, constness, rank, name and line of every parameter come out."""
    assert parse(SAXPY, "saxpy") == CudaSignature(
        "saxpy",
        (
            CudaParam("y", "tile", "float32", False, 2, 2),
            CudaParam("a", "scalar", "float32", False, None, 2),
            CudaParam("x", "view", "float32", True, 2, 2),
        ),
        2,
        False,
    )


@pytest.mark.parametrize(
    ("c", "dtype"),
    [
        ("float", "float32"), ("double", "float64"), ("bool", "bool"),
        ("half", "float16"), ("__half", "float16"),
        ("nv_bfloat16", "bfloat16"), ("__nv_bfloat16", "bfloat16"),
        ("char", "int8"), ("signed char", "int8"), ("unsigned char", "uint8"), ("int8_t", "int8"),
        ("short", "int16"), ("short int", "int16"), ("unsigned short", "uint16"), ("std::uint16_t", "uint16"),
        ("int", "int32"), ("signed", "int32"), ("signed int", "int32"), ("int32_t", "int32"),
        ("std::int32_t", "int32"), ("cuda::std::int32_t", "int32"), ("::std::int32_t", "int32"),
        ("unsigned", "uint32"), ("unsigned int", "uint32"), ("int unsigned", "uint32"), ("uint", "uint32"),
        ("long", "int64"), ("long long", "int64"), ("long long int", "int64"), ("long int long", "int64"),
        ("unsigned long", "uint64"), ("unsigned long long int", "uint64"), ("long unsigned", "uint64"),
        ("size_t", "uint64"), ("::size_t", "uint64"), ("std :: size_t", "uint64"), ("uint64_t", "uint64"),
    ],
)  # fmt: skip
def test_every_spelling_of_a_type_has_one_dtype(c: str, dtype: str) -> None:
    """A C type means one NumPy name, as a scalar, as an element, with a name and without."""
    assert only(f"{c} n") == CudaParam("n", "scalar", dtype, False, None, 2)
    assert only(c) == CudaParam("", "scalar", dtype, False, None, 2)
    assert only(f"View<const {c}, 3> x").ctype == dtype
    assert only(f"{c} const *x", "pointers") == CudaParam("x", "pointer", dtype, True, None, 2)


@pytest.mark.parametrize(
    ("declaration", "name", "const"),
    [
        ("float* x", "x", False),
        ("float *x", "x", False),
        ("const float* __restrict__ x", "x", True),
        ("float const *x", "x", True),
        ("float* const x", "x", False),
        ("const float *const __restrict x", "x", True),
        ("volatile float* x", "x", False),
        ("float*", "", False),
        ("const float* __restrict__", "", True),
        ("float x[]", "x", False),
        ("const float x[16]", "x", True),
        ("[[maybe_unused]] const float* x", "x", True),
    ],
)
def test_reads_pointers(declaration: str, name: str, const: bool) -> None:
    """Only the const of the elements counts, wherever it stands; an array parameter is a pointer."""
    assert only(declaration, "pointers") == CudaParam(name, "pointer", "float32", const, None, 2)


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("Tile<float,2>y", CudaParam("y", "tile", "float32", False, 2, 2)),
        ("dagpu::Tile<float, 2> y", CudaParam("y", "tile", "float32", False, 2, 2)),
        ("::dagpu :: View < float const , 1u > x", CudaParam("x", "view", "float32", True, 1, 2)),
        ("const View<const unsigned char, 4>", CudaParam("", "view", "uint8", True, 4, 2)),
        ("View<const std::int32_t, 1> const x", CudaParam("x", "view", "int32", True, 1, 2)),
        ("View<float, 1> x", CudaParam("x", "view", "float32", False, 1, 2)),
        ("const __grid_constant__ int n", CudaParam("n", "scalar", "int32", False, None, 2)),
        ("int n = 3", CudaParam("n", "scalar", "int32", False, None, 2)),
        ("float half", CudaParam("half", "scalar", "float32", False, None, 2)),
    ],
)
def test_reads_spacing_and_qualifiers(declaration: str, expected: CudaParam) -> None:
    """Spaces, namespaces and the parameter's own qualifiers change nothing."""
    assert only(declaration) == expected


@pytest.mark.parametrize("inside", ["", "void", " /* none */ "])
def test_a_kernel_may_take_nothing(inside: str) -> None:
    """An empty list and `(void)` are no parameters."""
    assert parse(f"__global__ void k({inside}) {{}}").params == ()


@pytest.mark.parametrize(
    "head",
    [
        "__global__ void",
        'extern "C" __global__ void',
        "static __global__ void",
        "__global__ static inline void",
        "void __global__",
        "__global__ void __launch_bounds__(256)",
        "__global__ __launch_bounds__(256, 2) void",
        "__global__ void __launch_bounds__(MAX(128, 256)) __cluster_dims__(2, 1, 1)",
        "__global__ void __attribute__((noinline))",
        "[[nodiscard]] __global__ [[gnu::cold(1)]] void",
        "__global__ void LIMITS(256)",
        "template <class T, int N = T{}> __device__ T g(T x) { return x; }\n__global__ void",
        "#define KERNEL __global__ void\nKERNEL",
        "template <int A, bool B = (A > 2)> struct S { int a; };\n__global__ void",
    ],
)
def test_reads_past_what_stands_before_the_name(head: str) -> None:
    """Storage, linkage, attributes, launch bounds and earlier templates do not hide the kernel."""
    signature = parse(f"{head} k(int n, float a) {{ f(n); }}")
    assert [(param.name, param.ctype) for param in signature.params] == [("n", "int32"), ("a", "float32")]


@pytest.mark.parametrize(
    "noise",
    [
        "// __global__ void k(double d) {}\n",
        "// spliced \\\n__global__ void k(double d) {}\n",
        "/* __global__ void k(double d) {} */",
        'const char *s = "__global__ void k(double d) {}; \\" // /*";\n',
        'const char *s = R"x(" __global__ void k(double d) {} )")x";\n',
        "const char q = '\"', p = '\\'';\n",
        "const long big = 1'000'000, hex = 0xFF'FF; const float f = 1.5e-3f;\n",
        "#define MAKE(n) __global__ void k(double d) \\\n    {}\n",
        "#include <cuda_fp16.h>  // it's \"here\n",
        '#define OPEN "/*"\n',
        "#if 0\n__global__ void k(double d) {}\n#endif\n",
        "#if 1\n#elif X\n__global__ void k(double d) {}\n#else\n__global__ void k(int* d) {}\n#endif\n",
        "#if 0\n#if X\n__global__ void k(double d) {}\n#endif\n#else\n#endif\n",
        "#ifdef FAST\nint fast;\n#endif\n",
    ],
)
def test_what_is_no_code_declares_nothing(noise: str) -> None:
    """Comments, literals, directives and dead branches are passed over, and lines are still right."""
    signature = parse(noise + "\n__global__ void k(\n  int n) {}")
    assert [param.ctype for param in signature.params] == ["int32"]
    assert signature.line == noise.count("\n") + 2
    assert signature.params[0].line == noise.count("\n") + 3


def test_finds_one_kernel_of_several() -> None:
    """The name chooses, whole: a longer name, a call and a device function are others."""
    source = """
    __device__ float k_helper(float x);
    __global__ void kk(double d) { k_helper(d); }
    __global__ void k(int n) { }
    __global__ void k2(double d) { k<<<1, 1>>>(3); }
    """
    signature = parse(source)
    assert (signature.line, signature.params[0].ctype) == (4, "int32")


def test_a_definition_speaks_before_its_forward_declaration() -> None:
    """A forward declaration may leave names out: those of the definition count."""
    signature = parse(
        "__global__ void k(int, const View<const int, 1>);\n__global__ void k(int n, View<const int, 1> x) {}"
    )
    assert [(param.name, param.line) for param in signature.params] == [("n", 2), ("x", 2)]
    assert parse("__global__ void k(int n);").params[0].name == "n"


@pytest.mark.parametrize(
    ("before", "declaration", "expected"),
    [
        ("using real = float;", "real a", CudaParam("a", "scalar", "float32", False, None, 2)),
        ("typedef unsigned char byte;", "View<const byte, 1> x", CudaParam("x", "view", "uint8", True, 1, 2)),
        ("#define REAL double", "Tile<REAL, 2> y", CudaParam("y", "tile", "float64", False, 2, 2)),
        ("#define RANK 3", "Tile<int, RANK> y", CudaParam("y", "tile", "int32", False, 3, 2)),
        ("using M = View<const float, 2>;", "M x", CudaParam("x", "view", "float32", True, 2, 2)),
        ("using A = int; using B = A;", "const B", CudaParam("", "scalar", "int32", False, None, 2)),
        ("typedef int A; typedef int A;", "A n", CudaParam("n", "scalar", "int32", False, None, 2)),
        ("#define half float", "half h", CudaParam("h", "scalar", "float32", False, None, 2)),
        ("#define float float", "float n", CudaParam("n", "scalar", "float32", False, None, 2)),
    ],
)
def test_follows_an_alias_that_can_mean_one_thing(before: str, declaration: str, expected: CudaParam) -> None:
    """`using`, `typedef` and macros at file scope are followed, through each other as well."""
    assert only(declaration, before=before) == expected


def test_follows_a_macro_for_restrict() -> None:
    """A macro that stands for a qualifier is no part of the type."""
    param = only("const float* RESTRICT x", "pointers", "#define RESTRICT __restrict__")
    assert param == CudaParam("x", "pointer", "float32", True, None, 2)


# ---- refusing ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "before",
    [
        "#ifndef T\n#define T float\n#endif",
        "#define T float\n#undef T",
        "#define T float\n#define T double",
        "using T = float*;",
        "template <class X> using T = X;",
        "struct S { using T = float; };",
        "#define T(x) x",
        "",
    ],
)
def test_refuses_an_alias_that_may_mean_another_thing(before: str) -> None:
    """A conditional, changed, local, pointer or unknown alias is not guessed at."""
    message = refusal(f"{before}\n__global__ void k(T a) {{}}")
    assert "parameter 1 is 'T a'" in message
    assert "Write the C type out" in message


def test_a_conditional_alias_of_a_built_in_name_is_refused() -> None:
    """A name that CUDA knows is not read as CUDA's where the source may have made it another."""
    message = refusal("#ifdef X\n#define half float\n#endif\n__global__ void k(int n, half h) {}")
    assert "CUDA source line 4: parameter 2 is 'half h', and the alias 'half' cannot be followed" in message


@pytest.mark.parametrize(
    ("declaration", "abi", "expected"),
    [
        ("const Tile<float, 2>& y", "views", "parameter 2 is 'const Tile<float, 2>& y', a reference"),
        ("int &n", "views", "drop the '&'"),
        ("float* x", "views", "Declare Tile<float, N> (output) or View<const float, N> (input)"),
        ("__half x[]", "views", "Declare Tile<__half, N> (output)"),
        ("Tile<float, 2> y", "pointers", "Declare float* (output) or const float* (input)"),
        ("Tile<float, 2>* y", "views", "Pass the Tile by value: drop the '*'"),
        ("Tile<float> y", "views", "as in Tile<float, 2>"),
        ("View<const float, 0> x", "views", "whose rank cannot be read"),
        ("View<const float, N> x", "views", "whose rank cannot be read"),
        ("View<const float2, 1> x", "views", "whose element type cannot be read"),
        ("Array<float, 2> x", "views", "a type that cannot be read here"),
        ("other::Tile<float, 2> x", "views", "a type that cannot be read here"),
        ("float** x", "pointers", "a pointer to pointers"),
        ("float x[4][4]", "pointers", "a nested array"),
        ("float *x[4]", "pointers", "a nested array"),
        ("void* x", "pointers", "which says no element type"),
        ("auto n", "views", "'auto' makes it a template"),
        ("long double d", "views", "a type that cannot be read here"),
        ("Params p", "views", "a type that cannot be read here"),
        ("void (*f)(int)", "views", "a type that cannot be read here"),
        ("...", "views", "a type that cannot be read here"),
        ("", "views", "parameter 2 is ''"),
        ("float* FAST x", "pointers", "a type that cannot be read here"),
    ],
)
def test_refuses_what_a_kernel_cannot_be_passed(declaration: str, abi: Abi, expected: str) -> None:
    """The refusal names the kernel, the line, what was found and the cure."""
    message = refusal(f"\n__global__ void k(int n, {declaration}) {{}}", abi=abi)
    assert message.startswith("kernel 'k', CUDA source line 2: parameter 2 is ")
    assert expected in message


@pytest.mark.parametrize(
    "source",
    [
        "\ntemplate <typename T>\n__global__ void k(Tile<T, 2> y) {}",
        "\ntemplate <typename T, int N = T{3}>\n__global__ void k(int n) {}",
        "\n\ntemplate <> __global__ void k<float>(float a) {}",
        "\n\ntemplate __global__ void k<(3 > 2)>(int n);",
        "template <class T>\n__launch_bounds__(256)\nextern __global__ void k(T n) {}",
    ],
)
def test_refuses_a_template(source: str) -> None:
    """A template, a specialisation and an instantiation have no one name to be launched by."""
    message = refusal(source)
    assert message.startswith("kernel 'k', CUDA source line 3: it is a template")
    assert "Write the types out" in message


def test_refuses_overloads() -> None:
    """Two kernels of one name that take different parameters cannot be told apart."""
    message = refusal("__global__ void k(int n) {}\n__global__ void k(float n) {}")
    assert "CUDA source line 2: it is declared with other parameters than on line 1" in message


def test_refuses_conditional_parameters() -> None:
    """A parameter list that an unknown condition changes is not guessed at; a known one is followed."""
    source = "__global__ void k(int n\n#if {}\n, float a\n#endif\n) {{}}"
    assert "preprocessor condition" in refusal(source.format("DEBUG"))
    assert len(parse(source.format("1")).params) == 2
    assert len(parse(source.format("0")).params) == 1


def test_a_missing_kernel_lists_those_that_are_there() -> None:
    """The names and lines of the source's kernels point at the slip."""
    message = refusal("__global__ void sax(int n) {}\n__global__ void saxpi(int n) {}", "saxpy")
    assert "no '__global__ void saxpy(...)'" in message
    assert "its __global__ functions: 'sax' (line 1), 'saxpi' (line 2)" in message
    assert "__global__ functions: none" in refusal("")
    assert "Line 2 has 'k(' with no __global__" in refusal("\nvoid k(int n) {}")


@pytest.mark.parametrize("source", ["__global__ void k(int n", "__global__ void k(int n {", "__global__ void k("])
def test_refuses_a_list_that_is_never_closed(source: str) -> None:
    """A cut-off source is an error with a line, not a crash."""
    assert "line 1: its parameter list is never closed. Add the missing ')'" in refusal(source)


# ---- scalars -----------------------------------------------------------------------------------
class _Level(IntEnum):
    HIGH = 7


@pytest.mark.parametrize(
    ("ctype", "value", "expected"),
    [
        ("int32", 5, 5), ("int32", -(2**31), -(2**31)), ("uint8", 255, 255), ("uint64", 2**64 - 1, 2**64 - 1),
        ("int8", np.int64(-128), -128), ("uint16", np.uint8(3), 3), ("int32", _Level.HIGH, 7),
        ("float32", 1.5, 1.5), ("float32", 2, 2.0), ("float64", np.float32(0.5), 0.5),
        ("float16", 65519.0, 65519.0), ("float32", 3.4028235e38, 3.4028235e38), ("float64", 1e308, 1e308),
        ("float32", float("inf"), float("inf")), ("float16", np.float64("-inf"), float("-inf")),
        ("float32", np.longdouble(2), 2.0), ("bfloat16", ml_dtypes.bfloat16(1.5), 1.5),
        ("bool", True, True), ("bool", np.bool_(False), False),
    ],
)  # fmt: skip
def test_a_scalar_that_fits_becomes_a_plain_number(ctype: str, value: object, expected: float) -> None:
    """What is passed on is exactly an int, float or bool, of the value that came."""
    result = check_scalar(value, scalar(ctype), kernel="k")
    assert (type(result), result) == (type(expected), expected)


def test_nan_is_a_number_here() -> None:
    """NaN passes, like the infinities: it is what was meant."""
    assert np.isnan(check_scalar(float("nan"), scalar("float16"), kernel="k"))


@pytest.mark.parametrize(
    ("ctype", "value"),
    [
        ("int32", 2**31), ("int32", -(2**31) - 1), ("uint8", -1), ("uint8", 256), ("int64", 2**63),
        ("int32", 2**200), ("int32", 3.0), ("int32", np.float32(3)), ("int32", True), ("int32", np.True_),
        ("int32", "3"), ("int32", None), ("int32", np.array(3)), ("int32", np.timedelta64(3, "ns")),
        ("float32", True), ("float32", 1e39), ("float16", 65520), ("float16", -70000.0), ("bfloat16", 3.4e38),
        ("float64", 10**400), ("float32", 1j), ("float32", np.complex64(1)), ("float32", "1"),
        ("float32", np.zeros((), "f4,f4")[()]),
        ("bool", 1), ("bool", np.int8(0)), ("bool", 1.0), ("bool", None),
    ],
)  # fmt: skip
def test_a_scalar_that_does_not_fit_is_refused(ctype: str, value: object) -> None:
    """Nothing is wrapped, truncated, rounded to infinity or read as a truth value."""
    with pytest.raises(KernelArgumentError, match="kernel 'k': argument 'n' is "):
        check_scalar(value, scalar(ctype), kernel="k")


@pytest.mark.parametrize(
    ("ctype", "value", "expected"),
    [
        ("uint8", 300, "'n' is int 300; its CUDA parameter 'unsigned char n' (CUDA source line 4) takes"),
        ("uint8", -1, "takes an int from 0 to 255. Cure: pass one in the range, or declare a wider type."),
        pytest.param("int32", 10**5000, "is int of 16610 bits; its CUDA parameter 'int n'", id="huge"),
        ("int16", 2.5, "an int from -32768 to 32767. Cure: convert it with int(...) if that is meant."),
        ("float16", 70000, "is int 70000; its CUDA parameter '__half n'"),
        ("float16", 70000, "takes a number from -65504 to 65504."),
        ("bool", 1, "takes a bool. Cure: convert it with bool(...) if that is meant."),
        ("float32", [1.0], "is list; its CUDA parameter 'float n'"),
    ],
)  # fmt: skip
def test_a_refused_scalar_says_what_came_and_what_is_wanted(ctype: str, value: object, expected: str) -> None:
    """The message has the argument, its value, the C type, the line, the range and the cure."""
    with pytest.raises(KernelArgumentError) as caught:
        check_scalar(value, scalar(ctype), kernel="k")
    assert expected in str(caught.value)


def test_a_number_for_an_array_is_refused() -> None:
    """A number cannot stand where the kernel takes a view."""
    param = CudaParam("x", "view", "float32", True, 2, 4)
    with pytest.raises(KernelArgumentError, match=r"'View<const float, 2> x' .* takes device data"):
        check_scalar(1.0, param, kernel="k")


# ---- against Python ------------------------------------------------------------------------------
SAXPY_PYTHON = (
    PyParam("y", "out", "float32", None),
    PyParam("a", "scalar", None, "float"),
    PyParam("x", "in", "float32", None),
)


def disagreement(cuda: str, *python: PyParam, abi: Abi = "views") -> str:
    with pytest.raises(KernelArgumentError) as caught:
        check_signature(parse(f"__global__ void k({cuda}) {{}}", abi=abi), python, kernel="k", where="app.py:7")
    return str(caught.value)


def test_signatures_that_agree_pass() -> None:
    """Views, pointers, other names and generic element types agree."""
    check_signature(parse(SAXPY, "saxpy"), SAXPY_PYTHON, kernel="saxpy", where="app.py:7")
    pointers = parse("__global__ void k(float* out, float, const float* in, size_t n, bool b) {}", abi="pointers")
    more = (PyParam("n", "scalar", None, "int"), PyParam("b", "scalar", None, "bool"))
    check_signature(pointers, (*SAXPY_PYTHON, *more), kernel="k", where="app.py:7")
    generic = [PyParam(p.name, p.form, None, None) for p in SAXPY_PYTHON]
    check_signature(parse(SAXPY, "saxpy"), generic, kernel="saxpy", where="app.py:7")


@pytest.mark.parametrize(
    ("cuda", "python", "expected"),
    [
        ("Tile<double, 1> y", PyParam("y", "out", "float32", None),
         "'y: Out[float32]', CUDA 'Tile<double, 1> y' (line 1): float32 against float64. Declare 'Til"),
        ("View<float, 1> x", PyParam("x", "in", "float32", None),
         "an input is const. Declare 'View<const float, 1> x'"),
        ("Tile<const float, 2> y", PyParam("y", "out", "float32", None),
         "an output is not const. Declare 'Tile<float, 2> y'"),
        ("View<const float, 2> y", PyParam("y", "out", None, None),
         "an output is a Tile. Declare 'Tile<float, 2> y'"),
        ("Tile<float, 2> x", PyParam("x", "in", None, None),
         "an input is a View. Declare 'View<const float, 2> x'"),
        ("float x", PyParam("x", "in", "bfloat16", None),
         "a scalar against an array. Declare 'View<const __nv_bfloat16, N> x'"),
        ("float x", PyParam("x", "in", None, None), "Declare 'View<const T, N> x'"),
        ("Tile<float, 2> a", PyParam("a", "scalar", None, "float"), "an array. Declare 'float a'"),
        ("double n", PyParam("n", "scalar", None, "int"), "a Python int against double. Declare 'int n'"),
        ("int a", PyParam("a", "scalar", None, "float"), "a Python float against int. Declare 'float a'"),
        ("int b", PyParam("b", "scalar", None, "bool"), "a Python bool against int. Declare 'bool b'"),
        ("double a", PyParam("a", "scalar", "float32", "float"), "against float64. Declare 'float a'"),
    ],
)  # fmt: skip
def test_each_disagreement_says_both_sides_and_the_cure(cuda: str, python: PyParam, expected: str) -> None:
    """Form, element type, constness and kind of scalar are held, each with what to declare."""
    message = disagreement(cuda, python)
    assert message.startswith(
        "kernel 'k': its Python signature (app.py:7) and its CUDA signature (CUDA source line 1) differ:\n"
    )
    assert expected in message


@pytest.mark.parametrize(
    ("cuda", "python", "expected"),
    [
        ("float* x", PyParam("x", "in", None, None), "an input is const. Declare 'const float* x'"),
        ("const int* y", PyParam("y", "out", None, None), "an output is not const. Declare 'int* y'"),
        (
            "const int* x",
            PyParam("x", "in", "int8", None),
            "int8 against int32. Declare 'const signed char* x'",
        ),
    ],
)
def test_pointers_are_held_by_their_const(cuda: str, python: PyParam, expected: str) -> None:
    """With plain pointers, const is what tells an input from an output."""
    assert expected in disagreement(cuda, python, abi="pointers")


def test_all_disagreements_come_in_one_message() -> None:
    """Nobody mends a signature one error at a time."""
    message = disagreement("Tile<double, 1> y, int a,\nfloat x", *SAXPY_PYTHON)
    assert [line[:14] for line in message.splitlines()[1:]] == [f"  - parameter {n}"[:14] for n in (1, 2, 3)]
    assert "CUDA 'float x' (line 2)" in message


def test_the_count_is_held_and_the_surplus_is_named() -> None:
    """A parameter too many is named, whichever side it is on."""
    few = disagreement("Tile<float, 1> y, float a", *SAXPY_PYTHON)
    assert "3 parameters in Python, 2 in CUDA (line 1): nothing stands against 'x: In[float32]'" in few
    many = disagreement("int n", abi="pointers")
    assert "0 parameters in Python, 1 in CUDA (line 1): nothing stands against 'int n'" in many


def test_swapped_names_are_noticed() -> None:
    """Two inputs of one type in another order would agree in all but their meaning."""
    python = (PyParam("a", "in", "float32", None), PyParam("b", "in", "float32", None))
    message = disagreement("View<const float, 1> b, View<const float, 1> a", *python)
    assert "the Python parameter 'b' is number 2" in message
    assert "the Python parameter 'a' is number 1" in message


def test_the_error_is_a_dagpu_error_and_a_type_error() -> None:
    """Either family catches it."""
    assert issubclass(KernelArgumentError, DagpuError)
    assert issubclass(KernelArgumentError, TypeError)


def test_the_module_does_not_import_numpy() -> None:
    """The reader is light: it needs the standard library alone."""
    code = (
        "import sys, types; package = types.ModuleType('dagpu'); package.__path__ = ['dagpu'];"
        "sys.modules['dagpu'] = package; import dagpu.cuda_signature; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- round trip -----------------------------------------------------------------------------------
SPELLINGS = {
    "float32": [["float"]], "float64": [["double"]], "float16": [["half"], ["__half"]],
    "bfloat16": [["nv_bfloat16"], ["__nv_bfloat16"]], "bool": [["bool"]],
    "int8": [["char"], ["signed", "char"], ["std", "::", "int8_t"]],
    "uint8": [["unsigned", "char"], ["uint8_t"]],
    "int32": [["int"], ["signed"], ["int32_t"]], "uint32": [["unsigned"], ["int", "unsigned"], ["uint32_t"]],
    "int64": [["long", "long"], ["long", "int"], ["std", "::", "int64_t"]],
    "uint64": [["unsigned", "long", "long"], ["size_t"], ["std", "::", "size_t"]],
}  # fmt: skip
GAPS = [" ", "  ", "\n", "\t", ' /* , ) > " */ ', " // it's, a ( comment\n", "\\\n"]
HEADS = [
    ["__global__", "void"], ["extern", '"C"', "__global__", "void"],
    ["static", "__global__", "inline", "void"],
    ["__global__", "void", "__launch_bounds__", "(", "256", ",", "2", ")"],
    ["__global__", "__launch_bounds__", "(", "128", ")", "void"],
    ["template", "<", "class", "T", ">", "T", "f", "(", "T", ")", ";", "__global__", "void"],
    ["__global__", "void", "other", "(", "int", "k", ")", "{", "}", "__global__", "void"],
]  # fmt: skip
Drawn = tuple[str, Form, str, bool, int | None]


@st.composite
def drawn_params(draw: st.DrawFn, abi: Abi) -> list[Drawn]:
    """A parameter list that `abi` can pass; names are distinct, and may be missing."""
    forms: list[Form] = ["scalar", "pointer"] if abi == "pointers" else ["scalar", "tile", "view"]
    params: list[Drawn] = []
    for position in range(draw(st.integers(0, 5))):
        form = draw(st.sampled_from(forms))
        name = draw(st.sampled_from(["", f"p{position}", f"Tile_{position}", f"const_{position}"]))
        rank = draw(st.integers(1, 12)) if form in ("tile", "view") else None
        const = form != "scalar" and draw(st.booleans())
        params.append((name, form, draw(st.sampled_from(sorted(SPELLINGS))), const, rank))
    return params


def words_of(draw: st.DrawFn, param: Drawn) -> list[str]:
    """One way of writing a parameter, in words."""
    name, form, dtype, const, rank = param
    element = draw(st.sampled_from(SPELLINGS[dtype]))
    element = [*element, "const"] if const and draw(st.booleans()) else ["const", *element] if const else element
    own = draw(st.sampled_from([[], ["const"]]))
    if form == "scalar":
        return [*own, *element, name]
    if form == "pointer":
        return [*element, "*", *own, *draw(st.sampled_from([[], ["__restrict__"]])), name]
    scope = draw(st.sampled_from([[], ["dagpu", "::"]]))
    return [*own, *scope, form.capitalize(), "<", *element, ",", str(rank), ">", name]


@st.composite
def written_kernels(draw: st.DrawFn, abi: Abi) -> tuple[str, CudaSignature]:
    """A source with a kernel `k` in it, a gap of some sort after each word, and its signature."""
    text = ""

    def write(words: list[str]) -> int:
        """Writes words, and returns the line of the first."""
        nonlocal text
        line = text.count("\n") + 1
        for word in filter(None, words):
            text += word + draw(st.sampled_from(GAPS))
        return line

    write(draw(st.sampled_from(HEADS)))
    line = write(["k"])
    write(["("])
    expected: list[CudaParam] = []
    for param in draw(drawn_params(abi)):
        write([","] if expected else [])
        expected.append(CudaParam(*param, write(words_of(draw, param))))
    write([")", draw(st.sampled_from([";", "{ k2(1, 2); }"]))])
    return text, CudaSignature("k", tuple(expected), line, False)


@given(written_kernels("views"))
def test_views_that_are_written_are_read_back(written: tuple[str, CudaSignature]) -> None:
    """Tiles, views and scalars, however they are spaced and qualified, are read back with their lines."""
    text, signature = written
    assert parse(text, abi="views") == signature


@given(written_kernels("pointers"))
def test_pointers_that_are_written_are_read_back(written: tuple[str, CudaSignature]) -> None:
    """Any signature of pointers and scalars, however it is spaced and qualified, is read with its lines."""
    text, signature = written
    assert parse(text, abi="pointers") == signature


WORDS = ["__global__", " void ", " k", "template", "const ", "int ", "Tile", "2", "if 0\n"]
PIECES = [*"(){}[]<>,;:*&#=\"'/\\\n ", *WORDS]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.sampled_from(["views", "pointers"]))
def test_any_text_is_read_or_refused(text: str, abi: Abi) -> None:
    """No source, however broken, ends in anything but a signature or a `KernelArgumentError`."""
    for source in (text, f"__global__ void k({text}", f"{text} __global__ void k(int n) {{}}"):
        with suppress(KernelArgumentError):
            assert parse(source, abi=abi).name == "k"
