"""The CUDA text that visits the elements of rows in the order of a reduction, and combines what its threads found.

The threads of a block walk through one span of several rows. At a step a thread visits a few neighbours: of its row,
or, with `across`, of neighbouring rows. Where they lie side by side in memory, at an address that is a multiple of
their size, one instruction reads them. Each is combined with a number of its own, so that no read waits for a sum.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from dagpu.kernels.arrays.reducing.reduction_order import THREADS, ReductionOrder
from dagpu.kernels.expressions.cuda_operations import load_text, memory_type
from dagpu.kernels.generated.row_elements import Operand, coordinate_texts, extent_along

SIDE = """\
// Elements that lie side by side, read by one instruction.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Side { T at[N]; };

"""

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
        conditions = [f"{self._extent(axes[-1])} % {count} == 0"] if len(axes) > 1 else []
        reads: list[str] = []
        registers: list[str] = []
        for name, dtype, follows in self.operands:
            read, type_ = Operand(name, dtype, follows).at(places), memory_type(dtype)
            if not axes or axes[-1] not in follows:
                reads.append(f"const {type_} {name}_side = {read};")
                registers.append(load_text(dtype, f"{name}_side"))
                continue
            for axis, followed in enumerate(follows):
                if followed == axes[-1]:
                    conditions.append(f"{name}.stride({axis}) == 1")
                elif followed >= 0:
                    conditions.append(f"{name}.stride({axis}) % {count} == 0")
            side = f"Side<{type_}, {count}>"
            conditions.append(f"reinterpret_cast<unsigned long long>({name}.data()) % alignof({side}) == 0")
            reads.append(f"const {side} {name}_side = *reinterpret_cast<const {side}*>(&{read});")
            registers.append(load_text(dtype, f"{name}_side.at[n]"))
        return " && ".join(conditions) or "false", reads, registers

    # ---- what the threads found
    def fold(self, found: Mapping[str, str], join: Join) -> str:
        """Return the text that combines the numbers of a block's threads. `found` has the names of the arrays in
        registers, with their types. Lane 0 then has those of its rows in `all_NAME`, from index `threadIdx.x` on in
        steps of `THREADS`."""
        order, names = self.order, list(found)
        rows, half = range(order.beside // order.own), order.own
        step = THREADS // order.lanes if order.across else 1
        shared = [f"all_{name}" for name in names]
        lines = [f"__shared__ {found[name]} all_{name}[{len(rows) * THREADS}];" for name in names]
        while half > 1:  # in registers
            half //= 2
            lines += [join(names, str(n), str(n + half)) for n in range(half)]
        for name in names:
            lines += [f"all_{name}[{_at(n, 'threadIdx.x')}] = {name}[{n}];" for n in rows]
        lanes = order.lanes
        while lanes > 1:
            lines.append("__syncthreads();" if lanes * step > 32 else "__syncwarp();")
            lanes //= 2
            lines.append(f"if (lane < {lanes}) {{")
            lines += [
                "    " + join(shared, _at(n, "threadIdx.x"), _at(n, f"threadIdx.x + {lanes * step}")) for n in rows
            ]
            lines.append("}")
        return "".join([f"    {line}\n" for line in lines])


def _at(n: int, index: str) -> str:
    return index if n == 0 else f"{index} + {n * THREADS}"
