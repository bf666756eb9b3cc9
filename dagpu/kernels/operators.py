"""Operators on ops and tensors: `x + y`, `-x`, `x < 2`.

An operator builds an op that has not become a kernel yet: a tree of operations over its *inputs*, which are the ops,
tensors and numbers that no operator made. An operator of such ops has the trees of them all. The trace of a run makes
one kernel of a tree, an expression, as soon as it knows the element types and the shapes of its inputs.

A tree ends at what is no operator, so the ops that it is made of are no results: a tree *folds* them.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

from dagpu.common.errors import KernelArgumentError, ShapeError
from dagpu.common.frozen import Slot, frozen
from dagpu.common.layout import FLOATING, Layout, c64, c128, contiguous_layout, f32, f64, i32, i64
from dagpu.common.places import Origin, describe
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import HANDLES, SharedTensor, TensorRef
from dagpu.handles.operators import OPERATE
from dagpu.handles.symbolic import SymbolicNumber
from dagpu.kernels.element import (
    REDUCE,
    Elem,
    Parameter,
    TracedExpression,
    constant,
    number_steps,
    operate,
    refuse_call_in_expression,
)
from dagpu.kernels.expression import Expression
from dagpu.kernels.expression_text import broadcast_shape
from dagpu.kernels.generated_launch import (
    AnyOp,
    check_tensors,
    is_number,
    known_layout,
    move_arguments,
    refused_type,
)
from dagpu.kernels.operations import DOMAINS, OPERATIONS, type_name
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import ByResults, Then, Value, Zip

MOST_OPERATORS: Final = 64
"""The most operators of one kernel. One more takes the results of the kernels of its operands."""
MOST_INPUTS: Final = 16
"""The most tensors and numbers of one kernel."""

MATMUL: Final = Slot[Callable[[Any, Any], AnyOp]]("dagpu.arrays")
"""The function of `x @ w`. It is a slot, because kernels cannot import the functions of arrays."""

Node: TypeAlias = tuple[Any, ...]
"""A node of a tree: the name of an operation, and the indices of its operands among the nodes before it; or an input:
("tensor", k) and ("source", k) for op number k, ("number", k), or ("constant", type, number) for an exponent."""

_INPUTS: Final = ("tensor", "source", "number", "constant")
_NUMBERS: Final = (int, float, complex, np.generic)


@final
class GivenNumber:
    """A number among the operands. It has an identity, by which two trees with one op in common have one number."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@final
