"""Kernel declarations: what is read from the signature and the source, and what is refused."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from dagpu import Elem, Foreign, expr, foreign
from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import f32, f64, i32, u8
from dagpu.common.places import record_origins
from dagpu.handles import Tensor
from dagpu.kernels.decorator import In, Kernel, Lazy, Out, kernel
from dagpu.ops.compose import Launch
from dagpu.testing import Form
from tests.unit.kernels import kernel_cases
from tests.unit.kernels.kernel_cases import SAXPY, cut, declared_line, lazily, lazy, refused, saxpy, split, tensor

D = TypeVar("D", bound=np.generic)
ANY_IN: Any = In
ANY_LAZY: Any = Lazy
FILE = __file__


# ---- declaration


def test_declaration_is_read() -> None:
    """Names, forms, element types and ranks come from the two signatures."""
    found = [(p.name, p.form, p.dtype, p.rank, p.lazy) for p in saxpy.spec.params]
    float32 = np.dtype(f32)
    assert found == [
        ("y", Form.OUT, float32, 2, False),
        ("a", Form.SCALAR, None, None, False),
        ("x", Form.IN, float32, 2, False),
    ]
    assert [p.lazy for p in lazily.spec.params] == [False, True]


def test_kernel_looks_like_its_function() -> None:
    """Name, docstring and signature are the function's; repr says what it is and where it was declared."""
    assert (saxpy.__name__, saxpy.__doc__) == ("saxpy", "y += a * x.")  # type: ignore[attr-defined]  # reason: set by update_wrapper
    assert list(inspect.signature(saxpy).parameters) == ["y", "a", "x"]
    assert repr(saxpy) == (
        f"<kernel saxpy(y: Out[float32], rank 2, a: scalar, x: In[float32], rank 2) declared at {declared_line(saxpy)}>"
    )


def test_place_of_declaration_without_origins() -> None:
    """A kernel knows where it was declared even where origins are turned off."""
    before = record_origins(False)
    try:
        k = kernel(cuda="__global__ void k(Tile<float, 1> y) {}")(_named("k", lambda: _k))
        message = refused(k, 1)
    finally:
        record_origins(before)
    assert "Called at an unknown place" in message
    assert f"the kernel is declared at {FILE}:" in message


def _k(y: Out[f32]) -> None: ...


def _named(name: str, get: Callable[[], Callable[..., None]]) -> Callable[..., None]:
    """A copy of a function under another name."""
    import types

    function = cast(types.FunctionType, get())
    copy = types.FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    copy.__annotations__ = dict(function.__annotations__)
    return copy


def test_generic_kernel_takes_what_cuda_declares() -> None:
    """An element type left open in Python is the one that CUDA declares, and no other."""

    @kernel(cuda="__global__ void scale(Tile<double, 1> y, View<const double, 1> x) {}")
    def scale(y: Out[D], x: In[D]) -> None: ...

    assert [p.dtype for p in scale.spec.params] == [np.dtype(f64)] * 2
    scale(cut((4,), (2,), f64), tensor((4,), f64))
    assert "elements of float64 are wanted" in refused(scale, cut((4,), (2,), f32), tensor((4,), f64))


def test_text_annotations_with_local_names() -> None:
    """Annotations that are text may name types of the scope in which the kernel is declared."""
    half = np.float16
    assert half is np.float16

    @kernel(cuda="__global__ void k(Tile<half, 1> y, unsigned char n) {}")
    def k(y: "Out[half]", n: "u8") -> None: ...  # type: ignore[valid-type]  # reason: a variable, on purpose

    assert k.spec.params[0].dtype == np.dtype(np.float16)

    @foreign
    def sine(y: "Out[half]", x: "In[half]") -> None: ...  # type: ignore[valid-type]  # reason: as above

    assert isinstance(sine, Foreign)

    @expr
    def twice(x: "Elem[half]") -> "Elem[half]":  # type: ignore[valid-type]  # reason: as above
        return x + x

    assert twice.traced.dtypes[0] == np.dtype(np.float16)


