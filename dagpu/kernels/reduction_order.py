"""The order and the steps of reductions, and the CUDA text that follows them.

An input is seen as rows of `length` elements that are reduced. A row is cut into spans of `width * each` elements. In a
span, column c of `width` combines elements c, c + width, c + 2 width, ... one after the other. Then the columns are
folded: to 64 if there are more, to 8 if there are more, and to one. Column c of m combines columns c, c + m, c + 2 m,
... one after the other. Where a row has several spans, their numbers are a row for the second pass, with the same rule.

Both sides are quick in this order. A fold by 8 or 16 takes a block of threads fewer steps than three or four halvings,
and NumPy one call, which adds up arrays of neighbours in memory.

A second launch makes the second pass. One launch with a ticket, in which the block that ends last adds up the numbers
of all spans, was measured and dropped. On an H200 the second launch takes 1.5 to 2.3 us of device time in a graph,
where its blocks start early. The ticket's fence and atomic operation take 1.1 us for 2^20 floats, 2.9 for 2^24, and 38
for 2^28 in spans of `BLOCK`; and a ticket must be zero before each run, which takes a memset.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.common.layout import Shape, part_type
from dagpu.kernels.operations import (
    Domain,
    constant_text,
    load_text,
    operation_text,
    register_dtype,
    register_type,
)
from dagpu.kernels.row_elements import Operand, coordinate_texts, extent_along, neighbour_reads

THREADS: Final = 256
"""Threads of a block."""
GROUP: Final = 4
"""The most elements that a thread reads at once."""
BLOCK: Final = 8192
"""The fewest elements of a block, where a row has several spans: eight reads of 16 bytes by each thread."""
SPANS: Final = 4096
"""The most spans of a row: so the second pass is the last. If rows lie side by side, a block makes several of them, and
there are fewer."""
QUICK: Final = 64
"""The columns of a row that are few: NumPy then combines those of many rows at once."""


@final
class ReductionOrder(NamedTuple):
    """The numbers of one pass: columns of a row, elements of a column, and which neighbours a thread reads at once.

    With `across`, these are of `beside` rows in one column, because rows are neighbours in memory. Otherwise they are
    of `beside` columns in one row, because a row's elements are.
    """

    width: int
    each: int
    across: bool
    beside: int

    @property
    def span(self) -> int:
        """The number of elements of a row that one block reduces to one number."""
        return self.width * self.each

    @property
    def lanes(self) -> int:
        """The number of threads of a row."""
        return self.width if self.across else self.width // self.beside

    @property
    def folds(self) -> tuple[int, ...]:
        """The factors by which the columns of a row become fewer, until one is left: over 64, over 8, and one."""
        return _folds(self.width)

    @property
    def rows(self) -> int:
        """The number of rows of one block."""
        return THREADS // self.lanes * (self.beside if self.across else 1)


@cache
def _folds(width: int) -> tuple[int, ...]:
    found, rest = list[int](), width
    while rest > 8:
        found.append(rest // (QUICK if rest > QUICK else 8))
        rest //= found[-1]
    return (*found, rest)


def reduction_order(length: int, neighbours: int) -> ReductionOrder:
    """Return the order for rows of this length, of which this many lie side by side in memory: 1 if none do."""
    side = min(32, power_of_two(neighbours))
    beside = GROUP if side == 1 else min(GROUP, side)
    if side == 1:
        width = GROUP * min(THREADS, power_of_two(-(-length // (8 * GROUP))))
    else:
        width = min(THREADS * beside // side, power_of_two(-(-length // 16)))
    each = power_of_two(-(-length // width))
    if each > (16 if side == 1 else 32):  # as many spans as a second pass takes, of `BLOCK` elements at least
        each = max(BLOCK // (width * side), power_of_two(-(-length * max(1, side // 2) // (width * SPANS))))
    return ReductionOrder(width, each, side > 1, beside)


def power_of_two(n: int) -> int:
    """Return the least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()