@frozen
class Fusion:
    """The function of an op that operators made: it returns the op of one kernel for the inputs of the tree."""

    nodes: tuple[Node, ...]
    """The tree, each node after its operands, and equal ones once. The last one is the result."""
    origins: tuple[Origin, ...]
    """The place of each node in the user's code."""
    numbers: tuple[GivenNumber, ...]
    layouts: tuple[Layout | None, ...]
    """The layouts of the ops among the inputs, as far as they are known."""
    origin: Origin

    def __call__(self, results: tuple[Any, ...]) -> AnyOp:
        """Return the op of the kernel. `results` are those of the ops among the inputs, and the numbers."""
        layouts = [None if is_number(each) else known_layout(each) for each in results]
        types, _ = self.typed(tuple(layouts), results[len(self.layouts) :])
        made = expression_of(self.nodes, types, describe(self.origin), self.origin)
        return made.build(results, self.origin)

    def _accepted(self, name: str, operands: Sequence[int]) -> str:
        """Return the operation whose element types an operator takes: a whole power is made of products."""
        if name == "power":
            kind, *exponent = self.nodes[operands[1]]
            if kind == "constant" and exponent[0] == "int" and exponent[1] >= 0:
                return "multiply"
        return name

    def typed(self, layouts: tuple[Layout | None, ...], numbers: Sequence[Any]) -> tuple[tuple[Any, ...], Layout]:
        """Return the element type as which each input is passed, and the layout of the result.

        Raises:
            KernelArgumentError: an operator does not take elements of this type, they differ, or a number does not fit.
            ShapeError: the shapes do not broadcast.
        """
        key = self.nodes, layouts
        found = _TYPED.get(key)
        if found is None:
            if len(_TYPED) >= _MOST_KEPT:
                _TYPED.clear()
            found = _TYPED[key] = self._typed(layouts)
        for place, dtype, at in found.numbers:
            if not _surely_fits(numbers[place], dtype):
                _check_number(self.nodes[at][0], numbers[place], dtype, self.origins[at])
        return found.types, found.layout

    def _typed(self, layouts: tuple[Layout | None, ...]) -> "_Typed":
        ops = len(self.layouts)
        types: list[Any] = [None] * (ops + len(self.numbers))
        numbers: list[tuple[int, np.dtype[Any], int]] = []
        found: list[Any] = []
        for at, (node, origin) in enumerate(zip(self.nodes, self.origins, strict=True)):
            name, *operands = node
            if name in _INPUTS:
                layout = layouts[operands[0]] if name == "tensor" else None
                found.append(None if layout is None else layout.dtype)
                if layout is not None:
                    types[operands[0]] = layout.dtype
                continue
            dtype = _common_type(self._accepted(name, operands), [found[each] for each in operands], origin)
            for each in operands:
                kind, place, *value = self.nodes[each]
                # an op whose result is a number of the host has no layout
                if kind in ("number", "source") or (kind == "tensor" and layouts[place] is None):
                    at_place = place + (ops if kind == "number" else 0)
                    if types[at_place] not in (None, dtype):
                        raise _of_two_types(name, types[at_place], dtype, origin)
                    types[at_place] = dtype
                if kind == "number":
                    numbers.append((place, dtype, at))
                elif kind == "constant" and dtype not in FLOATING:
                    _check_number(name, value[0], dtype, origin)
            found.append(OPERATIONS[name].result_type(dtype))
        shapes = [layout.shape for layout in layouts[:ops] if layout is not None]
        shape = broadcast_shape(shapes)
        if shape is None:
            raise ShapeError(
                f"operators at {describe(self.origin)}: shapes {', '.join(map(str, shapes))} do not broadcast. Extents "
                "must be equal, or 1; reshape one: x.reshape((n, 1)), or x[:, None]."
            )
        return _Typed(tuple(types), contiguous_layout(shape, found[-1]), tuple(numbers))


class _Typed(NamedTuple):
    """A tree over inputs of known layouts."""

    types: tuple[Any, ...]
    """The element type as which each input is passed."""
    layout: Layout
    """The layout of the result."""
    numbers: "tuple[tuple[int, np.dtype[Any], int], ...]"
    """For each number its place, the type that has to hold it, and the node of the operator that takes it."""


_TYPED: Final[dict[tuple[tuple[Node, ...], tuple[Layout | None, ...]], _Typed]] = {}
_MOST_KEPT: Final = 4096


def _surely_fits(number: Any, dtype: "np.dtype[Any]") -> bool:
    """True for a plain number that every float type holds: most are, and `constant` takes 20 us."""
    return type(number) in (int, float) and dtype in FLOATING and -60_000 < number < 60_000


def _common_type(name: str, dtypes: "list[np.dtype[Any] | None]", origin: Origin) -> "np.dtype[Any]":
    """Return the one element type of the operands that are no numbers."""
    shown = f"{OPERATIONS[name].shown} at {describe(origin)}"
    known = list(dict.fromkeys(dtype for dtype in dtypes if dtype is not None))
    if not known:
        raise KernelArgumentError(
            f"{shown}: no operand is a tensor, nor an op whose result is one. Bring an array to the device, "
            "from_host(array); take one tensor of several, op.unzip(); compute with numbers in a function, "
            "op.map(lambda x: x + 1)."
        )
    if len(known) > 1:
        raise KernelArgumentError(
            f"{shown}: operands of {' and '.join(map(type_name, known))}. Element types are not converted: say "
            f"convert(t, {type_name(known[0])})."
        )
    if known[0] not in DOMAINS["any"]:
        raise refused_type(OPERATIONS[name].shown, origin, known[0])
    if known[0] not in DOMAINS[OPERATIONS[name].domain]:
        cures = {
            "divide": "Convert it, convert(t, f32), or divide whole numbers by //",
            "number": "Convert it first, convert(t, i32); for masks there are & | ^ ~",
            "real": "Convert it first, convert(t, i32); for masks there are & | ^ ~",
            "float": "Convert it first: convert(t, f32)",
            "int": "Convert it first: convert(t, i32)",
            "bits": "Compare it first, t > 0, or convert it: convert(t, i32)",
        }
        cure = cures.get(name) or cures.get(OPERATIONS[name].domain, "")
        if known[0].kind == "c":
            cure = "Compute with its parts, array.real(t) and array.imag(t), which are real"
        raise KernelArgumentError(f"{shown}: it does not take elements of {type_name(known[0])}. {cure}.")
    return known[0]