@pytest.mark.parametrize("scalar", [int, i32, np.int64, float, f32, np.float64, bool, np.bool_])
def test_scalar_types(scalar: type) -> None:
    """Python's numbers and NumPy's scalar types may be parameters."""
    ctypes = {int: "short", i32: "int", np.int64: "long long", float: "half", f32: "float", f64: "double"}
    ctype = ctypes.get(scalar, "bool")

    @kernel(cuda=f"__global__ void k(Tile<float, 1> y, {ctype} a) {{}}")
    def k(y: Out[f32], a: scalar) -> None: ...  # type: ignore[valid-type]  # reason: a type chosen at run time

    op = k(lazy(1), scalar(1))
    assert isinstance(op, Launch)
    assert op.args[1] == 1
    assert type(op.args[1]) in (int, float, bool)


@pytest.mark.parametrize(
    ("annotation", "what"),
    [
        (str, "parameter 'a' is annotated str, which is not a type that a kernel can take"),
        (complex, "parameter 'a' is annotated complex, which"),
        (float | None, "parameter 'a' is annotated float | None, which is not a type"),
        (Tensor[f32], "which does not say whether the kernel reads or writes it"),
        (
            Tensor,
            "parameter 'a' is annotated Tensor, which does not say whether the kernel reads or writes it",
        ),
        (np.ndarray, "parameter 'a' is annotated ndarray, which does not say"),
        (In, "parameter 'a' is annotated In, which lacks its element type"),
        (Out, "parameter 'a' is annotated Out, which lacks its element type"),
        (ANY_IN[np.floating], "parameter 'a' is annotated In[floating], whose element type a tensor cannot have"),
        (ANY_LAZY[str], "which is not a type that a kernel can take"),
        ("Out[nowhere]", "the annotation 'Out[nowhere]' of parameter 'a' cannot be read (name 'nowhere'"),
        ("1 +", "the annotation '1 +' of parameter 'a' cannot be read"),
    ],
)
def test_annotation_refused(annotation: object, what: str) -> None:
    """An annotation that is no input, output or scalar is refused at once, with parameter and place."""

    def k(y: Out[f32], a: int) -> None: ...

    k.__annotations__["a"] = annotation
    message = refused(kernel(cuda="__global__ void k(Tile<float, 1> y, int a) {}"), k)
    assert what in message
    assert f"kernel 'k', declared at {FILE}:{k.__code__.co_firstlineno}: " in message


def test_parameters_refused() -> None:
    """Every parameter has a name and an annotation, and no tensor has a default."""

    def bare(y) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # reason: that is what is tested

    def many(*y: Out[f32]) -> None: ...

    def default(y: Out[f32] = cut()) -> None: ...  # noqa: B008  # reason: that is what is tested

    declare = kernel(cuda=SAXPY)
    assert "parameter 'y' has no annotation. Annotate it In[f32]" in refused(declare, bare)
    assert "parameter 'y' is *y. Name every parameter." in refused(declare, many)
    assert "parameter 'y' is a tensor with a default. Leave the default out" in refused(declare, default)
    assert "is not a plain function. Decorate a `def`" in refused(declare, 3)


def test_signatures_must_agree() -> None:
    """All differences between the two signatures are listed at the declaration."""

    def k(y: Out[f32], n: int, x: In[f64]) -> None: ...

    source = "__global__ void k(View<const float, 1> y, float n, View<const float, 1> x) {}"
    message = refused(kernel(cuda=source), k)
    assert f"({FILE}:{k.__code__.co_firstlineno})" in message
    for what in (
        "parameter 1: ",
        "an output is a Tile",
        "a Python int against float",
        "float64 against float32",
    ):
        assert what in message


def test_numpy_scalar_must_match_exactly() -> None:
    """A NumPy scalar type says more than a Python number: CUDA has to declare that very type."""

    def k(y: Out[f32], a: f32) -> None: ...

    source = "__global__ void k(Tile<float, 1> y, double a) {}"
    assert "float32 against float64" in refused(kernel(cuda=source), k)


