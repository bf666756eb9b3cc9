"""Kernels: what a declaration and a call refuse, in which words, and that a refused call moves nothing."""

import inspect
import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.device import Device
from dagpu.dtypes import f32, f64, i32, strides_of, u8
from dagpu.errors import KernelArgumentError, MovedError, NoDeviceError
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.kernel import COMPILER, In, Kernel, Lazy, Out, check_launch, kernel
from dagpu.kernel_arguments import check_arguments, fits
from dagpu.layout import Layout
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import value
from dagpu.ops.launch import Launch
from dagpu.origin import describe, place_of, record_origins
from dagpu.ownership import storage_key
from dagpu.storage import Storage

D = TypeVar("D", bound=np.generic)
ANY_IN: Any = In
ANY_LAZY: Any = Lazy
FILE = __file__
HOST = Device("host", 0, cast(Any, None))

SAXPY = """
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""


@kernel(cuda=SAXPY)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None:
    """y += a * x."""


@kernel(cuda="""__global__ void split(Tile<float, 1> y, Tile<float, 1> z, View<const float, 1> x, int n) {}""")
def split(y: Out[f32], z: Out[f32], x: In[f32], n: int = 7) -> None: ...


@kernel(cuda="__global__ void lazily(Tile<float, 1> y, float a) {}")
def lazily(y: Out[f32], a: Lazy[float]) -> None: ...


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> a, View<const float, 1> b) {}")
def add(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


def tensor(shape: tuple[int, ...] = (16, 16), dtype: Any = f32) -> Tensor[Any]:
    """An owned tensor that has memory in name only."""
    element = np.dtype(dtype)
    layout = Layout(element, shape, strides_of(shape, element.itemsize), 0)
    return Tensor(Storage(HOST, math.prod(shape) * element.itemsize), layout, None)


def cut(shape: tuple[int, ...] = (16, 16), tile: tuple[int, ...] = (4, 4), dtype: Any = f32) -> Any:
    """A partition of a fresh tensor."""
    return tensor(shape, dtype).partition(tile)


def lazy(handle: object) -> Any:
    """An op that yields `handle`."""
    return value(handle)


def refused(call: Callable[..., object], *args: object, **kwargs: object) -> str:
    """The message with which a call is refused; the call itself is on the line of `return` below."""
    with pytest.raises(KernelArgumentError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def alive(handle: Any) -> bool:
    """Can the handle still be used?"""
    try:
        storage_key(handle)
    except MovedError:
        return False
    return True


def declared_line(k: Kernel[Any]) -> str:
    return describe(k.spec.origin)


# ---- declaration ----------------------------------------------------------------------------
def test_declaration_is_read() -> None:
    """Names, forms, element types and ranks come from the two signatures."""
    found = [(p.name, p.form, p.dtype, p.rank, p.lazy) for p in saxpy.spec.params]
    float32 = np.dtype(f32)
    assert found == [
        ("y", "out", float32, 2, False),
        ("a", "scalar", None, None, False),
        ("x", "in", float32, 2, False),
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
        (str, "parameter 'a' is annotated str, which is no type that a kernel can take"),
        (complex, "parameter 'a' is annotated complex, which"),
        (float | None, "parameter 'a' is annotated float | None, which is no type"),
        (Tensor[f32], "which does not say whether the kernel reads or writes it"),
        (
            Tensor,
            "parameter 'a' is annotated Tensor, which does not say whether the kernel reads or writes it",
        ),
        (np.ndarray, "parameter 'a' is annotated ndarray, which does not say"),
        (In, "parameter 'a' is annotated In, which lacks its element type"),
        (Out, "parameter 'a' is annotated Out, which lacks its element type"),
        (ANY_IN[np.complex64], "parameter 'a' is annotated In[complex64], whose element type is none"),
        (ANY_IN[np.floating], "parameter 'a' is annotated In[floating], whose element type is none"),
        (ANY_LAZY[str], "which is no type that a kernel can take"),
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
    assert "is no plain function. Decorate a `def`" in refused(declare, 3)


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


@pytest.mark.parametrize("call", ["grid((3,))", "grid(0)", "block((0,))", "block(2048)", "shared_memory(-1)"])
def test_settings_of_a_call_are_refused_where_that_stands(call: str) -> None:
    """A grid, a block or shared memory for one call is refused with the place of that call."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y) {}")
    def k(y: Out[f32]) -> None: ...

    with pytest.raises(KernelArgumentError) as caught:
        eval(compile(f"k.{call}", "a_program.py", "eval"), {"k": k})
    assert f": {call} at a_program.py:1" in str(caught.value)
    assert f"declared at {FILE}:" in str(caught.value)


