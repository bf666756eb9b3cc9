"""The CUDA text that visits the elements of rows in the order of a reduction, and combines what its threads found.

The threads of a block walk through one span of several rows. At a step a thread visits a few neighbours: of its row,
or, with `across`, of neighbouring rows. Where they lie side by side in memory, at an address that is a multiple of
their size, one instruction reads them. Each is combined with a number of its own, so that no read waits for a sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from dagpu.kernels.arrays.reducing.reduction_order import THREADS, ReductionOrder
from dagpu.kernels.expressions.operations.cuda_operations import load_text
from dagpu.kernels.generated.row_elements import Operand, coordinate_texts, extent_along, neighbour_reads

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