def test_kernel_missing_in_source() -> None:
    """A source without the kernel is refused, with the place of the declaration."""

    def other(y: Out[f32]) -> None: ...

    message = refused(kernel(cuda=SAXPY), other)
    assert "CUDA source has no '__global__ void other(...)'" in message
    assert f"The kernel is declared at {FILE}:{other.__code__.co_firstlineno}." in message


def test_default_is_checked_at_declaration() -> None:
    """A default that does not fit the C type is refused at once."""

    def k(y: Out[f32], n: int = 300) -> None: ...

    message = refused(kernel(cuda="__global__ void k(Tile<float, 1> y, unsigned char n) {}"), k)
    assert "an int from 0 to 255" in message
    assert f"It is the default, declared at {FILE}:" in message


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"block": 0}, "block(0). Give 1 to 3 whole numbers, each 1 or more."),
        ({"block": (2, 2, 2, 2)}, "Give 1 to 3 whole numbers"),
        ({"block": ()}, "Give 1 to 3 whole numbers"),
        ({"block": True}, "Give 1 to 3 whole numbers"),
        ({"block": 2.0}, "Give 1 to 3 whole numbers"),
        ({"block": (64, 32)}, "block(64, 32) has 2048 threads. A block has at most 1024"),
        ({"abi": "c"}, "abi='c'. Give 'views' or 'pointers'."),
        ({"options": "-O3"}, "options='-O3'. Give a sequence of texts"),
    ],
)
def test_settings_refused(settings: dict[str, Any], what: str) -> None:
    """Block, abi and options are checked at the declaration."""

    def k(y: Out[f32]) -> None: ...

    assert what in refused(kernel(cuda="__global__ void k(Tile<float, 1> y) {}", **settings), k)


@pytest.mark.parametrize("call", ["grid((0,))", "grid(0)", "block((0,))", "block(2048)", "shared_memory(-1)"])
def test_settings_of_a_call_are_refused_where_that_stands(call: str) -> None:
    """A grid, a block or shared memory for one call is refused with the place of that call."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y) {}")
    def k(y: Out[f32]) -> None: ...

    with pytest.raises(KernelArgumentError) as caught:
        eval(compile(f"k.{call}", "a_program.py", "eval"), {"k": k})
    assert f": {call} at a_program.py:1" in str(caught.value)
    assert f"declared at {FILE}:" in str(caught.value)


def test_settings_of_a_call_are_numbers_and_no_tuple() -> None:
    """As the decorator takes one, the message shows the call without it."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y) {}", block=(32, 8))
    def k(y: Out[f32]) -> None: ...

    given: Any = (32, 8)
    with pytest.raises(KernelArgumentError, match=r"Pass the numbers themselves: block\(32, 8\)"):
        k.block(given)
    with pytest.raises(KernelArgumentError, match=r"Pass the numbers themselves: grid\(32, 8\)"):
        k.grid(given)


def test_settings_kept() -> None:
    """The settings of a declaration are in the spec."""

    @kernel(cuda="__global__ void k(float* y) {}", block=(8, 4), abi="pointers", options=["-a"])
    def k(y: Out[f32]) -> None: ...

    spec = k.spec
    assert (spec.block, spec.abi, spec.options, spec.checked) == ((8, 4), "pointers", ("-a",), False)
    assert spec.params[0].rank is None
    k(cut((8, 8), (4, 4)))
    k(cut((8,), (4,)))