def test_settings_kept() -> None:
    """What the declaration says reaches the spec."""

    @kernel(cuda="__global__ void k(float* y) {}", block=(8, 4), abi="pointers", options=["-a"], checked=True)
    def k(y: Out[f32]) -> None: ...

    spec = k.spec
    assert (spec.block, spec.abi, spec.options, spec.checked) == ((8, 4), "pointers", ("-a",), True)
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
    assert kernel(cuda=source, checked=not checked)(k).spec.checked is not checked


# ---- source ---------------------------------------------------------------------------------
def test_source_name_is_the_line_of_the_text() -> None:
    """A text inside a Python file is named by the line on which it begins, wherever the decorator stands."""
    lines = Path(FILE).read_text().splitlines()
    constant = lines.index('SAXPY = """') + 1
    assert saxpy.spec.source_name == f"{FILE}:{constant}"
    inline = next(n for n, line in enumerate(lines, 1) if "__global__ void split(" in line)
    assert split.spec.source_name == f"{FILE}:{inline}"


@pytest.mark.parametrize("form", [str, Path])
def test_source_from_a_file(tmp_path: Path, form: type) -> None:
    """A path, relative to the declaring module or absolute, is read; messages name it."""
    (tmp_path / "k.cu").write_text("__global__ void k(Tile<float, 1> y) {}")
    module = tmp_path / "module.py"
    text = "from pathlib import Path\nfrom dagpu.kernel import *\nimport numpy as np\n"
    text += "@kernel(cuda=source)\ndef k(y: Out[np.float32]) -> None: ...\n"
    for source in (form("k.cu"), form(tmp_path / "k.cu")):
        names = {"source": source, "kernel": kernel, "Out": Out, "__name__": "module"}
        exec(compile(text.replace("from dagpu.kernel import *\n", ""), str(module), "exec"), names)
        spec = cast(Kernel[Any], names["k"]).spec
        assert (spec.cuda, spec.source_name) == (
            "__global__ void k(Tile<float, 1> y) {}",
            str(tmp_path / "k.cu"),
        )


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


# ---- calls: binding ---------------------------------------------------------------------------
def test_call_builds_a_launch() -> None:
    """A call moves its handles into a `Launch` that knows the place of the call."""
    y, x = cut(), tensor()
    op = saxpy(y, 2.0, x)
    assert isinstance(op, Launch)
    assert op.kernel is saxpy.spec
    assert [type(arg) for arg in op.args] == [Partition, float, Tensor]
    assert place_of(op.origin) is not None
    assert not alive(y)
    assert not alive(x)
    assert alive(op.args[0])


def test_what_does_not_move_is_kept() -> None:
    """Shared tensors and borrows go in as they are, as often as one likes."""
    shared, lender = tensor((4,)).share(), tensor((4,))
    borrow = lender.borrow()
    op = cast(Launch, add(cut((4,), (2,)), shared, shared))
    assert op.args[1] is shared
    op = cast(Launch, add(cut((4,), (2,)), borrow, lender.borrow()))
    assert op.args[1] is borrow
    assert alive(shared)
    assert alive(lender)


