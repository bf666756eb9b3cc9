"""The NumPy twin of an expression's kernel, which is its host body: the same operations in the same order.

It works on parts of about `PART_NBYTES` of the output, so that what lies between two operations stays in the
processor's cache, in the output itself or in arrays that the thread keeps.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from math import prod
from typing import Any, Final, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.layout import Shape, as_truth
from dagpu.kernels.element import Step, TracedExpression
from dagpu.kernels.expression_text import ArgumentPattern
from dagpu.kernels.numpy_operations import Array, NumpyFunction, cast_function, numpy_function, where, writes_result
from dagpu.kernels.operations import is_half, register_dtype

# ---- blocks


Box: TypeAlias = tuple[slice, ...]
"""One slice for each axis."""

WHOLE: Final = 1 << 16
"""The number of elements up to which they are in memory at once."""


@final
class ElementBlocks:
    """Elements of a shape, which `read(box)` returns for a box of them, in an array of the box's shape."""

    def __init__(self, shape: Shape, dtype: "np.dtype[Any]", read: Callable[[Box], Array]) -> None:
        self.shape: Final = shape
        self.dtype: Final = dtype
        self.read: Final = read


@final
class GroupedBlocks:
    """Elements with one axis for each group of their axes. A tuple of slices, one for each group, reads a block."""

    def __init__(self, elements: ElementBlocks, groups: Sequence[int], count: int) -> None:
        self._elements = elements
        self._axes = [[axis for axis, own in enumerate(groups) if own == group] for group in range(count)]
        self._order = [axis for axes in self._axes for axis in axes]
        self._shapes = [tuple([elements.shape[axis] for axis in axes]) for axes in self._axes]
        self.shape: Final = tuple(map(prod, self._shapes))
        self.dtype: Final = elements.dtype
        # in memory, elements along the last axis are neighbours
        self._inward = sorted(range(count), key=lambda group: max(self._axes[group], default=-1))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, block: tuple[slice, ...]) -> Array:
        ranges = [range(*cut.indices(extent)) for cut, extent in zip(block, self.shape, strict=True)]
        pieces = [boxes_of(shape, each.start, each.stop) for shape, each in zip(self._shapes, ranges, strict=True)]
        if all(len(each) == 1 for each in pieces):
            return self._read([each[0] for each in pieces])
        extents = [len(each) for each in ranges]
        made: Array = np.empty([extents[group] for group in self._inward], self.dtype)
        found = made.transpose([self._inward.index(group) for group in range(len(extents))])
        starts = [[0] * len(each) for each in pieces]
        for group, each in enumerate(pieces):
            for n in range(1, len(each)):
                starts[group][n] = starts[group][n - 1] + _size(each[n - 1])
        for chosen in product(*[range(len(each)) for each in pieces]):
            boxes = [pieces[group][n] for group, n in enumerate(chosen)]
            place = [
                slice(starts[group][n], starts[group][n] + _size(pieces[group][n])) for group, n in enumerate(chosen)
            ]
            found[tuple(place)] = self._read(boxes)
        return found

    def _read(self, boxes: Sequence[Box]) -> Array:
        """Return the elements of a box in each group."""
        box = [slice(0)] * len(self._order)
        for axes, cuts in zip(self._axes, boxes, strict=True):
            for axis, cut in zip(axes, cuts, strict=True):
                box[axis] = cut
        read = self._elements.read(tuple(box))
        return read.transpose(self._order).reshape([_size(cuts) for cuts in boxes])


def _size(box: Box) -> int:
    return prod([cut.stop - cut.start for cut in box])


def boxes_of(shape: Shape, start: int, stop: int) -> list[Box]:
    """Return the boxes that make up elements `start` to `stop` of an array in C order, in this order. `stop` is above
    `start`."""
    if not shape:
        return [()]
    inner, rest = prod(shape[1:]), shape[1:]
    first, last = start // inner, (stop - 1) // inner
    if first == last:
        within = boxes_of(rest, start - first * inner, stop - first * inner)
        return [(slice(first, first + 1), *box) for box in within]
    found: list[Box] = []
    if start > first * inner:
        found += [(slice(first, first + 1), *box) for box in boxes_of(rest, start - first * inner, inner)]
        first += 1
    end = stop // inner
    if end > first:
        found.append((slice(first, end), *[slice(0, extent) for extent in rest]))
    if stop > end * inner:
        found += [(slice(end, end + 1), *box) for box in boxes_of(rest, 0, stop - end * inner)]
    return found


