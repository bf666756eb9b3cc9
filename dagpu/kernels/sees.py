"""`Around`, `Here`, `Rows`, `Columns` and `Along`: what one tile of a kernel's output looks at in an input.

A declaration says for each axis of the input which part a tile may look at: its own extent along an axis of the output
with a margin, or all of it. So the tiles that a change of the input concerns follow from the declaration, and a feed
runs only these. Positions are those of the kernel's first output; parts outside the input are empty.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, final

from dagpu.common.frozen import plain
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.kernels.annotations import declaration_error
from dagpu.kernels.preprocessing import preprocess
from dagpu.ops.kernel_spec import AxisSight, Param, Sight


@final
@plain
class Here:
    """A tile looks at the elements of the input at its own place: the kernel is element-wise in this input."""


@final
class Around:
    """A tile looks at its own place in the input, and at a margin of elements around it.

    Args:
        margins: for each axis of the input the number of elements before and after the tile, 0 or more: `Around(3, 3)`
            for a stencil that reaches 3 rows and 3 columns far.
    """

    __slots__ = ("margins",)

    def __init__(self, *margins: int) -> None:
        self.margins = margins

    def __repr__(self) -> str:
        return f"Around({', '.join(map(repr, self.margins))})"


@final
@plain
class Rows:
    """A tile looks at the rows of the input that it has itself, and at all their columns: the left factor of a product.

    Along the first axis of the input it looks at its own extent along the first axis of the output; along the other
    axes of the input at everything.
    """


@final
@plain
class Columns:
    """A tile looks at the columns of the input that it has itself, and at all their rows: the right factor of a
    product.

    Along the last axis of the input it looks at its own extent along the last axis of the output; along the other axes
    of the input at everything.
    """


@final
@plain
class Along:
    """What a tile looks at along one axis of an input: its own extent along an axis of the output, with a margin.

    `sees={"x": (Along(1), Along(0))}` is a transpose, and `sees={"x": (Along(0), None)}` is `Rows()`.
    """

    axis: int
    """The axis of the output, counted from 0."""
    before: int = 0
    """The number of elements in front of the tile that it also looks at."""
    after: int = 0
    """The number of elements behind the tile that it also looks at."""


Sees: TypeAlias = Here | Around | Rows | Columns | tuple[Along | None, ...]
"""What a tile looks at in one input: one of the usual forms, or for each axis of the input an `Along`, or None for all
of that axis."""

_FORMS = "Here(), Around(3, 3), Rows(), Columns(), or for each axis of the input Along(axis) or None"
_PLACES = frozenset(("blockIdx", "gridDim"))


def sights_of(
    sees: object, params: Sequence[Param], cuda: str, abi: str, kernel: str, place: str
) -> tuple[Sight | None, ...] | None:
    """Check the argument `sees` of `@kernel`, and return the sight of each parameter; None if nothing is declared.

    `place` is the place of the declaration.

    Raises:
        KernelArgumentError: a name is not that of an input, a declaration does not fit the ranks of the input and of
            the first output, a margin is negative, or the kernel has no tiles of which the declaration could speak.
    """
    if sees is None:
        return None
    if not isinstance(sees, Mapping):
        what, cure = f"sees={format_value(sees)}", 'Give a dict from names of inputs: sees={"x": Around(3, 3)}'
        raise declaration_error(kernel, place, what, cure)
    inputs = {param.name: index for index, param in enumerate(params) if param.form.is_input}
    for name in sees:
        if name not in inputs:
            known = ", ".join(map(repr, inputs)) or "none"
            what = f"sees names {format_value(name)}, which is no input of it; its inputs are {known}"
            raise declaration_error(kernel, place, what, "Name inputs alone: a tile of an output sees itself")
    if not sees:
        return None
    outputs = [param for param in params if param.form.is_written]
    if abi != "views" or not outputs or outputs[0].rank is None:
        what = "sees describes what a tile looks at, but the kernel " + (
            "has no output" if not outputs else "takes plain pointers, and so no Tile"
        )
        raise declaration_error(kernel, place, what, 'Leave sees out, or take a Tile for each output with abi="views"')
    for token in preprocess(cuda).tokens:
        if token.text in _PLACES:
            what = f"sees is declared, but line {token.line} of its CUDA source uses {token.text}"
            cure = "Take the place from the tile: y.tile_index(axis), y.origin(axis), for (auto i : y)"
            raise declaration_error(kernel, place, what, cure)
    found: list[Sight | None] = [None] * len(params)
    for name, declared in sees.items():
        index = inputs[name]
        rank = params[index].rank
        assert rank is not None  # as that of each view
        problem = _problem(declared, rank, outputs[0].rank)
        if problem is not None:
            what = f"sees={{{name!r}: {format_value(declared)}}}: {problem[0]}"
            raise declaration_error(kernel, place, what, problem[1])
        found[index] = Sight(_axes(declared, rank, outputs[0].rank), _text(declared))
    return tuple(found)


def _problem(declared: Any, rank: int, out_rank: int) -> tuple[str, str] | None:
    """Return what is wrong with the declaration of an input of this rank, and the cure; None if it is right."""
    ranks = f"the input has rank {rank}, and the output rank {out_rank}"
    if isinstance(declared, Here | Around) and rank != out_rank:
        return ranks, "Say for each axis of the input which axis of the output it follows: (Along(0), None)"
    if isinstance(declared, Around):
        if len(declared.margins) != rank:
            return ranks, f"Give one margin for each axis: Around({', '.join(['1'] * rank)})"
        return _margin_problem(declared.margins)
    if isinstance(declared, Here | Rows | Columns):
        return None
    if not isinstance(declared, tuple) or not all(part is None or isinstance(part, Along) for part in declared):
        return "that is no description of what a tile looks at", f"Give {_FORMS}"
    if len(declared) != rank:
        return f"it has {len(declared)} parts, and {ranks}", "Give one part for each axis of the input"
    for part in declared:
        if part is not None:
            axis = as_whole_number(part.axis)
            if axis is None or not 0 <= axis < out_rank:
                return f"{ranks}, which has no axis {format_value(part.axis)}", "Count the output's axes from 0"
            problem = _margin_problem((part.before, part.after))
            if problem is not None:
                return problem
    return None


def _margin_problem(margins: Sequence[object]) -> tuple[str, str] | None:
    """Return what is wrong with margins; None if they are right."""
    for margin in margins:
        count = as_whole_number(margin)
        if count is None or count < 0:
            return f"{format_value(margin)} is no margin", "Give a number of elements, 0 or more"
    return None


def _axes(declared: Any, rank: int, out_rank: int) -> tuple[AxisSight | None, ...]:
    """Return for each axis of an input the axis of the output with the margins; None for all of it."""
    if isinstance(declared, Here):
        return tuple([(axis, 0, 0) for axis in range(rank)])
    if isinstance(declared, Around):
        return tuple([(axis, int(n), int(n)) for axis, n in enumerate(declared.margins)])
    if isinstance(declared, Rows):
        return ((0, 0, 0), *[None] * (rank - 1))
    if isinstance(declared, Columns):
        return (*[None] * (rank - 1), (out_rank - 1, 0, 0))
    return tuple([None if part is None else (int(part.axis), int(part.before), int(part.after)) for part in declared])


def _text(declared: Any) -> str:
    """Return a declaration as the user wrote it."""
    if isinstance(declared, tuple):
        return f"({', '.join(map(_part_text, declared))}{',' * (len(declared) == 1)})"
    return f"{type(declared).__name__}()" if not isinstance(declared, Around) else repr(declared)


def _part_text(part: Along | None) -> str:
    """Return the part of a declaration for one axis."""
    if part is None:
        return "None"
    margins = f", {part.before}, {part.after}" if part.before or part.after else ""
    return f"Along({part.axis}{margins})"