def test_arguments_by_name_and_default() -> None:
    """Arguments go by name in any order; a scalar's default stands in for it."""
    op = cast(Launch, saxpy(x=lazy(1), y=lazy(2), a=1))
    assert op.args[1] == 1.0
    assert type(op.args[1]) is float
    assert cast(Launch, split(lazy(1), lazy(2), lazy(3))).args[3] == 7
    assert cast(Launch, split(lazy(1), z=lazy(2), x=lazy(3), n=8)).args[3] == 8


def test_keyword_only_and_positional_only() -> None:
    """A declaration may say by what an argument goes."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y, int n) {}")
    def k(y: Out[f32], /, *, n: int) -> None: ...

    call = cast(Callable[..., Any], k)
    assert call(lazy(1), n=3).args[1] == 3
    assert "2 arguments by position, but at most 1 are wanted" in refused(call, lazy(1), 3)
    assert "got argument 'y' by name, but it goes by position" in refused(call, y=lazy(1), n=3)


def test_arity() -> None:
    """Missing, surplus, unknown and doubled arguments are named."""
    call = cast(Callable[..., Any], saxpy)
    op = lazy(1)
    missing = refused(call, op)
    assert "lacks arguments 'a', 'x': it takes (y, a, x)" in missing
    assert f"the kernel is declared at {declared_line(saxpy)}." in missing
    assert f"Called at {FILE}:" in missing
    assert "lacks argument 'x'" in refused(call, op, 1.0)
    assert "4 arguments by position, but at most 3 are wanted" in refused(call, op, 1.0, op, op)
    assert "got argument 'b' which it does not have" in refused(call, op, 1.0, op, b=1)
    assert "got argument 'a' twice, by position and by name. Called at" in refused(call, op, 1.0, a=1, x=op)


# ---- calls: forms -----------------------------------------------------------------------------
def lent() -> Any:
    lender = tensor()
    return lender.borrow_mut()


@pytest.mark.parametrize(
    ("make", "came", "cure"),
    [
        (tensor, "a Tensor of float32, shape (16, 16)", "Cut it into tiles: .partition((..., ...))."),
        (lent, "a TensorMut of float32, shape (16, 16)", "Cut it into tiles: .partition((..., ...))."),
        (
            lambda: tensor().share(),
            "a SharedTensor of float32, shape (16, 16)",
            "It is immutable: write to a copy",
        ),
        (lambda: tensor().borrow(), "a TensorRef of float32", ".borrow_mut().partition(tile)"),
        (
            lambda: np.zeros(3, f32),
            "a NumPy array of float32, shape (3,)",
            "from_host(array).partition((..., ...))",
        ),
        (lambda: 1.5, "float 1.5", "or check the order of the arguments"),
        (lambda: (cut(),), "tuple (", "Pick one of a kernel's results with .first() or .unzip()"),
    ],
)
def test_wrong_form_for_an_output(make: Callable[[], object], came: str, cure: str) -> None:
    """An output takes a partition: anything else is refused with the way to make one."""
    message = refused(saxpy, make(), 2.0, lazy(1))
    assert message.startswith(f"kernel 'saxpy', argument 'y': got {came}")
    assert "but a Partition of float32, or an op that yields one, is wanted. Called at" in message
    assert f"Called at {FILE}:" in message
    assert f"the kernel is declared at {declared_line(saxpy)}." in message
    assert cure in message


@pytest.mark.parametrize(
    ("make", "came", "cure"),
    [
        (cut, "a Partition of float32, shape (16, 16)", "Put it together: .unpartition()."),
        (
            lambda: np.zeros(3, f32),
            "a NumPy array of float32, shape (3,)",
            "Bring it to the device: from_host(array).",
        ),
        (lambda: [1, 2], "list [1, 2]", "from_host(np.asarray(..., f32))"),
        (lambda: None, "NoneType None", "check the order of the arguments"),
        (lambda: "x" * 99, "str 'xxx", "xxx..., but"),
    ],
)
def test_wrong_form_for_an_input(make: Callable[[], object], came: str, cure: str) -> None:
    """An input takes a tensor that can be read: anything else is refused with the cure."""
    message = refused(saxpy, lazy(1), 2.0, make())
    assert message.startswith(f"kernel 'saxpy', argument 'x': got {came}")
    assert (
        "but a Tensor, SharedTensor, TensorRef or TensorMut of float32, or an op that yields one, is wanted" in message
    )
    assert cure in message


@pytest.mark.parametrize(
    ("make", "came", "cure"),
    [
        (
            tensor,
            "got a Tensor of float32, shape (16, 16), but a number is wanted",
            "on the host: .to_host()",
        ),
        (lambda: np.zeros(()), "got a NumPy array of float64, shape ()", "array.item()"),
        (lambda: lazy(1.0), "got an op (Value), but a number is wanted", "Annotate the parameter Lazy[...]"),
        (lambda: "2", "got str", "Convert it with float(...)"),
        (lambda: None, "got NoneType", "Convert it"),
        (lambda: True, "got bool True", "Convert it"),
        (
            lambda: 1e39,
            "got float 1e+39",
            "a number from -3.4028e38 to 3.4028e38",
        ),
    ],
)
def test_wrong_scalar(make: Callable[[], object], came: str, cure: str) -> None:
    """A scalar takes a number of its C type and range."""
    message = refused(saxpy, lazy(1), make(), lazy(1))
    assert message.startswith("kernel 'saxpy', argument 'a': got ")
    assert came in message
    assert cure in message
    assert f"the kernel is declared at {declared_line(saxpy)}." in message


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 1.0, np.float32(1), True])
def test_wrong_int(number: object) -> None:
    """An int has to be one, and to fit the type that CUDA declares."""
    message = refused(split, lazy(1), lazy(2), lazy(3), number)
    assert "argument 'n': got " in message
    assert "'int n' (CUDA source line 1)" in message
    assert "an int from -2147483648 to 2147483647" in message


def test_lazy_scalar() -> None:
    """A `Lazy` scalar may be an op, or a number, which is checked as ever."""
    assert isinstance(cast(Launch, lazily(lazy(1), value(2.0))).args[1], DeviceOp)
    assert cast(Launch, lazily(lazy(1), 2.0)).args[1] == 2.0
    assert "argument 'a': got str" in refused(lazily, lazy(1), "2")
    message = refused(lazily, cut((4,), (2,)), tensor())
    assert "but a number, or an op that yields one, is wanted" in message


def test_element_type() -> None:
    """Element types have to be the declared ones; the cure is a conversion."""
    message = refused(saxpy, lazy(1), 2.0, tensor(dtype=f64))
    assert "argument 'x': got a Tensor of float64, shape (16, 16), but elements of float32 are wanted." in message
    assert "Convert it: convert(t, f32), or for an op .then(lambda t: convert(t, f32))." in message
    message = refused(saxpy, cut(dtype=f64), 2.0, lazy(1))
    assert "argument 'y': got a Partition of float64" in message
    assert "Convert it before it is cut: convert(t, f32)" in message


def test_rank() -> None:
    """Ranks have to be those of the CUDA declaration."""
    message = refused(saxpy, lazy(1), 2.0, tensor((16,)))
    assert (
        "argument 'x': got a Tensor of float32, shape (16,), so of rank 1, but the CUDA declaration has rank 2."
    ) in message
    assert "Reshape it with .reshape(shape), or declare that rank in CUDA." in message
    message = refused(saxpy, cut((16,), (4,)), 2.0, lazy(1))
    assert "argument 'y': got a Partition of float32, shape (16,), so of rank 1" in message
    assert "Reshape it before it is cut with .reshape(shape)" in message


def test_grids() -> None:
    """Several outputs have equal grids, unless `.grid` says which one is meant."""
    y, z, x = cut((16,), (4,)), cut((16,), (8,)), tensor((16,))
    message = refused(split, y, z, x)
    assert (
        "argument 'z': its tiles make a grid of (2,) (shape (16,), tile (8,)), but those of output 'y' make" in message
    )
    assert "one of (4,) (shape (16,), tile (4,))." in message
    assert "or give the grid: split.grid(...)(...)." in message
    assert isinstance(split.grid(4)(y, z, x), Launch)


def test_no_output_needs_a_grid() -> None:
    """A kernel without outputs has no tiles to give its grid."""

    @kernel(cuda="__global__ void look(View<const float, 1> x) {}")
    def look(x: In[f32]) -> None: ...

    message = refused(look, lazy(1))
    assert "kernel 'look': has no output whose tiles would give its grid." in message
    assert "Give the grid: look.grid(...)(...)." in message
    assert isinstance(look.grid(1)(lazy(1)), Launch)


# ---- calls: ownership ---------------------------------------------------------------------------
def test_aliases() -> None:
    """Memory that an output writes, or that a `Tensor` owns, is one argument's alone."""
    t = tensor((8,))
    y = t.borrow_mut().partition((4,))
    message = refused(add, y, t.borrow(), lazy(1))
    assert "argument 'a': output 'y' is on the same memory as input 'a'." in message
    assert "or read a copy that was made before: dup(t.borrow()).sync()." in message
    assert "argument 'a': output 'y' is on the same memory as input 'a'." in refused(add, y, t, lazy(1))
    x = tensor((8,))
    assert "argument 'b': the same Tensor is argument 'a' already" in (message := refused(add, lazy(1), x, x))
    assert "Share it: t = t.share()." in message
    message = refused(add, lazy(1), x, x.borrow())
    assert "argument 'b': it is on the same memory as argument 'a', and a Tensor moves when it is passed." in message
    assert "Pass .borrow() for both, or share it" in message
    y = cut((8,), (4,))
    assert "argument 'z': the same Partition is argument 'y' already" in refused(split, y, y, lazy(1))