@final
class ReducedAxes(NamedTuple):
    """An input's shape with merged axes, and for each axis whether it is reduced."""

    shape: Shape
    reduced: tuple[bool, ...]

    @property
    def length(self) -> int:
        """The number of elements of a row."""
        return prod([n for n, reduced in zip(self.shape, self.reduced, strict=True) if reduced])

    @property
    def rows(self) -> int:
        """The number of rows, which is the number of results."""
        return prod([n for n, reduced in zip(self.shape, self.reduced, strict=True) if not reduced])

    @property
    def neighbours(self) -> int:
        """The number of rows that lie side by side in memory: those along the kept axes after the last reduced one."""
        found = 1
        for extent, reduced in zip(reversed(self.shape), reversed(self.reduced), strict=True):
            if reduced and extent > 1:
                break
            found *= extent
        return found


def merge_axes(shape: Shape, reduced: tuple[bool, ...], *, contiguous: bool) -> ReducedAxes:
    """Return the axes of an input, with neighbouring ones as one where that is possible; none of extent 1 are left."""
    if not contiguous:
        return ReducedAxes(shape, reduced)
    extents: list[int] = []
    kinds: list[bool] = []
    for extent, kind in zip(shape, reduced, strict=True):
        if extent == 1:
            continue
        if kinds and kinds[-1] is kind:
            extents[-1] *= extent
        else:
            extents.append(extent)
            kinds.append(kind)
    return ReducedAxes(tuple(extents), tuple(kinds))


# ---- reduction steps
#
# What each reduction does with elements: its number for nothing, how it combines two, and what it makes of the last.
#
# The CUDA text and the NumPy functions of a step stand side by side. f16 and bf16 are reduced in f32, and the result is
# rounded once.


@final
class ReductionStep(NamedTuple):
    """A reduction: the operation that combines two numbers, and the element types that it accepts.

    `start` is what each element becomes: itself, the square of its size, or whether it is not 0. `finish` is what
    becomes of the last number: itself, its square root ("sqrt"), its quotient by a count ("mean"), or the square root
    of that quotient ("root").
    """

    operation: str
    domain: Domain
    start: str = "itself"
    finish: str = "itself"


REDUCTIONS: Final[dict[str, ReductionStep]] = {
    "sum": ReductionStep("add", "number"),
    "prod": ReductionStep("multiply", "number"),
    "mean": ReductionStep("add", "inexact", finish="mean"),
    "norm": ReductionStep("add", "inexact", start="square", finish="sqrt"),
    "amin": ReductionStep("minimum", "real"),
    "amax": ReductionStep("maximum", "real"),
    "any": ReductionStep("bitwise_or", "any", start="test"),
    "all": ReductionStep("bitwise_and", "any", start="test"),
}
"""The reductions of elements as they are."""

STEPS: Final[dict[str, ReductionStep]] = {
    **REDUCTIONS,
    "var": ReductionStep("add", "float", finish="mean"),
    "std": ReductionStep("add", "float", finish="root"),
}
"""All reductions. `var` and `std` are of squares of deviations."""

COUNTED: Final = ("mean", "root")
"""The values of `finish` for which a kernel gets a count."""