def _of_two_types(name: str, first: "np.dtype[Any]", second: "np.dtype[Any]", origin: Origin) -> KernelArgumentError:
    return KernelArgumentError(
        f"{OPERATIONS[name].shown} at {describe(origin)}: its number is of {type_name(second)}, as the tensor beside "
        f"it, and an operator of the same kernel takes it as one of {type_name(first)}. Give each a kernel of its own, "
        "by .shared() of the result of one of them: (x > n).shared() & (y > n)."
    )


def _check_number(name: str, number: Any, dtype: "np.dtype[Any]", origin: Origin) -> None:
    """Refuse a number that the element type of the tensor beside it cannot hold. The run checks that of an argument of
    a pipeline, which may be another one in each call."""
    if type(number) is SymbolicNumber:
        return
    try:
        constant(number, dtype, name)
    except TypeError:
        raise KernelArgumentError(
            f"{OPERATIONS[name].shown} at {describe(origin)}: the number {format_value(number)} does not fit "
            f"{type_name(dtype)}, the type of the tensor beside it. {_cure_of_number(name, number, dtype)}."
        ) from None


def _cure_of_number(name: str, number: Any, dtype: "np.dtype[Any]") -> str:
    """Return what makes an operator take a number that elements of this type cannot hold."""
    plain = number.item() if isinstance(number, np.generic) else number
    if isinstance(plain, bool):
        return f"Write it as a number: {int(plain)}"
    if dtype.kind == "b" and plain in (0, 1):
        return f"Write it as a truth value: {bool(plain)}"
    kinds: list[Any] = [i32, i64, f32, f64] if dtype.kind in "iub" and isinstance(plain, int) else [f32, f64]
    for each in map(np.dtype, [c64, c128] if dtype.kind == "c" or isinstance(plain, complex) else kinds):
        room = each.itemsize // (2 if each.kind == "c" and dtype.kind == "f" else 1)
        if each not in DOMAINS[OPERATIONS[name].domain] or (room < dtype.itemsize and dtype.kind not in "iu"):
            continue
        with suppress(TypeError):
            constant(number, each, name)
            return f"Convert that tensor first: convert(t, {type_name(each)})"
    return "Give one that it holds"


@lru_cache(maxsize=1024)
def expression_of(nodes: tuple[Node, ...], types: tuple[Any, ...], place: str, origin: Origin) -> Expression[..., Any]:
    """Return the expression of a tree for inputs of these element types, made once for its place in the code."""
    trace = object()
    inputs: list[Elem[Any]] = [Elem("parameter", dtype, (), Parameter(at, trace)) for at, dtype in enumerate(types)]
    ops = len(types) - sum(name == "number" for name, *_ in nodes)
    made: list[Any] = []
    for name, *operands in nodes:
        if name == "constant":
            made.append(operands[1])
        elif name in _INPUTS:
            made.append(inputs[operands[0] + (ops if name == "number" else 0)])
        elif name == "power":
            made.append(made[operands[0]] ** made[operands[1]])
        else:
            made.append(operate(name, *[made[each] for each in operands]))
    names = tuple([f"x{at}" for at in range(len(types))])
    steps, _ = number_steps(made[-1:], trace, "expression", place)
    return Expression(TracedExpression("expression", names, types, steps, place, True), origin)


# ---- building


class _Tree(NamedTuple):
    """The tree of an operator, made of those of its operands."""

    nodes: tuple[Node, ...]
    origins: tuple[tuple[int, int], ...]
    """For each node the operand that it is of, and its number there; (-1, -1) for the operator."""
    ops: tuple[int, ...]
    """Which ops of the operands, all in a row, the ops among the inputs are."""
    numbers: tuple[int, ...]
    """Likewise of the numbers."""

    @property
    def is_too_large(self) -> bool:
        operators = sum(name not in _INPUTS for name, *_ in self.nodes)
        return operators > MOST_OPERATORS or len(self.ops) + len(self.numbers) > MOST_INPUTS


