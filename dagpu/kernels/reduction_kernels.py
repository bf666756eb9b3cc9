"""The generated kernels of reductions: one pass over rows, as CUDA text and as its NumPy twin, in the same order."""

import operator
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.common.layout import Shape, part_type
from dagpu.kernels.expression_text import safe_name
from dagpu.kernels.generated_launch import (
    generated_kernel,
    number_input,
    output,
    tensor_input,
)
from dagpu.kernels.numpy_operations import Array, complex_factor
from dagpu.kernels.numpy_twin import (
    NBYTES,
    SCRATCH,
    Bytes,
    ElementBlocks,
    GroupedBlocks,
    in_groups,
    shaped,
    until_cancelled,
)
from dagpu.kernels.operations import combined_text, helper_texts, memory_type, register_type, store_text
from dagpu.kernels.reduction_order import (
    COUNTED,
    QUICK,
    STEPS,
    THREADS,
    ReductionOrder,
    RowWalk,
    finish_text,
    identity,
    identity_text,
    number_type,
    result_type,
    start_text,
)
from dagpu.kernels.row_elements import (
    Elements,
    array_elements,
)
from dagpu.ops.kernel_spec import KernelSpec, Param

# ---- one pass, as CUDA text

TEXT: Final = """\
__global__ void {name}(Tile<{out}, 2> out{formals}) {{
{early}{head}    {number} found[{count}] = {{{identities}}};
    if (mine) {{
{body}    }}
{fold}    if (mine && lane == 0) {{
{results}    }}
}}
"""
SQUARE: Final = """\
template <class T> __device__ __forceinline__ T square(T x) { return x * x; }
template <class T> __device__ __forceinline__ T square(dagpu::complex<T> x) {
    return x.real * x.real + x.imag * x.imag;
}
"""


@cache
def reduction_kernel(
    name: str, dtype: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, first: bool, last: bool
) -> KernelSpec:
    """Return the kernel of one pass: `out[row, span]` of shape (rows, spans) from the input's rows.

    `dtype` is the element type of the reduction's input. The first pass reads elements of it, the last one writes
    elements of the result's type; what lies between them has the type in which numbers are combined.
    """
    number = number_type(name, dtype)
    source = dtype if first else number
    target = result_type(name, dtype) if last else number
    params = [output("out", target, 2), tensor_input("x", source, len(reduced)), *count_params(name, number, last)]
    kernel, elements = safe_name(name), array_elements("x", source, len(reduced))
    text = pass_text(kernel, name, elements, (number, target), reduced, order, (first, last))
    twin = pass_twin(name, number, reduced, order, (first, last))
    place = (reduction_kernel.__wrapped__.__code__, 0)
    return generated_kernel(kernel, params, text, twin, place, block=(THREADS,), early_reads=None if first else ())


def count_params(name: str, number: "np.dtype[Any]", last: bool) -> list[Param]:
    """Return the parameter for the count by which the last pass of a mean divides."""
    return [number_input("count", part_type(number), name)] if last and STEPS[name].finish in COUNTED else []


