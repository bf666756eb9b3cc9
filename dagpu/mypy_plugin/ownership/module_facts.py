"""State that the bodies of one module share, and summaries of closures and functions for their callers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from mypy.nodes import Context, Expression, FuncDef, FuncItem, Var
from mypy.types import Type

from dagpu.mypy_plugin.ownership.control_flow import Body, Path, Root, Slot
from dagpu.mypy_plugin.ownership.rules.expected_errors import ExpectedErrors
from dagpu.mypy_plugin.typing.type_facts import TypeFacts

Types: TypeAlias = Mapping[Expression, Type]
"""mypy's types of expressions. Expressions that mypy did not check (unreachable or untyped code) are missing."""

Outside: TypeAlias = tuple[Root, Path]
"""A place in a scope that encloses a closure. It names the variable, because each body numbers its own slots."""


@dataclass(eq=False, slots=True)
class Closure:
    """A summary of a nested function or lambda: its effects on places of the enclosing scopes."""

    node: FuncItem
    body: Body
    uses: dict[Outside, Context]
    """Enclosing places that the closure uses, each with the location of the first use."""
    lends: dict[Outside, bool]
    """Enclosing places that the closure borrows; the value is true for a borrow for writing."""
    moves: dict[Outside, str]
    """Enclosing places that the closure moves, each with the words for the move in messages."""
    assigns: set[Outside]
    """Enclosing places that the closure reassigns. Uses count only before the first assignment."""
    moved_at_end: dict[Outside, str]
    """Reassigned enclosing places that may still be moved when the closure ends, with the words for the move."""
    keeps: set[Outside] = field(default_factory=set)
    """Enclosing places that may be used after a call: the closure passes on another one that uses them."""
    returns: set[Outside] = field(default_factory=set)
    """Enclosing places of ops that the closure's result is made of."""
    defaults: tuple[Slot, ...] = ()
    """Slots, in the body that defines the closure, of the values of its defaults."""
    home: Body | None = None
    """The body that defines the closure."""


class Effect(NamedTuple):
    """A function's effect on its parameters, by parameter name."""

    takes: frozenset[str]
    """Parameters that the function moves or may move. One whose type says nothing of moves, such as a type variable,
    is always included, because the body does not show whether it moves."""
    spares: frozenset[str]
    """Parameters that the function does not move."""
    runs: frozenset[str]
    """Parameters that the function runs as ops, directly or as part of another op."""
    empties: frozenset[str] = frozenset()
    """Parameters with items that the function moves, such as those of `*tensors`."""
    parts: tuple[tuple[str, Path, str], ...] = ()
    """Attributes of parameters that are moved where the function ends: the parameter, the path, and the words for the
    move."""
    uses: tuple[tuple[str, Path], ...] = ()
    """Attributes of parameters that the function is certain to use before it assigns them."""
    lends: tuple[tuple[str, Path, bool], ...] = ()
    """Attributes of parameters that the result borrows; the flag is true for a borrow for writing."""
    gives: tuple[str, Path] | None = None
    """The attribute of a parameter that the result is, on each path."""
    leaves: frozenset[str] = frozenset()
    """Parameters of which the function assigns no attribute."""


@dataclass(eq=False, slots=True)
class ModuleFacts:
    """State that the bodies of one module share."""

    name: str
    types: Types
    kinds: TypeFacts = field(default_factory=TypeFacts)
    known_kinds: dict[Expression, int] = field(default_factory=dict)
    """The kind bits of the expressions seen so far: mypy computes the hash of a type anew for each look-up."""
    continuations: set[FuncItem] = field(default_factory=set)
    """Functions passed to dagpu, such as continuations of `then`, pipelines, and lambdas that a call gets: `map(f, ts)`
    calls one with tensors that `ts` keeps. Their results may borrow from their parameters."""
    deliberate: ExpectedErrors = field(default_factory=ExpectedErrors)
    expects_errors: bool = True
    """True if the module's namespace has `dagpu` or one of the run-time errors for a mistake in ownership."""
    adopted: frozenset[Var] = frozenset()
    """The variables whose arrays `adopt` takes. They move, although their types are not those of handles."""
    own: frozenset[FuncDef] = frozenset()
    """The module's functions and methods."""
    bodies: dict[FuncDef, list[Body]] = field(default_factory=dict)
    """The bodies of the functions lowered so far."""
    effects: dict[str, Effect] | None = None
    """Effects of the module's functions from an earlier check, by full name; None to derive them from the bodies.
    The daemon needs them: it checks one function again and has no types for the others."""
    in_work: set[FuncItem] = field(default_factory=set)
    """The functions that are being lowered now; a call of one of them is recursive."""