@lru_cache(maxsize=_MOST_KEPT)
def _tree_of(
    name: str, parts: tuple[tuple[Node, ...], ...], op_ids: tuple[int, ...], number_ids: tuple[int, ...]
) -> _Tree:
    """Return the tree of an operator. `parts` are the trees of its operands; the ids say which of all their ops, and
    of all their numbers, are the same. A program builds few trees, and each of them often."""
    nodes: dict[Node, int] = {}
    origins: list[tuple[int, int]] = []
    ops, numbers = _Inputs(op_ids), _Inputs(number_ids)
    roots: list[int] = []
    for operand, part in enumerate(parts):
        at: list[int] = []
        for number, (kind, *rest) in enumerate(part):
            if kind == "constant":
                node: Node = (kind, *rest)
            elif kind in _INPUTS:
                node = kind, (numbers if kind == "number" else ops).place_of(rest[0])
            else:
                node = (kind, *[at[each] for each in rest])
            found = nodes.setdefault(node, len(nodes))
            if found == len(origins):
                origins.append((operand, number))
            at.append(found)
        roots.append(at[-1])
        ops.skip(part, ("tensor", "source"))
        numbers.skip(part, ("number",))
    nodes[name, *roots] = len(nodes)
    return _Tree(tuple(nodes), (*origins, (-1, -1)), tuple(ops.used), tuple(numbers.used))


@final
class _Inputs:
    """The inputs of one kind that a tree has, of all those of its operands."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self._ids = ids
        self._places: dict[int, int] = {}
        self._first = 0
        """The number of the operand's first input among those of all operands."""
        self.used: list[int] = []

    def place_of(self, number: int) -> int:
        """Return the place in the tree of an input by its number in that of the operand."""
        at = self._first + number
        place = self._places.setdefault(self._ids[at], len(self.used))
        if place == len(self.used):
            self.used.append(at)
        return place

    def skip(self, part: tuple[Node, ...], kinds: tuple[str, ...]) -> None:
        """Go on to the next operand."""
        self._first += len({rest[0] for kind, *rest in part if kind in kinds})


@final
class _Operands:
    """The operands of one operator, with the inputs of them all."""

    def __init__(self, operands: Sequence[Any], *, folds: bool) -> None:
        self.parts: list[tuple[Node, ...]] = []
        self.origins: list[tuple[Origin, ...] | None] = []
        """The places of the nodes of each operand; None for one that is an input itself."""
        self.ops: list[tuple[Any, Layout | None]] = []
        """The ops and handles among the inputs, with their layouts."""
        self.numbers: list[GivenNumber] = []
        self.folded: dict[int, AnyOp] = {}
        for operand in operands:
            self._add(operand, folds)

    def _add(self, operand: Any, folds: bool) -> None:
        fused = fusion_of(operand) if folds else None
        if fused is not None:
            f: Any = fused.f
            self.parts.append(f.nodes)
            self.origins.append(f.origins)
            self.ops += zip(operand.source.sources, f.layouts, strict=True)
            self.numbers += f.numbers
            for each in (*fused.folded, operand):
                self.folded[id(each)] = each
            return
        self.origins.append(None)
        if isinstance(operand, GivenNumber):
            self.numbers.append(operand)
            self.parts.append((("number", 0),))
        elif type(operand) is tuple:  # a constant
            self.parts.append((operand,))
        else:
            kind = "source" if is_number(operand) else "tensor"
            self.ops.append((operand, None if kind == "source" else known_layout(operand)))
            self.parts.append(((kind, 0),))

    def tree(self, name: str) -> _Tree:
        """Return the tree of an operator of these operands. A handle that does not move is one input, wherever it
        stands."""
        held = [
            op.content if type(op) is Value and type(op.content) in (SharedTensor, TensorRef) else op
            for op, _ in self.ops
        ]
        return _tree_of(name, tuple(self.parts), _pattern(held), _pattern(self.numbers))