def pass_text(
    kernel: str,
    name: str,
    elements: Elements,
    types: "tuple[np.dtype[Any], np.dtype[Any]]",
    reduced: tuple[bool, ...],
    order: ReductionOrder,
    ends: tuple[bool, bool],
) -> str:
    """Return the text of a pass of the reduction `name`, as a kernel of the name `kernel`. `types` are those in which
    numbers are combined and of the output; `ends` says whether this is the first pass, and the last."""
    (number, target), step = types, STEPS[name]
    register = register_type(number)
    walk = RowWalk(order, reduced, elements.operands)
    start, finish = step.start if ends[0] else "itself", step.finish if ends[1] else "itself"
    helpers: set[str] = set(elements.helpers)

    def combined(a: str, b: str) -> str:
        text = combined_text(step.operation, number, (a, b))
        helpers.update(text.helpers)
        return text.text

    def visit(values: Sequence[str], _: str) -> list[str]:
        started = start_text(start, "next")
        return [
            f"const {register_type(elements.dtype)} next = {elements.value(values)};",
            f"found[n] = {combined('found[n]', f'({started})' if start == 'test' else started)};",
        ]

    def join(names: Sequence[str], a: str, b: str) -> str:
        return f"{names[0]}[{a}] = {combined(f'{names[0]}[{a}]', f'{names[0]}[{b}]')};"

    body, fold = walk.body(visit), walk.fold({"found": register}, join)
    results = []
    for n in range(order.beside if order.across else 1):
        result = store_text(target, finish_text(finish, f"all_found[{walk.result(n)}]", number))
        guard = f"if (row + {n} < out.tile_extent(0)) " if order.across else ""
        results.append(f"        {guard}out(out.origin(0) + row + {n}, out.origin(1)) = {result};\n")
    square = SQUARE if start == "square" else ""
    return f"{helper_texts(helpers)}{square}{elements.functions}" + TEXT.format(
        name=kernel,
        out=memory_type(target),
        formals=f"{elements.formals}, {register_type(part_type(number))} count"
        if finish in COUNTED
        else elements.formals,
        early=early_text(*ends),
        head=walk.head(),
        number=register,
        count=order.beside,
        identities=", ".join([identity_text(step.operation, number)] * order.beside),
        body=body,
        fold=fold,
        results="".join(results),
    )


def early_text(first: bool, last: bool) -> str:
    """Return the text by which the second pass starts in a graph while the first one ends: its blocks wait for it."""
    ahead = "" if last else "    launch_dependents();\n"
    return ahead if first else f"{ahead}    wait_for_inputs();\n"


# ---- its NumPy twin, with the bits of the text
#
# Sums and products of floats follow the order of the kernel. Whatever has the same bits in any order is left to NumPy,
# which has a faster one: smallest and largest elements, tests, and the numbers of integers, which wrap.