def test_outputs_on_the_same_memory() -> None:
    """Two different partitions of one tensor are no two outputs."""
    t = tensor((8,))
    first, second = t.borrow_mut().partition((4,)), t.borrow_mut().partition((4,))
    assert "two outputs, 'y' and this one, are on the same memory." in refused(split, first, second, lazy(1))


def test_refused_call_moves_nothing() -> None:
    """A call that is refused for its last argument leaves all before it usable."""
    y, x = cut(), tensor((8,))
    refused(saxpy, y, 2.0, x)
    refused(saxpy, y, "2", tensor())
    assert alive(y)
    assert alive(x)
    assert isinstance(saxpy(y, 2.0, tensor()), Launch)


def test_moved_handle() -> None:
    """A handle that has been moved raises `MovedError`, and the others stay as they are."""
    y, x = cut(), tensor()
    saxpy(lazy(1), 2.0, x)
    with pytest.raises(MovedError, match="moved by being passed to a kernel"):
        saxpy(y, 2.0, x)
    assert alive(y)
    other = tensor()
    saxpy(y, 2.0, lazy(1))
    with pytest.raises(MovedError):
        saxpy(y, 2.0, other)
    assert alive(other)


def test_dead_borrow() -> None:
    """A borrow whose tensor has been moved is refused before anything moves."""
    y, lender = cut(), tensor()
    borrow = lender.borrow()
    lender.share()
    with pytest.raises(MovedError, match="TensorRef borrowed at"):
        saxpy(y, 2.0, borrow)
    assert alive(y)


