"""State that the bodies of one module share, and summaries of closures and functions for their callers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mypy.errorcodes import ErrorCode
from mypy.nodes import (
    Block,
    CallExpr,
    Context,
    Expression,
    FuncDef,
    FuncItem,
    MemberExpr,
    RefExpr,
    Statement,
    SymbolNode,
    SymbolTableNode,
    TupleExpr,
    TypeInfo,
    Var,
)
from mypy.types import Type

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.analysis.graph import Body, Path, Root, Slot
from dagpu.mypy_plugin.typing.type_facts import TypeFacts

# ---- mistakes that are expected

_NOTHING: Final[frozenset[str]] = frozenset()
_BUILDING: Final = frozenset({messages.UNUSED_OP.code})
"""The code that is deliberate wherever any error is expected, because building the op may raise that error."""
_OF_VALUES: Final = frozenset(
    code.code for code in (messages.OUTPUT_PARTITION, messages.INPUT_RANK, messages.SOURCE_PART, messages.SEES)
)
"""The codes of wrong tiles, ranks and parts."""
_RAISED_FOR_VALUES: Final = frozenset(
    (
        *("PartitionError", "KernelArgumentError", "ShapeError", "OwnershipError", "SourceError"),
        *("DagpuError", "ValueError", "TypeError"),
    )
)
"""Exceptions raised for a wrong tile, argument or part. A program that handles one expects such a mistake."""
_REQUIRES_ERROR: Final = frozenset(("raises", "assertRaises", "assertRaisesRegex"))
"""Context managers that require their suite to raise."""


class ExpectedErrors:
    """The lines of a module on which mistakes are deliberate or never made, with the codes of these mistakes."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, frozenset[str]]] = []

    def covers(self, line: int, code: ErrorCode) -> bool:
        """Return True if a mistake of this code on this line is not to be reported."""
        return any(first <= line <= last and code.code in meant for first, last, meant in self._spans)

    def record_with(self, managers: Iterable[Expression], suite: Block) -> None:
        """Record the errors that the context managers of a `with` statement expect in its suite."""
        for e in managers:
            if isinstance(e, CallExpr):
                meant = _NOTHING.union(*map(_codes_named_by, e.args))
                if requires_error(e):
                    meant |= _BUILDING
                if getattr(e.callee, "name", "") in _REQUIRES_ERROR | {"suppress", "RaisesGroup"}:
                    meant |= _OF_VALUES
                self._record(suite, meant)

    def record_call(self, e: CallExpr) -> None:
        """Record the errors that a call is told to expect: `raises(MovedError, lambda: t.shape)`."""
        meant = _NOTHING.union(*map(_codes_named_by, e.args))
        if meant:
            self._spans.append((e.line, e.end_line or e.line, meant))

    def record_try(self, caught: Sequence[Expression | None], suite: Block) -> None:
        """Record the errors that the handlers of a `try` statement catch in its suite."""
        meant = _NOTHING.union(*map(_codes_named_by, caught))
        if meant:
            meant |= _BUILDING
        if any(getattr(one, "name", "") in _RAISED_FOR_VALUES for e in caught for one in _named_by(e)):
            meant |= _OF_VALUES
        self._record(suite, meant)

    def record_branches(self, suites: Iterable[Block]) -> None:
        """Record suites of which one may be dead code: a wrong tile in it may never be made."""
        for suite in suites:
            self._record(suite, _OF_VALUES)

    def _record(self, suite: Block, meant: frozenset[str]) -> None:
        if meant and suite.body:
            self._spans.append((suite.body[0].line, max(s.end_line or s.line for s in suite.body), meant))


def requires_error(manager: Expression) -> bool:
    """Return True for a context manager that requires its suite to raise, such as `pytest.raises(ValueError)`."""
    return isinstance(manager, CallExpr) and getattr(manager.callee, "name", "") in _REQUIRES_ERROR


def _named_by(e: Expression | None) -> Iterator[RefExpr]:
    """Iterate over what an expression names: an exception, or several in a tuple."""
    if isinstance(e, RefExpr):
        yield e
    for item in e.items if isinstance(e, TupleExpr) else ():
        yield from _named_by(item)


def _codes_named_by(e: Expression | None) -> frozenset[str]:
    """Return the codes of the run-time errors that an expression names: `MovedError`, `(MovedError, BorrowError)`."""
    ours = [one.fullname.rpartition(".")[2] for one in _named_by(e) if one.fullname.startswith("dagpu.")]
    return _NOTHING.union(*(names.RUNTIME_ERRORS.get(name, _NOTHING) for name in ours))


# ---- the state of a module

Types: TypeAlias = Mapping[Expression, Type]
"""mypy's types of expressions. Expressions that mypy did not check (unreachable or untyped code) are missing."""

Outside: TypeAlias = tuple[Root, Path]
"""A place in a scope that encloses a closure. It names the variable, because each body numbers its own slots."""


@dataclass(eq=False, repr=False, slots=True)
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