@cache
def _groups(reduced: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the group of each axis of an input, that of the reduced ones before that of the others."""
    return tuple([int(not kind) for kind in reduced])


def rows_of(x: Array | ElementBlocks, reduced: tuple[bool, ...]) -> Array | GroupedBlocks:
    """Return an input as an array of shape (length of a row, rows), or as what reads blocks of it."""
    return in_groups(x, _groups(reduced), 2)


def pass_twin(
    name: str, number: "np.dtype[Any]", reduced: tuple[bool, ...], order: ReductionOrder, ends: tuple[bool, bool]
) -> Callable[..., None]:
    """Return the NumPy twin of a pass: `body(out, x, count=None)`. `ends` says whether it is the first pass, and the
    last."""
    step = STEPS[name]
    start, finish = step.start if ends[0] else "itself", step.finish if ends[1] else "itself"
    if step.operation in ("add", "multiply") and number.kind in "fc":
        products: Any = PRODUCTS if number.kind == "c" else np.multiply
        combine = np.add if step.operation == "add" else products
        does = Combination(combine, identity(step.operation, number), start == "square")
        in_spans = partial(reduce_in_order, does, order)
    else:
        in_spans = partial(_in_any_order, step.operation, start == "test", order.span)

    def body(out: Any, x: Any, count: Any = None) -> None:
        rows = rows_of(x, reduced)
        if out.dtype == number and finish == "itself":
            in_spans(rows, out)
            return
        found = np.empty(out.shape, number)
        in_spans(rows, found)
        if finish in COUNTED:
            part = part_type(number)
            np.divide(found.view(part), part.type(count), out=found.view(part))
        if finish in ("sqrt", "root"):
            np.sqrt(found, out=found)
        np.copyto(out, found, casting="unsafe")

    return body


# ---- in any order
LARGE: Final = 1 << 22
"""The number of elements that NumPy reduces at a time, after which a cancelled run stops. Elements that have to be
converted first are so in smaller parts."""

_WHOLE: Final[dict[str, "np.ufunc"]] = {
    "add": np.add, "multiply": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "bitwise_or": np.logical_or, "bitwise_and": np.logical_and,
}  # fmt: skip


def _in_any_order(operation: str, test: bool, span: int, rows: Array | GroupedBlocks, found: Array) -> None:
    """Reduce rows of shape (length, rows) to the numbers of their spans, of shape (rows, spans). With `test`, or for
    bools, an element counts as true unless it is 0."""
    length, total = rows.shape
    in_memory = isinstance(rows, np.ndarray) and (test or rows.dtype == found.dtype)
    size = LARGE if in_memory else NBYTES // found.itemsize
    for elements, chosen, spans in until_cancelled(parts_of(span, length, total, 0, size)):
        target = found[chosen, spans].T
        _reduce_whole(operation, test, rows[elements, chosen].reshape(len(target), -1, target.shape[1]), target)


def _reduce_whole(operation: str, test: bool, block: Array, found: Array) -> None:
    """Reduce elements of shape (spans, elements, rows) to (spans, rows)."""
    function = _WHOLE[operation]
    if test:
        function.reduce(block, 1, None, found)
        return
    numbers = block.astype(found.dtype, copy=False)
    function.reduce(numbers, 1, found.dtype, found)
    if found.dtype.kind == "f" and np.count_nonzero(found) < found.size:
        # NumPy leaves open which of two zeros it gives. Among whole numbers with the same bits, -0 is the lowest, other
        # negative numbers follow it, and 0 is the lowest of all others.
        whole, zeros = function.reduce(numbers.view(f"i{numbers.itemsize}"), 1), found == 0
        found[zeros] = np.where(whole[zeros] < 0, found.dtype.type(-0.0), found.dtype.type(0))


# ---- sums and products of rows of floats by NumPy
#
# NumPy combines numbers one after the other along each axis but that of its inner loop, along which it adds them in
# pairs. That is the axis of the nearest neighbours in memory, so it must not be the one that is reduced. Columns are
# nearer to each other than the elements of one, unless there is a single column.
#
# A call takes one or two microseconds, and each of its inner loops some ten nanoseconds, beside the work. So the calls
# are few, and their inner loops are long.


SMALL: Final = 1 << 16
"""The number of elements up to which NumPy makes the arrays between two calls: the C library has such memory at
hand."""

FEW: Final = 16
"""The numbers of a row that are combined one by one, which takes less time than calls for arrays of them."""

LOOPS: Final = 256
"""The loops of NumPy over few columns from which on it takes less time to copy the columns of all rows side by side."""

Taken: TypeAlias = tuple[Bytes, ...]
"""Three arrays of the thread, or none: then NumPy makes arrays."""


@final
class ComplexProducts:
    """Multiplies complex numbers as the CUDA text of `combined_text` does. It has the part of a ufunc that is used."""

    def __call__(self, a: Any, b: Any, out: Array | None = None) -> Any:
        return complex_factor(a, b, out)

    def reduce(self, block: Array, axis: int, _dtype: None, out: Array | None, *, initial: None) -> Array:
        """Multiply along an axis, one after the other. The block has an element along it."""
        del initial
        lines = np.moveaxis(block, axis, 0)
        found: Array = np.array(lines[0]) if out is None else out
        found[...] = lines[0]
        for line in lines[1:]:
            self(found, line, found)
        return found

    def accumulate(self, numbers: Array) -> Array:
        """Return the products of the first numbers of one axis; only the last of them is right."""
        last: Array = self.reduce(numbers, 0, None, None, initial=None)[None]
        return last


PRODUCTS: Final = ComplexProducts()


@final
class Combination(NamedTuple):
    """What is done with the elements of rows."""

    combine: "np.ufunc | ComplexProducts"
    """Adds or multiplies."""
    nothing: Any
    """The number that changes no other, of the type in which numbers are combined."""
    squared: bool = False
    """True if elements are squared first."""

    def numbers(self, elements: Array) -> Array:
        """Return the numbers that elements become."""
        dtype = self.nothing.dtype
        if self.squared and elements.dtype.kind == "c":
            parts: Any = elements
            sizes: Array = np.square(parts.real) + np.square(parts.imag)
            return sizes
        found = elements if elements.dtype == dtype else elements.astype(dtype)
        return np.square(found) if self.squared else found

    def along(self, axis: int, block: Array, out: Array | None = None) -> Array:
        """Combine numbers along an axis. Along another one there are two or more, which are nearer to each other."""
        # Without an initial None sums would begin with +0, which is not neutral for -0.
        found: Array = self.combine.reduce(block, axis, None, out, initial=None)
        return found


def reduce_in_order(does: Combination, order: ReductionOrder, rows: Array | GroupedBlocks, found: Array) -> None:
    """Reduce elements of shape (length, rows) to the numbers of their spans, of shape (rows, spans), in parts."""
    (length, total), (_, count), span = rows.shape, found.shape, order.span
    if total == count == 1 and length <= FEW:
        found[0, 0] = _one_by_one(does, order, rows[:, :])
        return
    reduce_part, taken = _reduce_across if order.across else _reduce_along, tuple[Bytes, ...]()
    if length * total > SMALL:
        taken = SCRATCH.take(), SCRATCH.take(), SCRATCH.take()
    elif count == 1 or (length == count * span and (order.across or total == 1)):
        reduce_part(does, order, does.numbers(rows[:, :]), taken, found)
        return
    for elements, chosen, spans in until_cancelled(parts_of(span, length, total, *_sizes(does, order, rows))):
        reduce_part(does, order, does.numbers(rows[elements, chosen]), taken, found[chosen, spans])
    for each in taken:
        SCRATCH.give_back(each)


def _one_by_one(does: Combination, order: ReductionOrder, rows: Array) -> Any:
    """Reduce a few elements, of shape (length, 1)."""
    # a ufunc takes six times as long for two scalars
    quick: dict[Any, Any] = {np.add: operator.add, np.multiply: operator.mul}
    both = quick.get(does.combine, does.combine)
    numbers, left = list(does.numbers(rows[:, 0])), order.width
    for factor in (1, *order.folds):
        left //= factor
        found = numbers[:left]
        for at in range(left, len(numbers)):
            found[at % left] = both(found[at % left], numbers[at])
        numbers = found
    return numbers[0]


def _sizes(does: Combination, order: ReductionOrder, rows: Array | GroupedBlocks) -> tuple[int, int]:
    """Return the most rows side by side and the number of elements of a part of the rows. What is copied of it, and the
    numbers of its columns, fit in an array of the thread."""
    room = NBYTES // does.nothing.itemsize
    if not isinstance(rows, np.ndarray) or does.squared or rows.dtype != does.nothing.dtype:
        return max(4, room // min(order.span, len(rows))) if order.across else 0, room
    many = max(4, room // order.width) if order.across else 0
    if order.width <= QUICK and not order.across:
        return many, room
    return many, room * max(1, min(order.each, len(rows) // order.width))


@lru_cache(maxsize=256)
def parts_of(span: int, length: int, total: int, many: int, size: int) -> list[tuple[slice, slice, slice]]:
    """Return the parts of rows, each of about `size` elements, as slices of the elements, of the rows and of the spans.

    A part has whole spans, or one that is cut off, of up to `many` rows side by side. If that is 0, it has several
    spans of one row, or one span of several rows.
    """
    full = length // span
    columns = many or (1 if full > total else max(1, size // min(length, span)))
    count = -(-total // columns)  # of equal size: neighbours that are reduced together are two at least
    step = max(1, size // (span * min(total, columns))) if many or columns == 1 else 1
    found: list[tuple[slice, slice, slice]] = []
    for n in range(count):
        chosen = slice(n * total // count, (n + 1) * total // count)
        for begin in range(0, full, step):
            end = min(full, begin + step)
            found.append((slice(begin * span, end * span), chosen, slice(begin, end)))
        if full * span < length:
            found.append((slice(full * span, length), chosen, slice(full, full + 1)))
    return found


def _room(taken: Taken, which: int, shape: Shape, dtype: "np.dtype[Any]") -> Array | None:
    """Return an array of this shape over one that has been taken; None if NumPy makes it."""
    return shaped(taken[which], shape, dtype) if taken else None


# ---- rows side by side
def _reduce_across(does: Combination, order: ReductionOrder, numbers: Array, taken: Taken, target: Array) -> None:
    """Reduce numbers of shape (length, rows), of two rows or more that are neighbours, to (rows, spans)."""
    (length, rows), spans, left, dtype = numbers.shape, target.shape[1], order.width, numbers.dtype
    each = length // (spans * left)
    whole = spans * each * left
    if each:
        block = numbers[:whole].reshape(spans, each, left, rows)
        if abs(block.strides[3]) > abs(block.strides[1]):
            block = np.ascontiguousarray(block)
        found = does.along(1, block, _room(taken, 0, (spans, left, rows), dtype))
        if whole < length:
            first = found[0, : length - whole]
            does.combine(first, numbers[whole:], first)
    else:
        found = np.full((1, left, rows), does.nothing)
        found[0, :length] = numbers
    which = 0
    for factor in order.folds:
        left, which = left // factor, 1 - which
        room = target.T if left == 1 else _room(taken, which, (spans, left * rows), dtype)
        found = does.along(1, found.reshape(spans, factor, left * rows), room)


# ---- rows one after the other
def _reduce_along(does: Combination, order: ReductionOrder, numbers: Array, taken: Taken, target: Array) -> None:
    """Reduce numbers of shape (length, rows), whose columns are neighbours, to (rows, spans), of which one is 1."""
    width, folds, count = order.width, list(order.folds), target.size
    length = len(numbers) if target.shape[1] == 1 else order.span
    each, rest = divmod(length, width)
    lines = numbers.T.reshape(count, length)
    if lines.strides[1] != lines.itemsize:
        lines = np.ascontiguousarray(lines)
    if each:
        columns = reduce_lines(does, lines[:, : length - rest].reshape(count, each, width), taken, (0, 1))
    else:
        columns, rest = np.full((count, width), does.nothing), 0
        columns[:, :length] = lines
    if width > QUICK:
        _add_rest(does, columns, lines, rest)
        columns, rest = reduce_lines(does, columns.reshape(count, folds.pop(0), QUICK), taken, (0, 2)), 0
    turned = columns.T if count == 1 else _copied(columns.T, taken, 0)
    _add_rest(does, turned.T, lines, rest)
    for factor in folds[:-1]:
        turned = does.along(0, turned.reshape(factor, -1))
    if count == 1:
        target[0, 0] = does.combine.accumulate(turned.reshape(-1))[-1]
    else:
        does.along(0, turned.reshape(folds[-1], *target.shape), target)


def _add_rest(does: Combination, columns: Array, lines: Array, rest: int) -> None:
    """Combine the first columns with the last elements of lines, which do not fill the columns."""
    if rest:
        first = columns.T[:rest]
        does.combine(first, lines.T[-rest:], first)


def reduce_lines(does: Combination, block: Array, taken: Taken = (), which: tuple[int, int] = (0, 1)) -> Array:
    """Reduce numbers of shape (lines, each, columns), whose columns lie side by side, to (lines, columns). `which` of
    the arrays of the thread have room for a copy and for the result."""
    lines, each, columns = block.shape
    if columns > QUICK or lines * each < LOOPS:
        return does.along(1, block, _room(taken, which[1], (lines, columns), block.dtype))
    whole = block.view(np.dtype((np.void, columns * block.itemsize)))
    packed = _copied(whole[..., 0].T, taken, which[0]).view(block.dtype)
    return does.along(0, packed, _room(taken, which[1], (lines * columns,), block.dtype)).reshape(lines, columns)


def _copied(block: Array, taken: Taken, which: int) -> Array:
    """Return a contiguous copy."""
    room = _room(taken, which, block.shape, block.dtype)
    if room is None:
        return np.ascontiguousarray(block)
    np.copyto(room, block)
    return room