def test_check_launch() -> None:
    """What ops yield is checked by the same rules, and an op is no value any more."""
    origin = here_origin()
    check_launch(saxpy.spec, (cut(), 2.0, tensor()), origin)
    for args, what in (
        ((tensor(), 2.0, tensor()), "Cut it into tiles"),
        ((cut(), 2.0, tensor((4,))), "of rank 1"),
        ((cut(), "2", tensor()), "argument 'a': got str"),
        ((cut(), 2.0, lazy(1)), "argument 'x': got an op (Value)"),
        ((cut(), value(2.0), tensor()), "argument 'a': got an op (Value)"),
    ):
        assert what in refused(check_launch, saxpy.spec, args, origin)


def test_what_fits_is_not_refused() -> None:
    """The quick look at a launch says yes only to what the whole check lets pass, and raises only what that raises."""
    one, shared, gone = tensor((4,)), tensor((4,)).share(), tensor((4,))
    gone.share()
    kinds: list[Any] = [
        cut(), cut((4,), (4,)), cut((8,), (8,)), cut((8,), (4,)), cut((4,), (4,), f64), one, one.borrow(), one.borrow(),
        shared, shared.clone(), shared.reshape((2, 2)), tensor(), gone, tensor((4,)).borrow_mut(), None,
    ]  # fmt: skip
    said = {True: 0, False: 0}
    for k in (saxpy, split, add, lazily, split.grid(2)):
        for tensors in itertools.product(kinds, repeat=len(k.spec.tensors)):
            given = iter(tensors)
            args = [{"a": 1.0, "n": 7}[p.name] if p.form == "scalar" else next(given) for p in k.spec.params]
            try:
                said[yes := fits(k.spec, args)] += 1
            except MovedError:
                with pytest.raises(MovedError):
                    check_arguments(k.spec, args, None, ops=False)
            else:
                if yes:
                    check_arguments(k.spec, args, None, ops=False)
    assert min(said.values()) > 20


