"""Types that the plugin infers: exact kernel calls, phantoms, literal shapes. Also the outputs that it refuses.

All programs are checked in one run of mypy; each test looks at the lines of its own.
"""

import re
from itertools import groupby

import pytest

from dagpu import PartitionError, array, zeros
from dagpu.mypy_plugin import names
from tests.support.mypy_checks import Checker, Message, dependencies

pytestmark = pytest.mark.xdist_group("mypy_plugin")

KERNELS = '''
from pathlib import Path
from typing import Final

from dagpu import In, Lazy, Out, Tensor, expr, f32, f64, foreign, i32, kernel
from dagpu.interop import new

axpy = expr(f32, f32, f32)(lambda y, a, x: y + a * x)

SOURCE = """
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) { /* y += a x */ }
__global__ void fill1(Tile<float, 1> y, float a) {}
"""
FINAL: Final = "__global__ void two(Tile<float, 1> y, Tile<double, 1> z) {}"


@kernel(cuda=SOURCE)
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...


@kernel(cuda=SOURCE)
def fill1(y: Out[f32], a: Lazy[float]) -> None: ...


@kernel(cuda=FINAL)
def two(y: Out[f32], z: Out[f64]) -> None: ...


@kernel(cuda="__global__ void numbers(Tile<float, 1> y, int n, float a, int k, bool b) {}")
def numbers(y: Out[f32], n: int, a: f32, k: i32, b: bool = False) -> None: ...


NINE = """__global__ void nine(
    Tile<float, 1> y, int a, int b, int c, int d, int e, int f, int g, View<const float, 1> x) {}"""


@kernel(cuda=NINE)
def nine(y: Out[f32], a: int, b: int, c: int, d: int, e: int, f: int, g: int, x: In[f32]) -> None: ...


@kernel(cuda=Path("elsewhere.cu"))
def elsewhere(y: Out[f32]) -> None: ...


@kernel(cuda="__global__ void pointers(float* y) {}", abi="pointers")
def pointers(y: Out[f32]) -> None: ...


@foreign
def copied(x: In[f32]) -> Tensor[f32]:
    return new(x)


@foreign
def copy_into(y: Out[f32], x: In[f32], times: int) -> None: ...
'''

# The flow rules would refuse most of it: here the same tensors are passed again and again.
HEAD = """# mypy: disable-error-code="dagpu-use-after-move,dagpu-conflicting-borrow,dagpu-borrow-escape,dagpu-unused-op"
from typing import Any, Literal, TypeAlias, TypeVar, assert_type

import numpy as np
from numpy.typing import NDArray

import kernels
from dagpu import *
from dagpu import array
from kernels import axpy, copied, copy_into, elsewhere, fill1, nine, numbers, pointers, saxpy, two

P1: TypeAlias = Partition[Tensor[f32]]
T88: TypeAlias = Tensor[f32, tuple[Literal[8], Literal[8]]]
L = TypeVar("L", bound=Borrowed)
own: Tensor[f32]
many: SharedTensor[f32]
lent: TensorRef[f32]
excl: TensorMut[f32]
cut: P1
cut64: Partition[Tensor[f64]]
unknown: Any
either: Tensor[f32] | SharedTensor[f32]
lazy: DeviceOp[Tensor[f32]]
lazy_lent: DeviceOp[Tensor[f32], Borrowed]
lazy_free: DeviceOp[Tensor[f32], Static, NoAlloc]
literal: T88
one: DeviceOp[int, Static, NoAlloc]
"""