def _pattern(objects: Sequence[object]) -> tuple[int, ...]:
    """Return a number for each object: the same for the same object."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(each), len(first)) for each in objects])


def fusion_of(op: Any) -> ByResults | None:
    """Return the function of an op that operators made; None for any other op or value."""
    f: Any = op.f if type(op) is Then else None
    return f if type(f) is ByResults and type(f.f) is Fusion else None


def apply_operator(name: str, operands: tuple[Any, ...], origin: Origin) -> Any:
    """Return the op of an operator; `NotImplemented` if an operand is neither a tensor nor an op nor a number.

    Raises:
        KernelArgumentError: an operand is an array of the host, a partition, or an element of an expression; or, where
            the layouts are known, an operator does not take elements of this type.
        MovedError: a handle has been moved before.
        ShapeError: the shapes are known, and do not broadcast.
    """
    if name == "matmul":
        return MATMUL.value(*operands)
    if operands[2:]:
        raise KernelArgumentError(f"pow() at {describe(origin)} has three arguments. Say x ** y % n.")
    if not all(map(_is_operand, operands)) and not _is_listed(name, operands):
        return NotImplemented
    shown = "operator " + ("abs()" if name == "absolute" else OPERATIONS[name].shown)
    if any(isinstance(each, Elem) for each in operands):
        refuse_call_in_expression(shown, origin, REDUCE)
    if all(map(is_number, operands)):
        raise KernelArgumentError(
            f"{shown} at {describe(origin)}: its operands are numbers alone. Compute with them in a function: "
            "op.map(lambda x: x + 1)."
        )
    unique = {id(each): each for each in operands}
    check_tensors("operator", ("x", "y"), tuple(unique.values()), origin, expression=shown)
    given = {key: GivenNumber(each) if _is_plain_number(each) else each for key, each in unique.items()}
    if name == "power" and type(operands[1]) in (int, float):  # an exponent is part of the kernel
        given[id(operands[1])] = ("constant", type(operands[1]).__name__, operands[1])
    chosen = [given[id(each)] for each in operands]
    taken = _Operands(chosen, folds=True)
    tree = taken.tree(name)
    if tree.is_too_large:
        taken = _Operands(chosen, folds=False)
        tree = taken.tree(name)
    own = taken.origins
    origins = tuple([origin if at < 0 else (own[at] or (origin,))[node] for at, node in tree.origins])
    numbers = tuple([taken.numbers[each] for each in tree.numbers])
    used = [taken.ops[each] for each in tree.ops]
    layouts = tuple([layout for _, layout in used])
    fusion = Fusion(tree.nodes, origins, numbers, layouts, origin)
    values, layout = tuple([each.value for each in numbers]), None
    if all(layout is not None or is_number(op) for op, layout in used):
        _, layout = fusion.typed(layouts, values)
    inputs = tuple([op for op, _ in used])
    handles = iter(move_arguments(shown, tuple([each for each in inputs if type(each) in HANDLES]), origin))
    ops = tuple([Value(next(handles), origin) if type(each) in HANDLES else each for each in inputs])
    made = ByResults(fusion, _text_of(fusion.nodes), tuple(taken.folded.values()), values, layout)
    return Then(Zip(ops, origin), made, origin)


def _is_plain_number(x: object) -> bool:
    return isinstance(x, _NUMBERS) or type(x) is SymbolicNumber


def _is_operand(x: object) -> bool:
    return isinstance(x, DeviceOp | Elem | np.ndarray) or type(x) in HANDLES or _is_plain_number(x)


def _is_listed(name: str, operands: tuple[Any, ...]) -> bool:
    """Return true if an operand is a list or a tuple, for which the check of the arguments has a cure. By `==` it may
    be compared with anything."""
    return name not in ("equal", "not_equal") and any(isinstance(each, list | tuple) for each in operands)


_MOST_TEXT: Final = 60


@lru_cache(maxsize=_MOST_KEPT)
def _text_of(nodes: tuple[Node, ...]) -> str:
    """Return a tree as it is written, with `a`, `b`, ... for its tensors, for pictures and messages."""
    texts: list[str] = []
    for name, *operands in nodes:
        inner = [texts[each] if name not in _INPUTS else "" for each in operands]
        inner = [f"({text})" if " " in text else text for text in inner]
        match name:
            case "tensor" | "source":
                text = "abcdefghijklmnop"[operands[0] % 16]
            case "number":
                text = "n"
            case "constant":
                text = str(operands[1])
            case "absolute":
                text = f"abs({texts[operands[0]]})"
            case "negative" | "invert" | "positive":
                text = ("+" if name == "positive" else OPERATIONS[name].shown) + inner[0]
            case _:
                text = f" {OPERATIONS[name].shown} ".join(inner)
        texts.append(text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}...")
    return texts[-1]


OPERATE.set(apply_operator)