@pytest.mark.parametrize(("text", "checked"), [("1", True), ("yes", True), ("", False), ("0", False), ("off", False)])
def test_checked_by_environment(monkeypatch: pytest.MonkeyPatch, text: str, checked: bool) -> None:
    """DAGPU_CHECKED decides where the declaration leaves it open, and only there."""
    monkeypatch.setenv("DAGPU_CHECKED", text)

    def k(y: Out[f32]) -> None: ...

    source = "__global__ void k(Tile<float, 1> y) {}"
    assert kernel(cuda=source)(k).spec.checked is checked
    assert not kernel(cuda="__global__ void k(float* y) {}", abi="pointers")(k).spec.checked
    assert kernel(cuda=source, checked=not checked)(k).spec.checked is not checked


# ---- source


def test_source_name_is_the_line_of_the_text() -> None:
    """A text inside a Python file is named by the line on which it begins, wherever the decorator stands."""
    lines = Path(kernel_cases.__file__).read_text().splitlines()
    constant = lines.index('SAXPY = """') + 1
    assert saxpy.spec.source_name == f"{kernel_cases.__file__}:{constant}"
    inline = next(n for n, line in enumerate(lines, 1) if "__global__ void split(" in line)
    assert split.spec.source_name == f"{kernel_cases.__file__}:{inline}"


@pytest.mark.parametrize("form", [str, Path])
def test_source_from_a_file(tmp_path: Path, form: type) -> None:
    """A path, relative to the declaring module or absolute, is read; messages name it."""
    (tmp_path / "k.cu").write_text("__global__ void k(Tile<float, 1> y) {}")
    module = tmp_path / "module.py"
    text = "from pathlib import Path\nfrom dagpu.kernels.decorator import *\nimport numpy as np\n"
    text += "@kernel(cuda=source)\ndef k(y: Out[np.float32]) -> None: ...\n"
    for source in (form("k.cu"), form(tmp_path / "k.cu")):
        names = {"source": source, "kernel": kernel, "Out": Out, "__name__": "module"}
        exec(compile(text.replace("from dagpu.kernels.decorator import *\n", ""), str(module), "exec"), names)
        spec = cast(Kernel[Any], names["k"]).spec
        assert (spec.cuda, spec.source_name) == (
            "__global__ void k(Tile<float, 1> y) {}",
            str(tmp_path / "k.cu"),
        )


def test_a_byte_order_mark_is_no_part_of_the_source(tmp_path: Path) -> None:
    """Of a file, or at the beginning of a text: dagpu puts text of its own before it."""
    text = "__global__ void k(Tile<float, 1> y) {}"
    (tmp_path / "k.cu").write_text(text, encoding="utf-8-sig")

    def k(y: Out[f32]) -> None: ...

    assert kernel(cuda=tmp_path / "k.cu")(k).spec.cuda == text
    assert kernel(cuda=f"\ufeff{text}")(k).spec.cuda == text


@pytest.mark.parametrize("name", ["kernels.cuh", "/folder/kernels.cpp", "a-b/c.h"])
def test_a_path_that_is_taken_for_a_source(name: str) -> None:
    """A file with another ending than .cu is named by a Path."""

    def k(y: Out[f32]) -> None: ...

    assert f"A path ends with .cu; name any other file by Path({name!r})" in refused(kernel(cuda=name), k)


def test_source_missing() -> None:
    """A file that is not there is named in full, with the folder where it was looked for."""

    def k(y: Out[f32]) -> None: ...

    path = str(Path(FILE).parent / "nowhere.cu")
    message = refused(kernel(cuda="nowhere.cu"), k)
    assert f"the CUDA source {path!r} cannot be read (No such file or directory)" in message
    assert "A relative path starts at the declaring module's folder." in message
    assert path in refused(kernel(cuda=Path("nowhere.cu")), k)
    assert "cuda= is of type int. Give CUDA C++ source text" in refused(kernel(cuda=cast(Any, 3)), k)


def test_source_not_utf8(tmp_path: Path) -> None:
    """A file that is no text is refused."""
    (tmp_path / "k.cu").write_bytes(b"\xff\xfe")

    def k(y: Out[f32]) -> None: ...

    assert "cannot be read (it is not UTF-8)" in refused(kernel(cuda=tmp_path / "k.cu"), k)