TYPES = [
    # a kernel call gives each argument in the form it was put in; an op comes back as what it yields
    ("saxpy(cut, 2.0, own)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    ("saxpy(cut, 2, many)", "DeviceOp[tuple[P1, float, SharedTensor[f32]], Static, NoAlloc]"),
    ("saxpy(cut, 2.0, x=lent)", "DeviceOp[tuple[P1, float, TensorRef[f32]], Borrowed, NoAlloc]"),
    ("saxpy(x=own, y=cut, a=2.0)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    ("saxpy(cut, 2.0, lazy)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, MayAlloc]"),
    ("saxpy(cut, 2.0, lazy_free)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    ("saxpy(cut, 2.0, lazy_lent)", "DeviceOp[tuple[P1, float, Tensor[f32]], Borrowed, MayAlloc]"),
    (
        "saxpy(excl.partition((2, 2)), 2.0, own)",
        "DeviceOp[tuple[Partition[TensorMut[f32]], float, Tensor[f32]], Borrowed, NoAlloc]",
    ),
    ("saxpy(cut, 2.0, excl)", "DeviceOp[tuple[P1, float, TensorMut[f32]], Borrowed, NoAlloc]"),
    ("saxpy(cut, 2.0, value(excl))", "DeviceOp[tuple[P1, float, TensorMut[f32]], Borrowed, NoAlloc]"),
    (
        "saxpy(cut, 2.0, excl).last().partition((2, 2))",
        "DeviceOp[Partition[TensorMut[f32]], Borrowed, NoAlloc]",
    ),
    (
        "saxpy(saxpy(cut, 2.0, excl).last().partition((2, 2)), 2.0, own).first().unpartition()",
        "DeviceOp[TensorMut[f32], Borrowed, NoAlloc]",
    ),
    ("saxpy(cut, 2.0, excl).unzip()[2].to_host()", "DeviceOp[NDArray[f32], Borrowed]"),
    ("value(excl).reshape((8,))", "DeviceOp[TensorMut[f32], Borrowed, NoAlloc]"),
    (
        "saxpy(zeros((4, 4)).partition((2, 2)), 2.0, own)",
        "DeviceOp[tuple[P1, float, Tensor[f32]], Static, MayAlloc]",
    ),
    (
        "saxpy(zeros((4, 4)).map(lambda t: t.partition((2, 2))), 2.0, lazy.then(lambda t: dup(t)))",
        "DeviceOp[tuple[P1, float, Tensor[f32]], Static, MayAlloc]",
    ),
    ("saxpy(cut, 2.0, either)", "DeviceOp[tuple[P1, float, Tensor[f32] | SharedTensor[f32]], Static, NoAlloc]"),
    ("two(cut, cut64)", "DeviceOp[tuple[P1, Partition[Tensor[f64]]], Static, NoAlloc]"),
    # so do the calls of other functions that write to an output
    ("axpy.update(cut, 2, own)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    ("axpy.into(cut, lazy_lent, 2.0, many)", "DeviceOp[tuple[P1, Tensor[f32], float, SharedTensor[f32]], Borrowed]"),
    (
        "axpy.update(excl.partition((2,)), one, unknown).first().unpartition()",
        "DeviceOp[TensorMut[f32], Borrowed, Any]",
    ),
    ("copy_into(cut, lent, 2)", "DeviceOp[tuple[P1, TensorRef[f32], int], Borrowed, NoAlloc]"),
    # a call whose output is a new tensor borrows if an argument does
    ("axpy(own, 2.0, lazy)", "DeviceOp[Tensor[f32], Static]"),
    ("axpy(own, 2.0, lent)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("axpy(lazy_lent, one, own)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("axpy(own, 2.0, unknown)", "DeviceOp[Tensor[f32], Any]"),
    ("axpy.sum()(own, 2.0, many)", "DeviceOp[Tensor[f32], Static]"),
    ("axpy.softmax()(own, 2.0, lent)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("array.sum(many)", "DeviceOp[Tensor[f32], Static]"),
    ("array.sum(excl)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("array.topk(lent, 2)", "DeviceOp[tuple[Tensor[f32], Tensor[i64]], Borrowed]"),
    ("array.maximum(2.0, lent)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("array.where(array.isnan(lent), 0.0, many)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("array.stack([lent, lent])", "DeviceOp[Tensor[f32], Borrowed]"),
    ("array.stack((many, own))", "DeviceOp[Tensor[f32], Static]"),
    ("array.permutation(3, seed=1)", "DeviceOp[Tensor[i64], Static]"),
    ("copied(lent)", "DeviceOp[Tensor[f32], Borrowed]"),
    ("copied(lazy)", "DeviceOp[Tensor[f32], Static]"),
    # numbers come back as the Python numbers that CUDA's types take
    ("numbers(cut, 1, np.float32(2), np.int32(3))", "DeviceOp[tuple[P1, int, float, int, bool], Static, NoAlloc]"),
    (
        "numbers(cut, 1, np.float32(2), np.int32(3), True)",
        "DeviceOp[tuple[P1, int, float, int, bool], Static, NoAlloc]",
    ),
    ("fill1(cut, 1.0)", "DeviceOp[tuple[P1, float], Static, NoAlloc]"),
    ("fill1(cut, value(1.0))", "DeviceOp[tuple[P1, float], Static, NoAlloc]"),
    # of an Any nothing is known
    ("saxpy(cut, 2.0, unknown)", "DeviceOp[tuple[P1, float, Any], Any, Any]"),
    ("saxpy(cut, unknown, own)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    # a changed copy of a kernel, and a kernel by another name
    ("saxpy.grid(1, 2).block(32)(cut, 2.0, own)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    ("kernels.saxpy.shared_memory(64)(cut, 2.0, own)", "DeviceOp[tuple[P1, float, Tensor[f32]], Static, NoAlloc]"),
    # the parts
    ("saxpy(cut, 2.0, lent).first()", "DeviceOp[P1, Borrowed, NoAlloc]"),
    ("saxpy(cut, 2.0, lent).last()", "DeviceOp[TensorRef[f32], Borrowed, NoAlloc]"),
    ("saxpy(cut, 2.0, own).unzip()[1]", "DeviceOp[float, Static, NoAlloc]"),
    ("saxpy(cut, 2.0, own).first().unpartition()", "DeviceOp[Tensor[f32], Static, NoAlloc]"),
    ("saxpy(cut, 2.0, own).sync()", "tuple[P1, float, Tensor[f32]]"),
    # more parts than the overloads have
    ("nine(cut, 1, 2, 3, 4, 5, 6, 7, lent).first()", "DeviceOp[P1, Borrowed, NoAlloc]"),
    ("nine(cut, 1, 2, 3, 4, 5, 6, 7, own).last()", "DeviceOp[Tensor[f32], Static, NoAlloc]"),
    ("nine(cut, 1, 2, 3, 4, 5, 6, 7, own).unzip()[1]", "DeviceOp[int, Static, NoAlloc]"),
    ("zip_ops(one, one, one, one, one, one, one, one, lazy).last()", "DeviceOp[Tensor[f32]]"),
    ("zip_ops(one, one, one, one, one, one, one, one, lazy).first()", "DeviceOp[int]"),
    # a value borrows if something in it does
    ("value(own)", "DeviceOp[Tensor[f32], Static, NoAlloc]"),
    ("value(lent)", "DeviceOp[TensorRef[f32], Borrowed, NoAlloc]"),
    ("value((1.0, lent))", "DeviceOp[tuple[float, TensorRef[f32]], Borrowed, NoAlloc]"),
    ("value([excl])", "DeviceOp[list[TensorMut[f32]], Borrowed, NoAlloc]"),
    ("value({'x': own})", "DeviceOp[dict[str, Tensor[f32]], Static, NoAlloc]"),
    ("value(unknown)", "DeviceOp[Any, Static, NoAlloc]"),
    # no shape is inferred where none is wanted
    ("zeros((8, 8))", "DeviceOp[Tensor[f32]]"),
    ("zeros((8, 8)).sync().partition((4, 4))", "P1"),
    # a shape that was declared is kept
    ("literal.borrow()", "TensorRef[f32, tuple[Literal[8], Literal[8]]]"),
    ("literal.partition((4, 4)).unpartition()", "T88"),
]

STATEMENTS = [
    "a: T88 = zeros((8, 8)).sync()",
    "b: DeviceOp[T88] = ones((8, 8))",
    "c: DeviceOp[Partition[T88, tuple[Literal[4], Literal[2]]]] = zeros((8, 8)).partition((4, 2))",
    "d: Partition[T88, tuple[Literal[4], Literal[2]]] = zeros((8, 8)).sync().partition((4, 2))",
    "e: T88 = arange(64).reshape((8, 8)).sync()",
    "e1: T88 = arange(2, 130, 2).reshape((8, -1)).sync()",
    "e2: Tensor[f32, tuple[Literal[64]]] = zeros((8, 8)).sync().reshape(-1)",
    "e3: Tensor[f32, tuple[Literal[3]]] = arange(start=9, stop=0, step=-3).sync()",
    "e4: TensorRef[f32, tuple[Literal[4], Literal[16]]] = literal.view((-1, 16))",
    "f: Tensor[f64, tuple[Literal[8], Literal[8]]] = convert(literal, f64).sync()",
    "g: SharedTensor[f32, tuple[Literal[8], Literal[8]]] = zeros((8, 8)).sync().share()",
    "h: TensorRef[f32, tuple[Literal[8], Literal[8]]] = eye(8).sync().borrow()",
    "i: DeviceOp[T88, Borrowed] = dup(literal.borrow())",
    "j: DeviceOp[SharedTensor[f32, tuple[Literal[8], Literal[8]]]] = eye(8).shared()",
    "k: DeviceOp[T88] = value(literal)",
    "l: DeviceOp[tuple[T88, Tensor[f32]]] = zip_ops(zeros((8, 8)), zeros((3,)))",
    "m: Tensor[f32, tuple[Literal[8], int]] = zeros((8, len('ab'))).sync()",
    "def n() -> T88: return zeros((8, 8)).sync()",
    "def o(x: T88) -> None: ...\no(full((8, 8), 1).sync())",
    "async def p() -> T88: return await linspace(0, 1, 64).reshape((8, 8))",
    # shapes do not stick to variables and containers
    "q = zeros((8, 8)).sync()\nq = q.reshape((64,))",
    "r = [zeros((8, 8)).sync()]\nr.append(zeros((3,)).sync())",
    "def s(x: In[f32]) -> DeviceOp[P1]: return saxpy(empty((4, 4)).partition((2, 2)), 1.0, x).first()",
    "def t(y: P1, x: DeviceOp[Tensor[f32], L]) -> DeviceOp[P1, L]: return saxpy(y, 1.0, x).first()",
    "def u(k: Kernel[[Out[f32], float, In[f32]]]) -> None: ...\nu(saxpy)",
]

REFUSED = [
    ("v: T88 = zeros((8, 4)).sync()", "assignment", "Literal[4]"),
    ("w: T88 = zeros((64,)).sync()", "assignment", "tuple[Literal[64]]"),
    ("saxpy(own, 2.0, own)", "dagpu-output-partition", "got a Tensor of float32, but a Partition of float32"),
    ("saxpy(excl, 2.0, own)", "dagpu-output-partition", "got a TensorMut of float32"),
    ("saxpy(many, 2.0, own)", "dagpu-output-partition", "It is immutable"),
    ("saxpy(lent, 2.0, own)", "dagpu-output-partition", ".borrow_mut().partition(tile)"),
    ("saxpy(lazy, 2.0, own)", "dagpu-output-partition", "got an op that yields a Tensor of float32"),
    ("saxpy(saxpy(cut, 1.0, own), 2.0, own)", "dagpu-output-partition", ".first() or .unzip()"),
    ("saxpy(np.zeros(3), 2.0, own)", "dagpu-output-partition", "got a NumPy array"),
    ("saxpy(3, 2.0, own)", "dagpu-output-partition", "got an int"),
    ("saxpy(cut64, 2.0, own)", "arg-type", "got a Partition of float64, but elements of float32 are wanted"),
    ("saxpy(cut, '2', own)", "arg-type", "float"),
    ("saxpy(cut, 2.0, cut)", "arg-type", "but a Tensor, SharedTensor, TensorRef or TensorMut of float32"),
    ("saxpy(cut, 2.0, cut)", "arg-type", "Put it together: .unpartition()"),
    ("saxpy(cut, 2.0, ones((4, 4), f64))", "arg-type", "got an op that yields a Tensor of float64, but elements of"),
    ("saxpy(cut, 2.0, np.zeros(3))", "arg-type", "from_host(array)."),
    ("saxpy(cut, 2.0)", "call-arg", "x"),
    ("x: DeviceOp[P1] = saxpy(cut, 2.0, lent).first()", "assignment", "Borrowed"),
]


RANKS = [
    ("saxpy(zeros((4,)).partition((2,)), 1.0, own)", "shape (4,), so of rank 1, but the CUDA declaration has rank 2"),
    (
        "fill1.grid(2).block(32)(zeros((4, 4)).partition((2, 2)), 1.0)",
        "so of rank 2, but the CUDA declaration has rank 1",
    ),
    (
        "kernels.two(zeros((4,)).partition((2,)), zeros((4, 4), f64).partition((2, 2)))",
        "argument 'z': got a Partition of float64",
    ),
    ("fill1(zeros((4, 4)).reshape((16,)).partition((4,)), 1.0)", ""),
    ("fill1(cut, 1.0)", ""),
    ("elsewhere(zeros((4, 4)).partition((2, 2)))", ""),
    ("pointers(zeros((4, 4)).partition((2, 2)))", ""),
]


def program(statements: list[str]) -> tuple[str, list[int]]:
    """A program of these statements, and the line on which each ends."""
    text, ends = HEAD, []
    for statement in statements:
        text += statement + "\n"
        ends.append(text.count("\n"))
    return text, ends


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[Message]]:
    """Return the messages of mypy for all programs here, by file and line. The kernels come from its cache."""
    checker = Checker(tmp_path_factory.mktemp("typing"), dependencies(tmp_path_factory))
    checker.write({"kernels.py": KERNELS})
    assert checker.check("kernels.py") == []
    programs = {
        "types.py": [f"assert_type({expression}, {wanted})" for expression, wanted in TYPES],
        "fitting.py": STATEMENTS,
        "refused.py": [statement for statement, *_ in REFUSED],
        "ranks.py": [statement for statement, _ in RANKS],
    }
    checker.write({f"user_{name}": program(statements)[0] for name, statements in programs.items()})
    found = sorted(checker.check(*(f"user_{name}" for name in programs)))
    return {key: list(group) for key, group in groupby(found, key=lambda message: (message.file[5:], message.line))}


@pytest.mark.parametrize("index", range(len(TYPES)), ids=[expression for expression, _ in TYPES])
def test_exact_types(checked: dict[tuple[str, int], list[Message]], index: int) -> None:
    """An expression has exactly this type."""
    _, lines = program([f"assert_type({expression}, {wanted})" for expression, wanted in TYPES])
    assert checked.get(("types.py", lines[index]), []) == []


def test_literal_shapes_where_they_are_wanted(checked: dict[tuple[str, int], list[Message]]) -> None:
    """Each of these statements is right."""
    assert [message for (file, _), messages in checked.items() if file == "fitting.py" for message in messages] == []


@pytest.mark.parametrize("index", range(len(REFUSED)), ids=[statement for statement, *_ in REFUSED])
def test_refused(checked: dict[tuple[str, int], list[Message]], index: int) -> None:
    """Each of these statements is one error, with its code and these words."""
    _, code, words = REFUSED[index]
    _, lines = program([statement for statement, *_ in REFUSED])
    (message,) = [found for found in checked.get(("refused.py", lines[index]), []) if found.kind == "error"]
    assert message.code == code
    assert words in message.text


@pytest.mark.parametrize("index", range(len(RANKS)), ids=[statement for statement, _ in RANKS])
def test_ranks(checked: dict[tuple[str, int], list[Message]], index: int) -> None:
    """The rank that CUDA declares is known where the kernel is imported, from a literal, a constant or a `Final`."""
    _, words = RANKS[index]
    _, lines = program([statement for statement, _ in RANKS])
    found = checked.get(("ranks.py", lines[index]), [])
    if words:
        assert [message.code for message in found] == ["dagpu-output-partition"]
        assert words in found[0].text
    else:
        assert found == []


# ---- the same words as at run time ---------------------------------------------------------------
TILINGS = [((10, 8), (4, 4)), ((8,), (3,)), ((8, 8), (4,)), ((8,), (0,)), ((4, 4, 4), (4, 4, 3))]


def test_a_tile_is_refused_in_the_words_of_the_run_time(tmp_path_factory: pytest.TempPathFactory) -> None:
    """mypy and a run say the same of a tile that does not cut a shape."""
    checker = Checker(tmp_path_factory.mktemp("words"), dependencies(tmp_path_factory))
    statements = [f"x{n} = zeros({shape}).partition({tile})" for n, (shape, tile) in enumerate(TILINGS)]
    checker.write({"tilings.py": program(statements)[0], "kernels.py": KERNELS})
    static = [message.text for message in checker.check("tilings.py")]
    said = []
    for shape, tile in TILINGS:
        with pytest.raises(PartitionError) as caught:
            zeros(shape).partition(tile).sync()
        said.append(re.sub(r"^partition\(\) at .*?:\d+: ", "", str(caught.value)))  # mypy names the place by itself
    assert static == said


def test_array_functions_are_known_by_their_modules() -> None:
    """The plugin finds all functions of `dagpu.array` by the start of their full names."""
    strangers = [
        name for name in array.__all__ if not getattr(array, name).__module__.startswith(names.ARRAY_FUNCTIONS)
    ]
    assert strangers == []
