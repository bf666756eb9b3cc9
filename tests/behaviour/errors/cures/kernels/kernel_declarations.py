"""Mistakes in kernel declarations and in host bodies."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    In,
    Lazy,
    Out,
    Tensor,
    array,
    convert,
    dup,
    empty,
    f32,
    from_host,
    i32,
    kernel,
    ones,
    u8,
    zeros,
)
from tests.behaviour.errors.cures.catalogue import ONE, SCALE, Catalogue, anything, cuda, declare, of_body, out, scale

CATALOGUE = Catalogue()
case = CATALOGUE.add


def declared_body(body: Any) -> Any:
    made = declare()
    made.host(body)
    return made


def a_body(y: Any, by: float) -> None:
    """A right one for `k`."""


def first_body(y: Any) -> None:
    """A wrong one."""


def set_twice() -> None:
    made = declare()
    made.host(a_body)
    made.host(a_body)


def yielding(y: Any, by: float) -> Iterator[Any]:
    yield y


# ---- kernels: declarations


case(lambda: declared_body(3), ("Decorate a function with @kernel.host", lambda: declared_body(a_body)))
case(
    lambda: declared_body(yielding),
    ("Write a plain function: def, with no await and no yield", lambda: declared_body(a_body)),
)
case(set_twice, ("Keep one of them", lambda: declared_body(a_body)))
case(
    lambda: declared_body(type("Odd", (), {"__call__": 3, "__signature__": 3})()),
    ("Wrap it in a Python function", lambda: declared_body(lambda y, by: None)),
)
case(
    lambda: declared_body(first_body),
    ("Give the body the kernel's parameters in their order", lambda: declared_body(a_body)),
)
case(
    lambda: scale.compile(),
    ("on the host, which compiles nothing", lambda: scale(out(), 2.0).sync()),
)
case(lambda: anything(kernel)(a_body), ("Write @kernel(cuda=...)", lambda: kernel(cuda=SCALE)))
case(
    lambda: anything(kernel)(SCALE),
    ("Write @kernel(cuda=...)", lambda: kernel(cuda=SCALE)),
)
case(lambda: kernel(cuda=SCALE)(anything(print)), ("Decorate a `def`", declare))
case(lambda: declare(abi="c"), ("Give 'views' or 'pointers'", lambda: declare(abi="views")))
case(
    lambda: declare(options="-lineinfo"),
    ('Give a sequence of texts: ("-lineinfo",)', lambda: declare(options=("-lineinfo",))),
)
case(
    lambda: declare(in_place=1),
    ("Say in_place=True", lambda: declare(in_place=True)),
    ("leave it out", declare),
)
case(lambda: declare(3), ("Give CUDA C++ source text", declare))


WAITING = "__global__ void k(Tile<float, 1> y, View<const float, 1> x) { wait_for_inputs(); }"


def early(names: object, source: str = WAITING) -> Any:
    """Declare a kernel `k(y, x)` that reads these inputs early."""

    def k(y: Out[f32], x: In[f32]) -> None: ...

    return declare(source, k, early_reads=names)


case(
    lambda: early(("y",)),
    ("Give a sequence of names of inputs", lambda: early(("x",))),
)
case(
    lambda: early("x"),
    ("Give a sequence of names of inputs", lambda: early(["x"])),
)
case(
    lambda: early(("x",), WAITING.replace("wait_for_inputs();", "")),
    ("Call wait_for_inputs() before the kernel reads other arguments or writes", lambda: early(("x",))),
    ("leave early_reads out", lambda: early(None, WAITING.replace("wait_for_inputs();", ""))),
)


def written(text: bytes, name: str = "k.cu") -> Any:
    """A source in a file."""
    Path(name).write_bytes(text)
    return declare(Path(name).absolute())


case(
    lambda: declare("kernels.cuh"),
    ("A path ends with .cu", lambda: written(SCALE.encode())),
    ("name any other file by Path('kernels.cuh')", lambda: written(SCALE.encode(), "kernels.cuh")),
)
case(
    lambda: declare("there/is/none.cu"),
    ("A relative path starts at the declaring module's folder", lambda: written(SCALE.encode())),
)
case(
    lambda: written(b"\xff\xfe"),
    ("A relative path starts at the declaring module's folder", lambda: written(SCALE.encode())),
)
case(
    lambda: declare(block=(0,)),
    ("Give 1 to 3 whole numbers, each 1 or more", lambda: declare(block=(32,))),
)


def starred(*y: Out[f32]) -> None: ...
def bare(y: Out[f32], by) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # reason: that is the mistake
def defaulted(y: Out[f32] = None, by: float = 1.0) -> None: ...  # type: ignore[assignment]  # reason: the mistake
def texted(y: "Out[f32]", by: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821  # reason: the mistake
def listed(y: Out[f32], by: list[int]) -> None: ...
def arrayed(y: Out[f32], by: NDArray[f32]) -> None: ...
def handled(y: Tensor[f32], by: float) -> None: ...
def element_less(y: Out, by: float) -> None: ...  # type: ignore[type-arg]  # reason: the mistake
def odd_element(y: Out[np.clongdouble], by: float) -> None: ...
def right(y: Out[f32], by: float) -> None: ...
def two_numbers(y: Out[f32], by: float, n: int) -> None: ...
def of_ints(y: Out[i32], by: float) -> None: ...
def an_input(y: In[f32], by: float) -> None: ...
def out_of_range(y: Out[f32], by: float = 1e60) -> None: ...
def swapped(by: float, y: Out[f32]) -> None: ...
def renamed(factor: float, y: Out[f32]) -> None: ...
def turned(by: float, y: Out[f32], x: In[f32]) -> None: ...
def by_array(y: Out[f32], by: In[f32]) -> None: ...
def by_int(y: Out[f32], by: int) -> None: ...


ANNOTATED = "Annotate it In[f32] (read), Out[f32] (written), int, float"


def fresh(function: Any) -> Any:
    """A function of its own for each declaration."""
    import types

    copy = types.FunctionType(function.__code__, function.__globals__, "k", function.__defaults__, function.__closure__)
    copy.__annotations__ = dict(function.__annotations__)
    return copy


case(lambda: declare(annotated=fresh(starred)), ("Name every parameter", lambda: declare(annotated=fresh(right))))
for wrong in (bare, listed, arrayed, handled, element_less, odd_element):
    case(partial(lambda w: declare(annotated=fresh(w)), wrong), (ANNOTATED, lambda: declare(annotated=fresh(right))))
case(
    lambda: declare(annotated=fresh(defaulted)),
    ("Leave the default out: a handle can be moved into one call only", lambda: declare(annotated=fresh(right))),
)
case(
    lambda: declare(annotated=fresh(texted)),
    ("Have every name in it defined when the kernel is declared", lambda: declare(annotated=fresh(right))),
)
case(
    lambda: declare(annotated=fresh(out_of_range)),
    ("Pass one in the range".lower(), lambda: declare(annotated=fresh(right))),
)


for source, says, better in (
    (cuda(f"{ONE}, float& by"), "Kernels take parameters by value: drop the '&'", SCALE),
    (cuda(f"{ONE}, Odd by"), "Write the C type out (float, double", SCALE),
    (cuda(f"{ONE}, A by", "#if __X\ntypedef float A;\n#else\ntypedef int A;\n#endif\n"), "Write the C type out", SCALE),
    (cuda(f"{ONE},\n#if __X\nfloat by\n#endif\n"), "Take the condition out of the parameter list", SCALE),
    (cuda("float* y, float by"), "Declare Tile<float, N> (output) or View<const float, N> (input)", SCALE),
    (cuda("Tile<float, 1>* y, float by"), "Pass the Tile by value: drop the '*'", SCALE),
    (
        cuda("Tile<float> y, float by"),
        "Give the element type and the rank as a number of 1 or more, as in Tile<float, 2>",
        SCALE,
    ),
    (cuda("Tile<Odd, 1> y, float by"), "Write the C type out", SCALE),
    (cuda("other::Tile<float, 1> y, float by"), "Take Tile<T, N>, View<const T, N> or scalars", SCALE),
    (cuda(f"{ONE}, auto by"), "Write the C type out", SCALE),
    (cuda(f"{ONE}, const by"), "Write the C type out", SCALE),
    ("__global__ void k(Tile<float, 1> y, float by", "Add the missing ')'", SCALE),
    (
        SCALE + cuda(f"{ONE}, double by"),
        "give each overload a name of its own",
        SCALE + "__global__ void other(Tile<float, 1> y, double by) {}",
    ),
    (
        "__global__ void other(Tile<float, 1> y, float by) {}",
        "Give the Python function and the CUDA kernel one name",
        SCALE,
    ),
    (
        "void k(Tile<float, 1> y, float by) {}",
        "has 'k(' without a visible __global__ before it: write it there",
        SCALE,
    ),
    (cuda(f"{ONE}"), "2 parameters in Python, 1 in CUDA", SCALE),
):
    case(partial(declare, source), (says, partial(declare, better)))

case(
    lambda: declare(cuda("float* y, float by"), abi="pointers", checked=True),
    ("Leave checked out", lambda: declare(cuda("float* y, float by"), abi="pointers")),
    ("or take Tile and View", lambda: declare(checked=True)),
)
case(
    lambda: declare(cuda(f"{ONE}, float by"), abi="pointers"),
    ("Declare float* (output) or const float* (input)", lambda: declare(cuda("float* y, float by"), abi="pointers")),
    ("leave abi='pointers' out", declare),
)
case(
    lambda: declare(cuda("float* y, float by")),
    ("or use abi='pointers'", lambda: declare(cuda("float* y, float by"), abi="pointers")),
)
DISAGREE: Final[list[tuple[Any, str, str]]] = [
    (of_ints, SCALE, "Declare 'Tile<int, 1> y'"),
    (an_input, SCALE, "Declare 'View<const float, 1> y'"),
    (right, cuda("View<const float, 1> y, float by"), "Declare 'Tile<float, 1> y'"),
    (right, cuda("View<float, 1> y, float by"), "Declare 'Tile<float, 1> y'"),
    (an_input, cuda("View<float, 1> y, float by"), "Declare 'View<const float, 1> y'"),
    (swapped, SCALE, "Swap 'by' and 'y' in one of them"),
    (renamed, SCALE, "the Python parameter 'y' is number 2"),
    (turned, cuda("Tile<float, 1> y, View<const float, 1> x, float by"), "Write them in one order"),
    (by_array, SCALE, "a scalar against an array"),
    (by_int, SCALE, "Declare 'int by'"),
    (two_numbers, SCALE, "no counterpart for"),
]
for wrong_function, declared_source, says in DISAGREE:
    case(
        partial(lambda w, s: declare(s, fresh(w)), wrong_function, declared_source),
        (says, lambda: declare(annotated=fresh(right))),
    )
case(
    lambda: declare(cuda("const float* y, float by"), fresh(right), abi="pointers"),
    ("an output is not const", lambda: declare(cuda("float* y, float by"), fresh(right), abi="pointers")),
)
case(
    lambda: declare(cuda("View<float, 1> y, float by"), fresh(an_input)),
    ("an input is const", lambda: declare(cuda("View<const float, 1> y, float by"), fresh(an_input))),
)


# ---- existing CUDA: structures, templates, overloads, null pointers, lists


def by_double(y: Out[f32], by: np.float64) -> None: ...
def by_record(y: Out[f32], by: np.void) -> None: ...
def by_lazy_record(y: Out[f32], by: Lazy[np.void]) -> None: ...
def by_default(y: Out[f32], by: np.void = 1.0) -> None: ...  # type: ignore[assignment]  # reason: the mistake
def by_bytes(y: Out[f32], by: In[u8]) -> None: ...
def by_records(y: Out[f32], by: In[np.void]) -> None: ...
def by_doubles(y: Out[f32], by: In[np.float64]) -> None: ...
def by_optional(y: Out[f32], by: In[f32] | None) -> None: ...
def by_list(y: Out[f32], by: list[In[f32]]) -> None: ...
def by_bare_list(y: Out[f32], by: list) -> None: ...  # type: ignore[type-arg]  # reason: the mistake


def existing(parameters: str, function: Any = right, more: str = "", **options: Any) -> Any:
    """A kernel of plain pointers."""
    return declare(cuda(f"float* y, {parameters}", more), fresh(function), abi="pointers", block=32, **options)


PAIR: Final = "struct Pair { float a; int n; }; "
BITS: Final = "struct Bits { int a : 3; }; "
NODE: Final = "struct Node { float a; Node* next; }; "
TWO: Final = SCALE + cuda(f"{ONE}, double by")
SOME: Final = "#ifdef __X\n" + cuda("float* y, float by") + "\n#else\n" + cuda("float* y, double by") + "\n#endif\n"

case(
    lambda: declare(TWO),
    ("annotate the parameters with NumPy's types (np.int64)", lambda: declare(TWO, fresh(by_double))),
)
case(
    lambda: declare(SOME, fresh(right), abi="pointers"),
    (
        "Define what their conditions ask for: options=('-DNAME=1',)",
        lambda: declare(SOME, fresh(right), abi="pointers", options=("-D__X=1",)),
    ),
)
case(
    lambda: declare(cuda(f"{ONE}, float by", "template <int N> ")),
    (
        'Name an instance: @kernel("k<...>", cuda=...)',
        lambda: kernel("k<3>", cuda=cuda(f"{ONE}, float by", "template <int N> "))(fresh(right)),
    ),
)
case(
    lambda: existing("\n#ifdef __X\nfloat by\n#endif\n"),
    (
        "or define what it asks for: options=('-DNAME=1',)",
        lambda: existing("\n#ifdef __X\nfloat by\n#endif\n", options=("-D__X=1",)),
    ),
)
for parameters, mistaken, more, says, repaired, cured in (
    ("float*** by", right, "", "Pass one flat array and its extents", "const float* by", by_array),
    ("Ts... by", right, "", "Write the parameters out in a kernel of its own", "float by", right),
    ("Bits by", by_record, BITS, "Pass its fields as parameters of their own", "int by", by_int),
    ("Bits by", by_record, BITS, "or take it by pointer", "const Bits* by", by_bytes),
    ("Node by", by_record, NODE, "Node has the pointer 'next', whose memory would be unknown", "float by", right),
    (
        "Node* by",
        by_records,
        NODE,
        "whose memory would be unknown, so its own is bytes (np.uint8)",
        "Node* by",
        by_bytes,
    ),
    ("Pair by", right, PAIR, "a number against Pair, which is a NumPy record (np.void)", "Pair by", by_record),
    ("float by", by_record, "", "a structure against float", "float by", right),
    ("Pair* by", by_array, PAIR, "float32 against Pair, whose elements are np.void", "Pair* by", by_records),
    ("float4* by", by_doubles, "", "whose elements are np.void or float32", "float4* by", by_array),
    ("Odd* by", by_array, "", "so its memory is bytes (np.uint8)", "Odd* by", by_bytes),
    ("float** by", by_array, "", "one tensor against the pointers of a list of them", "float** by", by_list),
    ("float* by", by_list, "", "a list of tensors against one", "float** by", by_list),
):
    case(
        partial(existing, parameters, mistaken, more),
        (says, partial(existing, repaired, cured, more)),
    )
case(
    lambda: declare(cuda(f"{ONE}, View<const float, 1> by"), fresh(by_optional)),
    ("None can be passed for a pointer alone", lambda: existing("const float* by", by_optional)),
)
case(lambda: existing("float4 by", by_lazy_record), (ANNOTATED, lambda: existing("float4 by", by_record)))
case(lambda: existing("float** by", by_bare_list), (ANNOTATED, lambda: existing("float** by", by_list)))


def pointed(by: Any, parameter: str = "float4* by", function: Any = by_array, more: str = "") -> Any:
    """A call of a kernel of plain pointers."""
    return existing(parameter, function, more)(out(), by)


RECORDS: Final = np.dtype([("a", "f4"), ("n", "i4")])
WIDE: Final = np.dtype([("a", "f8"), ("n", "i8")])


def record_by_default() -> object:
    record = np.void((1, 2), RECORDS)

    def k(y: Out[f32], by: np.void = record) -> None: ...

    return existing("Pair by", k, PAIR)


case(
    lambda: existing("Pair by", by_default, PAIR),
    ("pass np.void((...), dtype) of a dtype with these fields", record_by_default),
)
case(
    lambda: pointed(ones((7,)).sync()),
    ("Pass a multiple of that many elements", lambda: pointed(ones((8,)).sync())),
)
case(
    lambda: pointed(ones((9,)).sync().slice(slice(1, 9))),
    ("dup(...)", lambda: pointed(dup(ones((9,)).sync().slice(slice(1, 9))).sync())),
)
case(
    lambda: pointed(from_host(np.zeros(3, WIDE)).sync(), "Pair* by", by_records, PAIR),
    (
        "Give the array that layout on the host: array.astype(dtype)",
        lambda: pointed(from_host(np.zeros(3, WIDE).astype(RECORDS)).sync(), "Pair* by", by_records, PAIR),
    ),
)
case(
    lambda: pointed(1.0, "Pair by", by_record, PAIR),
    (
        "Pass np.void((...), dtype) of a dtype with these fields",
        lambda: pointed(np.void((1, 2), RECORDS), "Pair by", by_record, PAIR),
    ),
)
case(
    lambda: pointed(None),
    (
        "A parameter that may be a null pointer is declared In[...] | None",
        lambda: pointed(None, "float* by", by_optional),
    ),
)
case(
    lambda: pointed(ones((3,)), "float** by", by_list),
    ("Pass a list of them: [a, b]", lambda: pointed([ones((3,))], "float** by", by_list)),
)
case(
    lambda: array.sum(anything(from_host(np.zeros(3, RECORDS)).sync())),
    (
        "pass one field of them: from_host(array[field])",
        lambda: array.sum(from_host(np.zeros(3, RECORDS)["a"]).sync()),
    ),
)
case(
    lambda: convert(from_host(np.zeros(3, RECORDS)).sync(), f32),
    ("from_host(array[field])", lambda: from_host(np.zeros(3, RECORDS)["a"]).sync()),
)
case(
    lambda: zeros((3,), anything(RECORDS)),
    ("make them on the host, from_host(np.zeros(shape, dtype))", lambda: from_host(np.zeros((3,), RECORDS)).sync()),
)


def adds(y: Any, x: Any) -> None:
    y[...] += x[y.at]


def returns(y: Any, x: Any) -> Any:
    return y + x[y.at]


def adds_at_most(y: Any, x: Any) -> None:
    (rows,) = y.at
    part = x[rows.start : min(rows.stop, x.shape[0])]
    y[: len(part)] += part


def places_of_a_view(y: Any, x: Any) -> None:
    y[...] += x[y[:2].at]


# ---- kernels: host bodies


case(lambda: of_body(returns), ("Write the result into the output's tile: y[...] = ...", lambda: of_body(adds)))
case(
    lambda: of_body(adds, x=6),
    ("Give the kernel an input that covers the output", lambda: of_body(adds, x=8)),
    ("cut the slice in its host body: min(8, x.shape[0])", lambda: of_body(adds_at_most, x=6)),
)
case(
    lambda: of_body(places_of_a_view),
    ("Take .at from the tile that the host body was given", lambda: of_body(adds)),
)


# ---- kernels into new tensors


def declare_two() -> Any:
    @kernel(cuda="__global__ void two(Tile<float, 1> y, Tile<float, 1> z) {}")
    def two(y: Out[f32], z: Out[f32]) -> None: ...

    two.host(lambda y, z: None)
    return two


def declare_late() -> Any:
    @kernel(cuda="__global__ void late(float a, Tile<float, 1> y) {}")
    def late(a: float, y: Out[f32]) -> None: ...

    late.host(lambda a, y: None)
    return late


case(
    lambda: declare_late().new((8,), (4,)),
    (
        "Pass a partition for each, empty(shape).partition(tile)",
        lambda: [op.sync() for op in declare_late()(1.0, empty((8,)).partition((4,))).unzip()[1:]],
    ),
)
case(
    lambda: declare_two().new([(8,)], (4,)),
    ("Give one for each", lambda: declare_two().new([(8,), (8,)], (4,))().sync()),
    ("or one for all", lambda: declare_two().new((8,), (4,))().sync()),
)
case(
    lambda: cast(Any, scale).new((2, 4), (2, 2)), ("Give that many extents", lambda: scale.new((8,), (4,))(2.0).sync())
)
