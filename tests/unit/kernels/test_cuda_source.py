"""Finding a kernel in CUDA text: past comments and strings, through aliases, and without guesses."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.common.errors import KernelArgumentError
from dagpu.kernels.cuda_signature import CudaParam
from tests.support.cuda_text import Abi, only, parse, refusal


# ---- reading ---------------------------------------------------------------------------------------
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
        ("template <class X> using T = X;", "T<int> n", CudaParam("n", "scalar", "int32", False, None, 2)),
    ],
)
def test_follows_an_alias_that_can_mean_one_thing(before: str, declaration: str, expected: CudaParam) -> None:
    """`using`, `typedef` and macros at file scope are followed, through each other as well."""
    assert only(declaration, before=before) == expected


def test_follows_a_macro_for_restrict() -> None:
    """A macro that stands for a qualifier is no part of the type."""
    param = only("const float* RESTRICT x", "pointers", "#define RESTRICT __restrict__")
    assert param == CudaParam("x", "pointer", "float32", True, None, 2)


# ---- refusing --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "before",
    [
        "#ifndef __T\n#define T float\n#endif",
        "#define T float\n#undef T",
        "#ifdef __T\nusing T = float;\n#else\nusing T = double;\n#endif",
        "template <class X> using T = X;",
        "struct S { using T = float; };",
        "#define T(x) x",
        "",
    ],
)
def test_refuses_an_alias_that_may_mean_another_thing(before: str) -> None:
    """A conditional, local or unknown alias is not guessed at."""
    message = refusal(f"{before}\n__global__ void k(T a) {{}}")
    assert "parameter 1 is " in message
    assert "Write the C type out" in message or "is under a preprocessor condition" in message


def test_a_conditional_alias_of_a_built_in_name_is_refused() -> None:
    """A name that CUDA knows is not read as CUDA's where the source may have made it another."""
    message = refusal("#ifdef __X\n#define half float\n#endif\n__global__ void k(int n, half h) {}")
    assert "CUDA source line 4: parameter 2 is under a preprocessor condition, which is not known here" in message


@pytest.mark.parametrize(
    ("source", "instance", "unbound"),
    [
        ("\ntemplate <typename T>\n__global__ void k(Tile<T, 2> y) {}", "", ("typename T",)),
        ("\ntemplate <typename T, int N = T{3}>\n__global__ void k(int n) {}", "", ("typename T", "int N = T { 3 }")),
        ("\n\ntemplate <> __global__ void k<float>(float a) {}", "k<float>", ()),
        ("\n\ntemplate __global__ void k<(3 > 2)>(int n);", "k<(3> 2)>", ()),
        ("template <class T>\n__launch_bounds__(256)\nextern __global__ void k(T n) {}", "", ("class T",)),
    ],
)
def test_a_template_says_what_of_it_is_open(source: str, instance: str, unbound: tuple[str, ...]) -> None:
    """A specialisation and an instantiation name their instance."""
    signature = parse(source)
    assert (signature.line, signature.template, signature.instance, signature.unbound) == (3, True, instance, unbound)


def test_refuses_conditional_parameters() -> None:
    """A parameter list that an unknown condition changes is not guessed at; a known one is followed."""
    source = "__global__ void k(int n\n#if {}\n, float a\n#endif\n) {{}}"
    assert "preprocessor condition" in refusal(source.format("__CUDA_ARCH__ >= 800"))
    assert len(parse(source.format("1")).params) == 2
    assert len(parse(source.format("0 && __CUDA_ARCH__")).params) == 1
    assert len(parse(source.format("DEBUG")).params) == 1


def test_a_missing_kernel_lists_those_that_are_there() -> None:
    """The names and lines of the source's kernels point at the slip."""
    message = refusal("__global__ void sax(int n) {}\n__global__ void saxpi(int n) {}", "saxpy")
    assert "no '__global__ void saxpy(...)'" in message
    assert "its __global__ functions: 'sax' (line 1), 'saxpi' (line 2)" in message
    assert "__global__ functions: none" in refusal("")
    assert "Line 2 has 'k(' without a visible __global__" in refusal("\nvoid k(int n) {}")


@pytest.mark.parametrize("source", ["__global__ void k(int n", "__global__ void k(int n {", "__global__ void k("])
def test_refuses_a_list_that_is_never_closed(source: str) -> None:
    """A cut-off source is an error with a line, not a crash."""
    assert "line 1: its parameter list is never closed. Add the missing ')'" in refusal(source)


# ---- any text --------------------------------------------------------------------------------------
WORDS = ["__global__", " void ", " k", "template", "const ", "int ", "Tile", "2", "if 0\n"]
WORDS += [" struct ", " S ", "typedef ", "using ", "enum ", "template <typename T> ", "namespace ", "union ", "alignas"]
PIECES = [*"(){}[]<>,;:*&#=\"'/\\\n ", *WORDS]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.sampled_from(["views", "pointers"]))
def test_any_text_is_read_or_refused(text: str, abi: Abi) -> None:
    """No source, however broken, ends in anything but a signature or a `KernelArgumentError`."""
    for source in (text, f"__global__ void k({text}", f"{text} __global__ void k(int n) {{}}"):
        with suppress(KernelArgumentError):
            assert parse(source, abi=abi).name == "k"
