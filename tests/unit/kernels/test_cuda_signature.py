"""Parameters that are read from a kernel's declaration or refused, and their comparison with Python."""

import subprocess
import sys
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.common.errors import DagpuError, KernelArgumentError
from dagpu.kernels.cuda_signature import CudaParam, CudaSignature, PyParam, check_signature
from dagpu.testing import Form
from tests.support.cuda_text import Abi, only, parse, refusal

CudaForm = Literal["tile", "view", "pointer", "scalar"]

SAXPY = """
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""


# ---- reading ---------------------------------------------------------------------------------------
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


# ---- refusing --------------------------------------------------------------------------------------
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
        ("View<const Unknown, 1> x", "views", "whose element type cannot be read"),
        ("Array<float, 2> x", "views", "a type that cannot be read here"),
        ("other::Tile<float, 2> x", "views", "a type that cannot be read here"),
        ("float*** x", "pointers", "a pointer to pointers to pointers"),
        ("float* const* x[2]", "pointers", "a pointer to pointers to pointers"),
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


def test_refuses_overloads() -> None:
    """Two kernels of one name that take different parameters cannot be told apart."""
    message = refusal("__global__ void k(int n) {}\n__global__ void k(float n) {}")
    assert "CUDA source line 2: it is declared with other parameters than on line 1" in message


# ---- against Python ------------------------------------------------------------------------------
SAXPY_PYTHON = (
    PyParam("y", Form.OUT, "float32", None),
    PyParam("a", Form.SCALAR, None, "float"),
    PyParam("x", Form.IN, "float32", None),
)


def disagreement(cuda: str, *python: PyParam, abi: Abi = "views") -> str:
    with pytest.raises(KernelArgumentError) as caught:
        check_signature(parse(f"__global__ void k({cuda}) {{}}", abi=abi), python, kernel="k", where="app.py:7")
    return str(caught.value)


def test_signatures_that_agree_pass() -> None:
    """Views, pointers, other names and generic element types agree."""
    check_signature(parse(SAXPY, "saxpy"), SAXPY_PYTHON, kernel="saxpy", where="app.py:7")
    pointers = parse("__global__ void k(float* out, float, const float* in, size_t n, bool b) {}", abi="pointers")
    more = (PyParam("n", Form.SCALAR, None, "int"), PyParam("b", Form.SCALAR, None, "bool"))
    check_signature(pointers, (*SAXPY_PYTHON, *more), kernel="k", where="app.py:7")
    generic = [PyParam(p.name, p.form, None, None) for p in SAXPY_PYTHON]
    check_signature(parse(SAXPY, "saxpy"), generic, kernel="saxpy", where="app.py:7")


@pytest.mark.parametrize(
    ("cuda", "python", "expected"),
    [
        ("Tile<double, 1> y", PyParam("y", Form.OUT, "float32", None),
         "'y: Out[float32]', CUDA 'Tile<double, 1> y' (line 1): float32 against float64. Declare 'Til"),
        ("View<float, 1> x", PyParam("x", Form.IN, "float32", None),
         "an input is const. Declare 'View<const float, 1> x'"),
        ("Tile<const float, 2> y", PyParam("y", Form.OUT, "float32", None),
         "an output is not const. Declare 'Tile<float, 2> y'"),
        ("View<const float, 2> y", PyParam("y", Form.OUT, None, None),
         "an output is a Tile. Declare 'Tile<float, 2> y'"),
        ("Tile<float, 2> x", PyParam("x", Form.IN, None, None),
         "an input is a View. Declare 'View<const float, 2> x'"),
        ("float x", PyParam("x", Form.IN, "bfloat16", None),
         "a scalar against an array. Declare 'View<const __nv_bfloat16, N> x'"),
        ("float x", PyParam("x", Form.IN, None, None), "Declare 'View<const T, N> x'"),
        ("Tile<float, 2> a", PyParam("a", Form.SCALAR, None, "float"), "an array. Declare 'float a'"),
        ("double n", PyParam("n", Form.SCALAR, None, "int"), "a Python int against double. Declare 'int n'"),
        ("int a", PyParam("a", Form.SCALAR, None, "float"), "a Python float against int. Declare 'float a'"),
        ("int b", PyParam("b", Form.SCALAR, None, "bool"), "a Python bool against int. Declare 'bool b'"),
        ("double a", PyParam("a", Form.SCALAR, "float32", "float"), "against float64. Declare 'float a'"),
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
        ("const int* y", PyParam("y", Form.OUT, None, None), "an output is not const. Declare 'int* y'"),
        (
            "const int* x",
            PyParam("x", Form.IN, "int8", None),
            "int8 against int32. Declare 'const signed char* x'",
        ),
    ],
)
def test_pointers_are_held_by_their_const(cuda: str, python: PyParam, expected: str) -> None:
    """With plain pointers, const memory is no output. An input may lack its const, as in much existing code."""
    check_signature(
        parse("__global__ void k(float* x) {}", abi="pointers"),
        (PyParam("x", Form.IN, None, None),),
        kernel="k",
        where="",
    )
    assert expected in disagreement(cuda, python, abi="pointers")


def test_all_disagreements_come_in_one_message() -> None:
    """Nobody mends a signature one error at a time."""
    message = disagreement("Tile<double, 1> y, int a,\nfloat x", *SAXPY_PYTHON)
    assert [line[:14] for line in message.splitlines()[1:]] == [f"  - parameter {n}"[:14] for n in (1, 2, 3)]
    assert "CUDA 'float x' (line 2)" in message


def test_the_count_is_held_and_the_surplus_is_named() -> None:
    """A parameter too many is named, whichever side it is on."""
    few = disagreement("Tile<float, 1> y, float a", *SAXPY_PYTHON)
    assert "3 parameters in Python, 2 in CUDA (line 1): no counterpart for 'x: In[float32]'" in few
    many = disagreement("int n", abi="pointers")
    assert "0 parameters in Python, 1 in CUDA (line 1): no counterpart for 'int n'" in many


def test_swapped_names_are_noticed() -> None:
    """Two inputs of one type in another order would agree in all but their meaning."""
    python = (PyParam("a", Form.IN, "float32", None), PyParam("b", Form.IN, "float32", None))
    message = disagreement("View<const float, 1> b, View<const float, 1> a", *python)
    assert "Python (a, b), CUDA (b, a). Swap 'a' and 'b' in one of them" in message


def test_the_error_is_a_dagpu_error_and_a_type_error() -> None:
    """Either family catches it."""
    assert issubclass(KernelArgumentError, DagpuError)
    assert issubclass(KernelArgumentError, TypeError)


def test_the_module_does_not_import_numpy() -> None:
    """The reader is light: it needs the standard library alone."""
    code = (
        "import sys, types; package = types.ModuleType('dagpu'); package.__path__ = ['dagpu'];"
        "sys.modules['dagpu'] = package; import dagpu.kernels.cuda_signature;"
        "sys.exit('numpy' in sys.modules)"
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
GAPS = [" ", "  ", "\n", "\t", ' /* , ) > " */ ', " // it's, a ( comment\n", " \\\n"]
HEADS = [
    ["__global__", "void"], ["extern", '"C"', "__global__", "void"],
    ["static", "__global__", "inline", "void"],
    ["__global__", "void", "__launch_bounds__", "(", "256", ",", "2", ")"],
    ["__global__", "__launch_bounds__", "(", "128", ")", "void"],
    ["template", "<", "class", "T", ">", "T", "f", "(", "T", ")", ";", "__global__", "void"],
    ["__global__", "void", "other", "(", "int", "k", ")", "{", "}", "__global__", "void"],
]  # fmt: skip
Drawn = tuple[str, CudaForm, str, bool, int | None]


@st.composite
def drawn_params(draw: st.DrawFn, abi: Abi) -> list[Drawn]:
    """A parameter list that `abi` can pass; names are distinct, and may be missing."""
    forms: list[CudaForm] = ["scalar", "pointer"] if abi == "pointers" else ["scalar", "tile", "view"]
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