def number_type(name: str, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the type in which a reduction of elements of this type combines numbers."""
    return register_dtype(result_type(name, dtype))


def result_type(name: str, dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the element type of the result: that of the input, bool, or for norms that of the parts of the input."""
    types = {"itself": dtype, "square": part_type(dtype), "test": np.dtype(np.bool_)}
    return types[STEPS[name].start]


def identity(operation: str, dtype: "np.dtype[Any]") -> Any:
    """Return the number that changes no other when it is combined with it. For sums of floats this is -0."""
    match operation:
        case "add":
            return dtype.type({"f": -0.0, "c": complex(-0.0, -0.0)}.get(dtype.kind, 0))
        case "multiply":
            return dtype.type(1)
        case "bitwise_or" | "bitwise_and":
            return np.bool_(operation == "bitwise_and")
        case _ if dtype.kind == "f":
            return dtype.type(np.inf if operation == "minimum" else -np.inf)
        case _:
            bounds = np.iinfo(dtype)
            return dtype.type(bounds.max if operation == "minimum" else bounds.min)


def identity_text(operation: str, dtype: "np.dtype[Any]") -> str:
    """Return `identity` as CUDA text."""
    return constant_text(identity(operation, dtype), dtype)


# ---- CUDA
def start_text(start: str, x: str) -> str:
    """Return the text of what an element in a register becomes."""
    return {"itself": x, "square": f"square({x})", "test": f"{x} != 0"}[start]


def finish_text(finish: str, x: str, dtype: "np.dtype[Any]") -> str:
    """Return the text of what the last number becomes."""
    quotient = f"{x} / count" if finish in COUNTED else x
    if finish in COUNTED and dtype.kind == "c":
        return f"{register_type(dtype)}({x}.real / count, {x}.imag / count)"
    return operation_text("sqrt", dtype, (quotient,)).text if finish in ("sqrt", "root") else quotient


# ---- row walk
#
# The CUDA text that visits the elements of rows in the order of a reduction, and combines what its threads found.
#
# The threads of a block walk through one span of several rows. At a step a thread visits a few neighbours: of its row,
# or, with `across`, of neighbouring rows. Where they lie side by side in memory, at an address that is a multiple of
# their size, one instruction reads them. Each is combined with a number of its own, so that no read waits for a sum.

_ALONG = """\
        const dagpu::index_t of = out.origin(0) + row;
        dagpu::index_t step = 0;
        if ({quick}) {{
            const dagpu::index_t full = within / {width};
#pragma unroll {unroll}
            for (; step < full; ++step) {{
                const dagpu::index_t at = first + (step * {lanes} + lane) * {count};
{sides}#pragma unroll
                for (int n = 0; n < {count}; ++n) {{
{quick_visit}
                }}
            }}
        }}
        for (; step * {width} < within; ++step) {{
#pragma unroll
            for (int n = 0; n < {count}; ++n) {{
                const dagpu::index_t at = first + (step * {lanes} + lane) * {count} + n;
                if (at - first < within) {{
{visit}
                }}
            }}
        }}
"""
_ACROSS = """\
        const dagpu::index_t end = first + within;
        if (row + {count} <= out.tile_extent(0) && {quick}) {{
            const dagpu::index_t of = out.origin(0) + row;
#pragma unroll {unroll}
            for (dagpu::index_t at = first + lane; at < end; at += {width}) {{
{sides}#pragma unroll
                for (int n = 0; n < {count}; ++n) {{
{quick_visit}
                }}
            }}
        }} else {{
            for (dagpu::index_t at = first + lane; at < end; at += {width}) {{
#pragma unroll
                for (int n = 0; n < {count}; ++n) {{
                    const dagpu::index_t of = out.origin(0) + row + n;
                    if (row + n < out.tile_extent(0)) {{
{visit}
                    }}
                }}
            }}
        }}
"""

Visit: TypeAlias = Callable[[Sequence[str], str], Sequence[str]]
"""Makes the lines that visit an element, number `n` of its step, of the texts that read the operands into registers and
the text of its position in the row."""
Join: TypeAlias = Callable[[Sequence[str], str, str], str]
"""Makes the statement that combines, in arrays of these names, what is at one index with what is at another."""


@final
class RowWalk(NamedTuple):
    """A walk through rows: the order, the kinds of the rows' axes, and the arrays that are read."""

    order: ReductionOrder
    reduced: tuple[bool, ...]
    operands: tuple[Operand, ...]

    # ---- a thread's elements
    def head(self) -> str:
        """Return the text that declares a thread's place, and the span of its rows."""
        order, others = self.order, THREADS // self.order.lanes
        if order.across:
            row = f"threadIdx.x % {others} * {order.beside}"
            threads = f"const int lane = threadIdx.x / {others}, row = {row};"
        else:
            threads = f"const int lane = threadIdx.x % {order.lanes}, row = threadIdx.x / {order.lanes};"
        length = " * ".join([self._extent(axis) for axis, kind in enumerate(self.reduced) if kind]) or "1"
        return (
            f"    {threads}\n    const bool mine = row < out.tile_extent(0);\n"
            f"    const dagpu::index_t first = out.origin(1) * {order.span}, left = {length} - first;\n"
            f"    const dagpu::index_t within = left < {order.span} ? left : {order.span};\n"
        )

    def body(self, visit: Visit) -> str:
        """Return the text that visits the elements of a thread whose `row` is one of the block's."""
        places, order = self._places(), self.order
        quick, sides, registers = self._sides(places)
        direct = [load_text(operand.dtype, operand.at(places)) for operand in self.operands]
        return (_ACROSS if order.across else _ALONG).format(
            quick=quick,
            sides="".join([f"                {side}\n" for side in sides]),
            quick_visit="\n".join([" " * 20 + line for line in visit(registers, "at" if order.across else "at + n")]),
            visit="\n".join([" " * 20 + line for line in visit(direct, "at")]),
            unroll=min(8, order.each),
            lanes=order.lanes,
            width=order.width,
            count=order.beside,
        )

    def _extent(self, axis: int) -> str:
        return extent_along(self.operands, axis)

    def _places(self) -> list[str]:
        """Return the text of each coordinate of an element: of row `of`, at position `at` in the row."""
        return coordinate_texts([int(kind) for kind in self.reduced], ("of", "at"), self._extent)

    def _sides(self, places: Sequence[str]) -> tuple[str, list[str], list[str]]:
        """Return the texts of a step that reads neighbours at once: where that is possible, its reads, and its
        registers of element `n`. An operand that does not follow the neighbours has one element for all of them."""
        count = self.order.beside
        axes = [axis for axis, kind in enumerate(self.reduced) if kind is not self.order.across]
        apart = [f"{self._extent(axes[-1])} % {count} == 0"] if len(axes) > 1 else []
        conditions, reads, registers = neighbour_reads(self.operands, places, axes[-1] if axes else None, count)
        return " && ".join(apart + conditions) or "false", reads, registers

    # ---- what the threads found
    def fold(self, found: Mapping[str, str], join: Join) -> str:
        """Return the text that combines the numbers of a block's threads. `found` has the names of the arrays in
        registers, with their types. Lane 0 then has that of row n of its rows in `all_NAME`, at `result(n)`."""
        names = list(found)
        lines = [f"__shared__ {found[name]} all_{name}[{self.order.beside * THREADS}];" for name in names]
        for name in names:
            lines += [f"all_{name}[{self._at(n)}] = {name}[{n}];" for n in range(self.order.beside)]
        shared = [f"all_{name}" for name in names]
        lines += self._fold_across(shared, join) if self.order.across else self._fold_along(shared, join)
        return "".join([f"    {line}\n" for line in lines])

    def result(self, n: int) -> str:
        """Return the text of the index of the result of row n of a thread in lane 0."""
        return self._at(n)

    def _at(self, n: int) -> str:
        """Return the text of the index of number n of a thread: in the order of columns, or of threads for each of
        several rows."""
        if self.order.across:
            return f"threadIdx.x + {n * THREADS}" if n else "threadIdx.x"
        return f"threadIdx.x * {self.order.beside} + {n}"

    def _fold_along(self, shared: Sequence[str], join: Join) -> list[str]:
        """Return the lines that fold the columns of each row. A number takes the place of the first that it is made
        of, which no other thread reads."""
        width = left = self.order.width
        lines: list[str] = []
        for factor in self.order.folds:
            left //= factor
            row, column = (f"at / {left}", f" + at % {left}") if left > 1 else ("at", "")
            lines += [
                "__syncthreads();",
                f"for (int at = threadIdx.x; at < {self.order.rows * left}; at += {THREADS}) {{",
                f"    const int to = {row} * {width}{column};",
            ]
            lines += [f"    {join(shared, 'to', f'to + {k * left}')}" for k in range(1, factor)]
            lines.append("}")
        return [*lines, "__syncthreads();"]

    def _fold_across(self, shared: Sequence[str], join: Join) -> list[str]:
        """Return the lines that fold the columns of rows that lie side by side, whose threads do too."""
        left, lines = self.order.lanes, list[str]()
        step = THREADS // left
        for factor in self.order.folds:
            lines.append("__syncthreads();" if left * step > 32 else "__syncwarp();")
            left //= factor
            lines.append(f"if (lane < {left}) {{")
            for n in range(self.order.beside):
                at = self._at(n)
                lines += [f"    {join(shared, at, f'{at} + {k * left * step}')}" for k in range(1, factor)]
            lines.append("}")
        return lines