class Part(NamedTuple):
    """A parameter of a function, or a part of it: an attribute, or an item of one. An index may be a parameter.

    A variable of the module, or of a class in it, counts as a parameter. Its name is the full name.
    """

    parameter: str
    path: Path


class Effect(NamedTuple):
    """A function's effect on its parameters, by parameter name. Moves come with the words for them in messages."""

    takes: frozenset[str]
    """Parameters that the function moves or may move. One whose type says nothing of moves, such as a type variable,
    is always included, because the body does not show whether it moves."""
    spares: frozenset[str]
    """Parameters that the function does not move."""
    runs: frozenset[str] = frozenset()
    """Parameters that the function runs as ops, directly or as part of another op."""
    empties: frozenset[str] = frozenset()
    """Parameters with items that the function moves, such as those of `*tensors`."""
    parts: tuple[tuple[Part, str], ...] = ()
    """Attributes of parameters that are moved where the function ends."""
    at_exit: tuple[tuple[Part, str], ...] = ()
    """Parameters, and attributes of them, that a context manager moves at the end of its block."""
    uses: tuple[Part, ...] = ()
    """Attributes of parameters that the function is certain to use before it assigns them."""
    lends: tuple[tuple[Part, bool], ...] = ()
    """Attributes of parameters that the result borrows; the flag is true for a borrow for writing."""
    gives: Part | None = None
    """The part of a parameter that the result is, on each path."""
    iterates: tuple[Part, ...] = ()
    """The parts of parameters that the items of the result are: an attribute, or any item of a container."""
    keeps: tuple[tuple[str, str], ...] = ()
    """Parameters whose value another one keeps, each with that one: `self.refs.append(ref)`."""
    leaves: frozenset[str] = frozenset()
    """Parameters of which the function assigns no attribute."""

    borrows: tuple[tuple[Part, bool], ...] = ()
    """Parameters, and attributes of them, that the function lends for a time; the flag is true for a borrow for
    writing. No loan of one may be alive then; beside a borrow for reading, none for writing."""
    moves: frozenset[str] = frozenset()
    """Parameters that the body moves although their types say nothing of moves: `Any`, `object`, a type variable."""
    repeats: frozenset[str] = frozenset()
    """Parameters that the function may call more than once."""
    concerns_globals: bool = False
    """True if one of these is a variable of the module."""
    passes_on: frozenset[str] = frozenset()
    """Parameters that move nowhere but into the result."""

    @property
    def concerns_parts(self) -> bool:
        """True if a call has an effect on what the caller knows of parts of its arguments."""
        return bool(self.parts or self.at_exit or self.uses or self.lends or self.gives or self.keeps or self.borrows)


class Uses(NamedTuple):
    """The uses of variables in a module: mypy has a type for each name that it has checked."""

    names: dict[Var, list[Expression]]
    members: dict[Expression, MemberExpr]
    """The attribute that is asked of an expression."""
    harmless: set[Expression]
    """Expressions whose objects are given to nobody."""
    operators: dict[Expression, FuncDef]
    """The method that an operator calls on an expression."""


@dataclass(eq=False, repr=False, slots=True)
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
    symbols: Mapping[str, SymbolTableNode] = field(default_factory=dict)
    """The names at the top level of the module."""
    expects_errors: bool = True
    """True if the module's namespace has `dagpu` or one of the run-time errors for a mistake in ownership."""
    adopted: frozenset[Var] = frozenset()
    """The variables whose arrays `adopt` takes. They move, although their types are not those of handles."""
    own: frozenset[FuncDef] = frozenset()
    """The module's functions and methods."""
    bodies: dict[FuncDef, list[Body]] = field(default_factory=dict)
    """The bodies of the functions lowered so far."""
    statements: dict[FuncDef, list[Statement]] = field(default_factory=dict)
    """The statements of the functions that have been searched for objects of one variable."""
    effects: dict[str, Effect] | None = None
    """Effects of the module's functions from an earlier check, by full name; None to derive them from the bodies.
    The daemon needs them: it checks one function again and has no types for the others."""
    uses: Uses | None = None
    """The uses of variables, once they are asked for."""
    derived: dict[Body, Effect] = field(default_factory=dict)
    """The effects derived so far."""
    recursive: dict[FuncItem, Effect] = field(default_factory=dict)
    """The effects of functions in work, as far as they are known, for calls of themselves."""
    in_work: set[FuncItem] = field(default_factory=set)
    """The functions that are being lowered now; a call of one of them is recursive."""

    def variable(self, fullname: str) -> Var | None:
        """Return the variable of this module, or of a class in it, with this full name."""
        if not fullname.startswith(f"{self.name}."):
            return None
        found: SymbolNode | None = None
        symbols = self.symbols
        for name in fullname[len(self.name) + 1 :].split("."):
            symbol = symbols.get(name)
            found = None if symbol is None else symbol.node
            symbols = found.names if isinstance(found, TypeInfo) else {}
        return found if isinstance(found, Var) else None
