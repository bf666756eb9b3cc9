"""What a function's body becomes: blocks of instructions that move, lend and keep, and the edges between them.

A *slot* is a variable or a temporary, numbered within one body. A *place* is a slot and a path into it: `self.weights`
is the slot of `self` and `(".weights",)`. Instructions are compared by identity, for they are what the analysis is
about: a `Move` is the move in "was moved here", a `Lend` is the loan.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mypy.nodes import Context, Expression, FuncDef, FuncItem, LambdaExpr, MypyFile, Var

Slot: TypeAlias = int
Path: TypeAlias = tuple[str, ...]
Root: TypeAlias = Var | FuncDef
"""What has a name: a variable, or a nested function."""

# What a value may hold, as bits: kinds.py reads them off types.
SHARED: Final = 1
"""Loans for reading."""
EXCLUSIVE: Final = 2
"""Loans for writing."""
SPENDABLE: Final = 4
"""Handles that have moved into an op, and with them the right to run it once."""
LOANS: Final = SHARED | EXCLUSIVE
EVERYTHING: Final = LOANS | SPENDABLE


class Place(NamedTuple):
    """A variable or temporary, or a part of it that is named by attributes and constant indices."""

    slot: Slot
    path: Path = ()


@dataclass(eq=False, slots=True)
class Read:
    """Look at a place. What it holds is copied `into` a temporary where anybody wants it."""

    node: Context
    place: Place
    into: Slot | None = None
    keeps: int = 0


@dataclass(eq=False, slots=True)
class Move:
    """Take the handle out of a place. `how` is what took it, in the words of the run-time error."""

    node: Context
    place: Place
    into: Slot
    how: str
    silent: bool = False
    """It may be this handle or another: not a mistake if it has gone already."""


@dataclass(eq=False, slots=True)
class Lend:
    """Borrow a place; whatever holds `into` from then on keeps the loan alive."""

    node: Context
    place: Place
    into: Slot
    exclusive: bool
    captured: bool = False
    """By a closure, which keeps the variable itself."""
    looks: bool = False
    """And the closure does not borrow it, but looks at it: it is only not to be moved."""


@dataclass(eq=False, slots=True)
class Build:
    """Make a value of others. It holds of what they hold that which its type can hold."""

    node: Context
    into: Slot | None
    parts: tuple[Slot, ...]
    keeps: int
    owner: bool = False
    """Is it an op that owned handles have moved into? Then it runs once."""


@dataclass(eq=False, slots=True)
class Store:
    """Put a value into a place, which is whole again."""

    node: Context
    place: Place
    part: Slot | None
    keeps: int


@dataclass(eq=False, slots=True)
class Keep:
    """A container, or an object, keeps what it is given beside what it has."""

    node: Context
    slot: Slot
    parts: tuple[Slot, ...]


@dataclass(eq=False, slots=True)
class Forget:
    """Nothing is known any more of what was moved out of a place: it, or what is in it, may have been made anew."""

    node: Context
    place: Place
    whole: bool
    """The place itself too, not only its parts."""


ANY_GLOBAL: Final[Slot] = -1
"""In a `Forget`: the variables of the module, which a function of the module may make anew."""


@dataclass(eq=False, slots=True)
class Escape:
    """A value leaves for where it outlives this function's variables."""

    node: Context
    part: Slot
    how: str


@dataclass(eq=False, slots=True)
class Run:
    """An op is run: what has moved into it is used up."""

    node: Context
    part: Slot


@dataclass(eq=False, slots=True)
class Touch:
    """A closure is called or passed on here, which looks at a place of its surroundings `inside` of it."""

    node: Context
    place: Place
    inside: Context
    defined: Context
    """The closure: what had moved by then is a mistake inside, what moved since is a mistake here."""


Instruction: TypeAlias = Read | Move | Lend | Build | Store | Keep | Forget | Escape | Run | Touch


@dataclass(eq=False, slots=True)
class Block:
    """Instructions that run one after the other."""

    index: int = -1
    """Its place among the blocks of a finished body."""
    instructions: list[Instruction] = field(default_factory=list)
    next: list["Block"] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Body:
    """One function, lambda or module."""

    node: FuncItem | MypyFile
    blocks: list[Block]
    """Once it is finished, all that control comes to, in about the order that it does; the first is the entry."""
    roots: list[Root | None]
    """By slot: the variable; None for a temporary."""
    slots: dict[Root, Slot]
    local: set[Slot]
    """The variables that are its own, and temporaries that something is lent from."""
    elements: set[Slot]
    """Those of them that loops set: what they stand for is kept by what is looped over."""
    children: list["Body"]
    """Nested functions and lambdas."""
    dropped: list[Expression]
    """Ops that are built in a statement of their own."""

    @property
    def is_lambda(self) -> bool:
        return isinstance(self.node, LambdaExpr)


def in_order(entry: Block) -> list[Block]:
    """The blocks that control can come to, each behind those it comes from, but for loops; numbered anew."""
    found: list[Block] = []
    seen = {entry}
    path = [(entry, iter(entry.next))]
    while path:
        block, followers = path[-1]
        for follower in followers:
            if follower not in seen:
                seen.add(follower)
                path.append((follower, iter(follower.next)))
                break
        else:
            path.pop()
            found.append(block)
    found.reverse()
    for index, block in enumerate(found):
        block.index = index
    return found