def test_what_is_usual_fits() -> None:
    """Partitions, tensors, shared tensors and borrows need no more than the quick look."""
    lender = tensor()
    for x in (tensor(), tensor().share(), lender.borrow()):
        assert fits(saxpy.spec, (cut(), 2.0, x))
    assert fits(split.spec, (cut((8,), (4,)), cut((4,), (2,)), tensor((4,)), 7))
    assert not fits(split.spec, (cut((8,), (4,)), cut((4,), (4,)), tensor((4,)), 7))


def here_origin() -> Any:
    return cast(Launch, saxpy(lazy(1), 1.0, lazy(2))).origin


# ---- overrides, host bodies, compiling --------------------------------------------------------
def test_overrides_make_copies() -> None:
    """`grid`, `block` and `shared_memory` give changed copies and leave the kernel as it was."""
    changed = saxpy.grid(2, 3).block(32, 4).shared_memory(1024)
    assert (changed.spec.grid, changed.spec.block, changed.spec.shared_bytes) == ((2, 3), (32, 4), 1024)
    assert (saxpy.spec.grid, saxpy.spec.block, saxpy.spec.shared_bytes) == (None, None, 0)
    assert changed.spec.host is saxpy.spec.host
    assert cast(Launch, changed(lazy(1), 1.0, lazy(2))).kernel is changed.spec


def test_overrides_are_checked() -> None:
    """Overrides are held to the same limits as the declaration, and refused with the place of the call."""

    def said(change: Callable[..., object], *given: object) -> str:
        return re.sub(rf" at {re.escape(FILE)}:\d+", "", refused(change, *given))

    assert "grid(0). Give 1 to 3 whole numbers, each 1 or more." in said(saxpy.grid, 0)
    assert "grid(). Give 1 to 3" in said(saxpy.grid)
    assert "block(1025) has 1025 threads." in said(saxpy.block, 1025)
    assert "shared_memory(-1). Give a number of bytes, 0 or more." in said(saxpy.shared_memory, -1)
    assert "shared_memory(True)" in said(saxpy.shared_memory, True)
    assert "shared_memory(1.5)" in said(saxpy.shared_memory, 1.5)


def fresh() -> Kernel[Any]:
    @kernel(cuda=SAXPY)
    def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...

    return cast(Kernel[Any], saxpy)


def test_host_body() -> None:
    """A host body is set once, with or without `whole`, and copies share it."""

    def body(y: object, a: object, x: object) -> None: ...

    k = fresh()
    copy = k.block(32)
    k.host(body)
    assert (copy.spec.host.function, copy.spec.host.whole) == (body, False)
    k = fresh()
    k.host(whole=True)(body)
    assert (k.spec.host.function, k.spec.host.whole) == (body, True)
    line = body.__code__.co_firstlineno
    message = refused(k.host, body)
    assert f"a second host body is set at {FILE}:{line}; the first is at {FILE}:{line}. Keep one of them." in message