def in_groups(x: "Array | ElementBlocks", groups: Sequence[int], count: int) -> "Array | GroupedBlocks":
    """Return elements with one axis for each of `count` groups of axes: an array where that takes no copy or they are
    few."""
    if isinstance(x, ElementBlocks):
        return GroupedBlocks(x, groups, count)
    axes = [axis for group in range(count) for axis in range(x.ndim) if groups[axis] == group]
    shape = [prod([x.shape[axis] for axis in range(x.ndim) if groups[axis] == group]) for group in range(count)]
    turned = x.transpose(axes)
    if x.size <= WHOLE:
        return turned.reshape(shape)
    try:
        return turned.reshape(shape, copy=False)
    except ValueError:
        return GroupedBlocks(ElementBlocks(x.shape, x.dtype, x.__getitem__), groups, count)


# ---- cancelled parts
#
# Lets a cancelled run end amid a long host body: one that dagpu has made works in parts, and stops between two.

_T = TypeVar("_T")


def _never() -> bool:
    return False


@final
class _Run(threading.local):
    """The run whose host body this thread executes."""

    def __init__(self) -> None:
        self.is_cancelled: Callable[[], bool] = _never


_run = _Run()


@contextmanager
def cancelled_by(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Bodies that are called in the `with` block stop if this function returns True."""
    before, _run.is_cancelled = _run.is_cancelled, is_cancelled
    try:
        yield
    finally:
        _run.is_cancelled = before


def until_cancelled(parts: Iterable[_T]) -> Iterator[_T]:
    """Yield the parts of a body's work, and stop if its run is cancelled. What the body has not written then is
    discarded with the run."""
    is_cancelled = _run.is_cancelled
    for part in parts:
        if is_cancelled():
            return
        yield part


# ---- scratch arrays
#
# Arrays for what NumPy twins compute on their way, which a thread keeps for its next call.
#
# The C library gives freed memory of such sizes back to the system. An array that is new for each step would be cleared
# by the system at each first touch, which takes longer than the step.

Bytes: TypeAlias = NDArray[np.uint8]

NBYTES: Final = 1 << 19
"""The size of an array that is kept; the processor's own cache is about as large."""
KEPT: Final = 4
"""The most arrays that a thread keeps."""


@final
class ScratchArrays(threading.local):
    """The free arrays of this thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def __reduce__(self) -> str:
        """A function that is sent to another process uses the arrays there."""
        return "SCRATCH"

    def take(self) -> Bytes:
        """Return `NBYTES` bytes that nothing else uses. Without `give_back` they are freed with the last reference."""
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(NBYTES, np.uint8)

    def give_back(self, taken: Bytes) -> None:
        """Keep an array that has been taken. No view of it is used any more."""
        if len(self._free) < KEPT:
            self._free.append(taken)


SCRATCH: Final = ScratchArrays()


def shaped(taken: Bytes, shape: Shape, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Return an array over bytes that have been taken; a new one if they are too few."""
    nbytes = prod(shape) * dtype.itemsize
    return taken[:nbytes].view(dtype).reshape(shape) if nbytes <= NBYTES else np.empty(shape, dtype)


# ---- the twin


PART: Final = 1 << 16
"""The number of elements that twins of functions of arrays compute at a time."""
PART_NBYTES: Final = NBYTES
"""The bytes that an expression's twin computes at a time: those of an array that is kept."""
FEW: Final = 1 << 12
"""The number of elements up to which NumPy makes an array for each step: the C library has such memory at hand."""


def numpy_twin(expression: TracedExpression, patterns: Sequence[ArgumentPattern], rank: int) -> Callable[..., None]:
    """Return the host body of the kernel for arguments of these patterns, and outputs of this rank, one for each
    result: `body(*outs, *arguments)`."""
    indices = [_index(pattern.axes, rank) if pattern.form.is_input else None for pattern in patterns]
    every = tuple(range(rank))
    whole = [n for n, p in enumerate(patterns) if p.form.is_written or (p.form.is_input and p.axes == every)]
    evaluate, itemsize = evaluator(expression, whole if rank else ())  # NumPy makes scalars of arrays without axes
    each = list(zip([pattern.form for pattern in patterns], expression.dtypes, indices, strict=True))
    count = len(expression.results)

    def body(out: Any, *arguments: Any) -> None:
        outs, operands = [out, *arguments[: count - 1]], list[Any]()
        place, written = count - 1, 0
        for form, dtype, index in each:
            if form.is_written:
                operands.append(outs[written])
                written += 1
                continue
            given = arguments[place]
            place += 1
            if form.is_tensor:
                operands.append(given if index is None else given[index])
            else:
                operands.append(dtype.type(given))
        if out.size * itemsize <= PART_NBYTES:
            evaluate(*outs, *operands)
            return
        for part in until_cancelled(part_slices(out.shape, itemsize)):
            evaluate(*[each[(*part, ...)] for each in outs], *[_cut(each, part) for each in operands])

    return body


def evaluator(expression: TracedExpression, whole: Collection[int]) -> tuple[Callable[..., None], int]:
    """Return the function `f(*outs, *operands)` that computes an expression of arrays and numbers, and writes an array
    for each result; and the bytes of an element of the widest array that it writes.

    It is Python text with one call of NumPy for each step. `whole` are the operands that are arrays of the output's
    shape. A step of one writes its result over that of an earlier step, which no later step needs, or into the output,
    or into an array that the thread keeps. Any output may be in the memory of an operand, so of several results none is
    written to its output before all operands have been read.
    """
    names: dict[str, Any] = {"copyto": np.copyto, "wide": np.float32, "truth": as_truth}
    lines, texts = list[str](), list[str]()
    steps, last = expression.steps, len(expression.steps) - 1
    several = len(expression.results) > 1
    outs = [f"out{number}" for number in range(len(expression.results))] if several else ["out"]
    results = dict(zip(reversed(expression.results), reversed(outs), strict=True)) if several else {}
    targets = _Targets(steps, whole, expression)
    for number, step in enumerate(steps):
        function = _function(step, steps)
        text = f"v{number}"
        if step.operation == "parameter":
            text = f"x{step.value}"
            if is_half(step.dtype) or step.dtype.kind == "b":
                lines.append(f"v{number} = " + (f"truth({text})" if step.dtype.kind == "b" else f"{text}.astype(wide)"))
                text = f"v{number}"
            elif number in results:
                lines.append(f"v{number} = {text}.copy()")
                text = f"v{number}"
        elif function is None:
            names[text] = register_dtype(step.dtype).type(step.value)
        else:
            names[f"f{number}"] = function
            given = [texts[operand] for operand in step.operands]
            if number == last and not several and not is_half(expression.dtype):
                lines.append(f"f{number}({', '.join([*given, 'out=out'])})")
                break
            if number in results and number >= targets.last_read and not is_half(step.dtype):
                texts.append(results[number])
                lines.append(f"f{number}({', '.join([*given, f'out={texts[number]}'])})")
                continue
            target = targets.of_step(number, writes_result(function))
            lines.append(f"{text} = f{number}({', '.join(given if target is None else [*given, f'out={target}'])})")
        texts.append(text)
    else:
        made = [texts[number] for number in expression.results]
        copied = [(out, text) for out, text in zip(outs, made, strict=True) if out != text]
        lines += [f"copyto({out}, {text}, casting='unsafe')" for out, text in copied]
    formals = ", ".join([*outs, *[f"x{n}" for n in range(len(expression.dtypes))], *targets.names])
    exec(f"def evaluate({formals}):\n" + "".join([f"    {line}\n" for line in lines]), names)
    itemsize = max([dtype.itemsize for dtype in [*expression.result_dtypes, *targets.dtypes]])
    return _with_scratch(names["evaluate"], targets.dtypes) if targets.dtypes else names["evaluate"], itemsize


@final
class _Targets:
    """The arrays into which the steps of an evaluator write: as few as possible, of these element types.

    Those of the thread are `s0`, `s1`, ... in the evaluator's text.
    """

    def __init__(self, steps: Sequence[Step], whole: Collection[int], expression: TracedExpression) -> None:
        self.dtypes: list[np.dtype[Any]] = []
        self._steps = steps
        self._last_use = {operand: number for number, step in enumerate(steps) for operand in step.operands}
        several = len(expression.results) > 1
        self._output = [] if several else [expression.dtype]
        """The element type of the only output."""
        parameters = {number for number, step in enumerate(steps) if step.operation == "parameter"}
        self.last_read: Final = max([self._last_use.get(number, number) for number in parameters], default=-1)
        """The last step that reads an operand. The output may be in the memory of one, so no earlier step writes it."""
        if several:  # what has no place in its output yet is kept until the end
            self._last_use |= dict.fromkeys(expression.results, len(steps))
        self._shaped = {n for n, step in enumerate(steps) if step.operation == "parameter" and step.value in whole}
        """The steps whose results have the shape of the output."""
        self._held: dict[int, int] = {}
        """For the steps whose results are in an array of the thread, its number; -1 for the output."""

    @property
    def names(self) -> list[str]:
        return [f"s{number}" for number in range(len(self.dtypes))]

    def of_step(self, number: int, writes: bool) -> str | None:
        """Return the name of the array for the result of a step; None if NumPy has to make one, because the
        function of the step `writes` into none. Steps come in order."""
        step = self._steps[number]
        if self._shaped.isdisjoint(step.operands):
            return None
        self._shaped.add(number)
        if not writes:
            return None
        used = {held for before, held in self._held.items() if self._last_use[before] > number}
        dtype = register_dtype(step.dtype)
        if number >= self.last_read and dtype in self._output and -1 not in used:
            self._held[number] = -1
            return "out"
        free = [held for held, kept in enumerate(self.dtypes) if kept == dtype and held not in used]
        if not free:
            free = [len(self.dtypes)]
            self.dtypes.append(dtype)
        self._held[number] = free[0]
        return f"s{free[0]}"


def _with_scratch(evaluate: Callable[..., None], dtypes: "Sequence[np.dtype[Any]]") -> Callable[..., None]:
    """Return an evaluator that passes arrays of the thread to another one, after its operands."""
    nothing = (None,) * len(dtypes)

    def evaluate_with_scratch(out: Array, *operands: Any) -> None:
        if out.size <= FEW:
            evaluate(out, *operands, *nothing)
            return
        taken = [SCRATCH.take() for _ in dtypes]
        evaluate(out, *operands, *[shaped(each, out.shape, dtype) for each, dtype in zip(taken, dtypes, strict=True)])
        for each in taken:
            SCRATCH.give_back(each)

    return evaluate_with_scratch


def _function(step: Step, steps: Sequence[Step]) -> NumpyFunction | None:
    """Return the function of a step; None for a parameter or a constant."""
    match step.operation:
        case "parameter" | "constant":
            return None
        case "where":
            return where
        case "cast":
            return cast_function(steps[step.operands[0]].dtype, step.dtype)
        case operation:
            return numpy_function(operation, steps[step.operands[0]].dtype, step.dtype)


# ---- parts of the output
def part_slices(shape: Shape, itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Yield the slices of parts that cover an array in C order, each of about `PART_NBYTES` or of one row."""
    most = max(1, PART_NBYTES // itemsize)
    if prod(shape) <= most:
        yield (slice(None),) * len(shape)
        return
    axis = next(a for a in range(len(shape)) if prod(shape[a + 1 :]) <= most)
    step = max(1, most // max(1, prod(shape[axis + 1 :])))
    rest = (slice(None),) * (len(shape) - axis - 1)
    for outer in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (*(slice(at, at + 1) for at in outer), slice(start, start + step), *rest)


@cache
def _index(axes: tuple[int, ...], rank: int) -> tuple[Any, ...] | None:
    """Return the index that puts the axes of an argument in the places of the output's; None if they are there.

    `axes` ascend. An axis of -1 has the extent 1, and the output has none for it.
    """
    if axes == tuple(range(rank)):
        return None
    own: list[Any] = [0 if axis < 0 else slice(None) for axis in axes]
    found: list[Any] = []
    done = 0
    for axis in range(rank):
        if axis in axes:
            until = axes.index(axis) + 1
            found += own[done:until]
            done = until
        else:
            found.append(None)
    return (*found, *own[done:], ...)


def _cut(x: Any, part: tuple[slice, ...]) -> Any:
    """Return the part of an argument that the part of the output needs; a number is needed whole."""
    if not isinstance(x, np.ndarray):
        return x
    cuts: list[Any] = [slice(None) if extent == 1 else cut for extent, cut in zip(x.shape, part, strict=True)]
    return x[(*cuts, ...)]  # the ellipsis keeps an array without axes an array
