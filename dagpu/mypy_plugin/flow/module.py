"""What the bodies of one module have in common, and what closures are to their surroundings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from mypy.nodes import Context, Expression, FuncDef, FuncItem
from mypy.types import Type

from dagpu.mypy_plugin.flow.deliberate import Deliberate
from dagpu.mypy_plugin.flow.graph import Body, Path, Root
from dagpu.mypy_plugin.flow.kinds import Kinds

Types: TypeAlias = Mapping[Expression, Type]
"""mypy's types of expressions. What it has not looked at, because it cannot be reached or is untyped, is not there."""

Outside: TypeAlias = tuple[Root, Path]
"""A place of the surroundings of a closure, whose slots are not those of the closure."""


@dataclass(eq=False, slots=True)
class Closure:
    """A nested function or a lambda, as far as its surroundings are concerned."""

    node: FuncItem
    body: Body
    uses: dict[Outside, Context]
    """Places of the surroundings that it looks at, and where it does."""
    lends: dict[Outside, bool]
    """Those of them that are lent by it or to it, and whether for writing."""
    moves: dict[Outside, str]
    """Those of them that it takes, and how."""
    assigns: set[Outside]
    """Places of its surroundings that it makes anew; they are used as they were at most."""
    left: dict[Outside, str]
    """Those of them that it may leave moved all the same, and how."""


class Effect(NamedTuple):
    """What a function does to its parameters, by their names."""

    takes: frozenset[str]
    """Handles that it moves, or may: what its body does with a parameter of a type variable cannot be seen."""
    spares: frozenset[str]
    """Handles that it does not move."""
    runs: frozenset[str]
    """Ops that are run, or that a part of what is run is made of."""


@dataclass(eq=False, slots=True)
class Module:
    """What the bodies of one module have in common."""

    name: str
    types: Types
    kinds: Kinds = field(default_factory=Kinds)
    continuations: set[FuncDef] = field(default_factory=set)
    """Functions given to `then` or `map`, and pipelines: what they return may borrow what they are given."""
    deliberate: Deliberate = field(default_factory=Deliberate)
    expects_errors: bool = True
    """Are there names in it of the errors that a run raises for a mistake?"""
    own: frozenset[FuncDef] = frozenset()
    """Its functions and methods."""
    bodies: dict[FuncDef, list[Body]] = field(default_factory=dict)
    """Of those that have been lowered."""
    effects: dict[str, Effect] | None = None
    """What its functions do to their parameters, by full name, where it is known from before: in the daemon, which
    checks one function again and has no types for the others."""
    in_work: set[FuncItem] = field(default_factory=set)
    """Those that are being lowered."""