@pytest.mark.parametrize(
    "body", [lambda y, _a, x: None, lambda _, a, x: None, lambda *args: None, lambda y, *rest: None]
)
def test_host_body_may_ignore_arguments(body: Callable[..., None]) -> None:
    """A parameter that the body does not use may be called `_` or `_name`, and `*args` takes the rest."""
    fresh().host(body)


@pytest.mark.parametrize(
    "body", [lambda y, a: None, lambda y, x, a: None, lambda y, a, x, z: None, lambda y, a, *, x: None]
)
def test_host_body_refused(body: Callable[..., None]) -> None:
    """A body with other parameters than the kernel's is refused."""
    k = fresh()
    message = refused(k.host, body)
    assert f"its host body at {FILE}:" in message
    assert "but it is called with (y, a, x) by position." in message
    assert k.spec.host.function is None


def test_host_body_that_is_no_function() -> None:
    """What cannot be called, or hides its parameters, is no host body."""
    assert "its host body is of type int. Decorate a function" in refused(fresh().host, 3)
    assert "cannot be read. Wrap it in a Python function." in refused(fresh().host, max)


def test_compile() -> None:
    """Compiling needs a backend that can; it is handed the spec."""
    with pytest.raises(NoDeviceError, match=re.escape("kernel 'saxpy', declared at")) as caught:
        saxpy.compile()
    assert "for there is no CUDA backend here. Leave compile() out on the host" in str(caught.value)
    compiled: list[object] = []
    COMPILER.set(compiled.append)
    try:
        saxpy.compile()
    finally:
        COMPILER.set(None)
    assert compiled == [saxpy.spec]


# ---- any arguments, against an oracle ----------------------------------------------------------
FORMS: dict[str, Callable[[], Any]] = {
    "op": lambda: lazy(1),
    "number": lambda: 1.5,
    "text": lambda: "1",
    "array": lambda: np.zeros((4, 4), f32),
    "tensor": lambda: tensor((4, 4)),
    "tensor f64": lambda: tensor((4, 4), f64),
    "vector": lambda: tensor((4,)),
    "shared": lambda: tensor((4, 4)).share(),
    "cut": lambda: cut((4, 4), (2, 2)),
    "cut f64": lambda: cut((4, 4), (2, 2), f64),
    "cut vector": lambda: cut((4,), (2,)),
    "none": lambda: None,
}
FITS = ({"op", "cut"}, {"number"}, {"op", "tensor", "shared"})


@given(st.tuples(*[st.sampled_from(sorted(FORMS))] * 3), st.integers(0, 3))
def test_any_forms(forms: tuple[str, ...], by_position: int) -> None:
    """A call is let through exactly if each argument fits its parameter, whether by position or by name.

    It then moves the tensors and partitions among them, and else nothing.
    """
    args = [FORMS[form]() for form in forms]
    named = dict(zip(("y", "a", "x"), args, strict=True))
    given_names = list(named)[by_position:]
    call = cast(Callable[..., Any], saxpy)
    fits = all(form in fit for form, fit in zip(forms, FITS, strict=True))
    names = {name: named[name] for name in given_names}
    if fits:
        op = call(*args[:by_position], **names)
        assert [type(arg) for arg in op.args] == [type(arg) for arg in args]
    else:
        wrong = next(name for name, form, fit in zip(named, forms, FITS, strict=True) if form not in fit)
        message = refused(call, *args[:by_position], **names)
        assert message.startswith(f"kernel 'saxpy', argument {wrong!r}: got ")
    for arg in args:
        if isinstance(arg, Tensor | Partition):
            assert alive(arg) is not fits
        elif isinstance(arg, SharedTensor | TensorRef | TensorMut):
            assert alive(arg)
