"""The control-flow graph of a function body: basic blocks of instructions that move, lend and keep handles.

A *slot* is a variable or a temporary, numbered within one body. A *place* is a slot and a path into it: `self.weights`
is the slot of `self` and `(".weights",)`. Instructions are compared by identity, because each is also a fact of the
analysis: a `Move` is the move in "was moved here", a `Lend` is the loan. None has a `repr`: a run of mypy makes these
classes anew, and each takes a third longer with one.
"""

from collections.abc import Callable, KeysView
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from mypy.nodes import Block as Suite
from mypy.nodes import Context, Expression, FuncDef, FuncItem, LambdaExpr, MypyFile, Var

from dagpu.mypy_plugin.messages import ANY_FORM, Finding

Slot: TypeAlias = int
Path: TypeAlias = tuple[str, ...]
Root: TypeAlias = Var | FuncDef
"""A named entity: a variable or a nested function."""

# Bits for the facts that a value may hold; the kinds module derives them from types.
SHARED: Final = 1
"""Loans for reading."""
EXCLUSIVE: Final = 2
"""Loans for writing."""
SPENDABLE: Final = 4
"""Ops that own moved handles, and therefore run only once."""
FEED: Final = 1024
"""Open flows, each lent to its feed for the duration of a block."""
LOANS: Final = SHARED | EXCLUSIVE | FEED
EVERYTHING: Final = LOANS | SPENDABLE


ANY_ITEM: Final = "[*]"
"""The step of a path that names any of the items of a container."""
ONE_ITEM: Final = "[?]"
"""The step of a path that names one of the items of a container, which is not known. An item at an index is not it."""
SAME_ITEM: Final = "[=]"
"""The last step of two paths that share items: the item at an index of one container is at this index of the other."""
UNKNOWN_ITEMS: Final = (ANY_ITEM, ONE_ITEM, SAME_ITEM)
DEEPEST: Final = 3
"""Longest path into a slot, as in `a.b.c.d`. Longer paths are not tracked."""


class Place(NamedTuple):
    """A variable or temporary, or a part of one, addressed by attributes and constant indices."""

    slot: Slot
    path: Path = ()

    def inside(self, rest: Path) -> "Place | None":
        """Return the place at this path inside this place; None if it lies too deep to be tracked."""
        path = self.path + rest
        return None if len(path) > DEEPEST else Place(self.slot, path)


def covers(outer: Path, path: Path) -> bool:
    """Return True if a path is, or may be, the same as another or lead into it. Any item may be the one at an index."""
    if len(outer) > len(path):
        return False
    return all(a == b or (ANY_ITEM in (a, b) and a[0] == b[0] == "[") for a, b in zip(outer, path, strict=False))


@dataclass(eq=False, repr=False, slots=True)
class Read:
    """Read a place without moving it. The facts that the place holds are copied to `into`, unless that is None."""

    node: Context
    place: Place
    into: Slot | None = None
    keeps: int = 0


@dataclass(eq=False, repr=False, slots=True)
class Move:
    """Move the handle out of a place. `how` names the cause, in the words of the run-time error."""

    node: Context
    place: Place
    into: Slot
    how: str
    silent: bool = False
    """True if the moved handle may be this one or another. A silent move of a moved handle is not reported."""
    binds: bool = False
    """True if the handle only gets another name or owner here. Places that share it keep it."""
    accepts: int = ANY_FORM
    """What could have been passed in the place of the handle: a loan (LOAN), a shared tensor (SHARES)."""


@dataclass(eq=False, repr=False, slots=True)
class Share:
    """Two places share a value from here on: `a, b = pair` gives the components of `pair` further names.

    A handle that moves out of one of them has moved out of the other as well. `place` has been assigned just before.
    """

    node: Context
    place: Place
    other: Place
    links: bool = True
    """True if later moves out of one place count for the other."""
    itself: bool = True
    """False if `place` shares only with the places that share with `other`: the handle has left `other` itself."""
    follows: bool = True
    """True if what has moved out of `other` before is moved for `place`, too."""
    alone: bool = False
    """True if `place` shares with `other` only, and not with the places that share with parts of it."""


@dataclass(eq=False, repr=False, slots=True)
class Lend:
    """Borrow a place. Every slot that holds the value of `into` keeps the loan alive."""

    node: Context
    place: Place
    into: Slot
    exclusive: bool
    captured: bool = False
    """True if a closure or a task captures the variable itself."""
    reads_only: bool = False
    """True for a capture that only reads the variable. Such a loan forbids moves, not borrows."""


@dataclass(eq=False, repr=False, slots=True)
class BlockLoan(Lend):
    """Lend what a context manager gives, for its block. `node` is the expression that makes the context manager."""

    closed: bool = False
    """True for what is left of the loan once the block has ended."""


@dataclass(eq=False, repr=False, slots=True)
class OpenFeed(BlockLoan):
    """Open a flow: the block lends the open flow to its feed. `node` is the variable of the feed."""


@dataclass(eq=False, repr=False, slots=True)
class EndLoan:
    """End the block of a loan: each slot that holds the loan holds what is left of it instead."""

    node: Context
    loan: BlockLoan
    left: BlockLoan


@dataclass(eq=False, repr=False, slots=True)
class AskFeed:
    """Ask a feed, or leave a nursery whose tasks may ask one. `place` holds the feed."""

    node: Context
    place: Place


@dataclass(eq=False, repr=False, slots=True)
class Build:
    """Build a value from other slots. It holds the facts of its parts that its type can hold."""

    node: Context
    into: Slot | None
    parts: tuple[Slot, ...]
    keeps: int
    owner: bool = False
    """True for an op that owned handles have moved into. Such an op runs once."""
    single: bool = False
    """True for an op that a call of dagpu builds of its parts, and that may be used only once in a run."""
    function: bool = False
    """True for a function that owned handles have been bound to, instead of an op. It is called once."""


@dataclass(eq=False, repr=False, slots=True)
class Store:
    """Assign a value to a place. The place is no longer moved."""

    node: Context
    place: Place
    part: Slot | None
    keeps: int
    built: Expression | None = None
    """The expression that builds the assigned op or flow, which is nowhere else."""


@dataclass(eq=False, repr=False, slots=True)
class Keep:
    """Add values to a container or an object. It holds their facts in addition to its own."""

    node: Context
    slot: Slot
    parts: tuple[Slot, ...]


@dataclass(eq=False, repr=False, slots=True)
class Forget:
    """Discard the moves out of the parts of a place, because unknown code may have reassigned them."""

    node: Context
    place: Place
    whole: bool
    """True to discard the moves out of the place itself as well."""


ANY_GLOBAL: Final[Slot] = -1
"""In a `Forget`: all variables of the module. A function of the module may reassign any of them."""


class Change(Enum):
    """A change of the number or the order of a container's items."""

    BEHIND = auto()
    """Items are added behind the last one: an index from the front leads to the same item."""
    ADDS = auto()
    """Items are added anywhere."""
    REORDERS = auto()
    """The items stay, in another order."""
    REMOVES = auto()
    """Items may be taken out or replaced: which of them have moved is not known."""


@dataclass(eq=False, repr=False, slots=True)
class Rearrange:
    """Change the number or the order of a container's items: which of them is at an index is not known from here on."""

    node: Context
    place: Place
    change: Change

    def after(self, container: Place, path: Path) -> Path | None:
        """Return the path to a part of the container's slot afterwards, given that before; None if nothing is known of
        it."""
        n = len(container.path)
        step = path[n] if len(path) > n and path[:n] == container.path else ""
        if not step.startswith("["):
            return path
        if self.change is Change.REMOVES:
            return None
        stays = step == ANY_ITEM if self.change is Change.REORDERS else step[1:-1].isdecimal()
        return path if stays and self.change is not Change.ADDS else (*path[:n], ONE_ITEM, *path[n + 1 :])


@dataclass(eq=False, repr=False, slots=True)
class Escape:
    """Pass a value to a location that outlives this function's variables."""

    node: Context
    part: Slot
    how: str
    feeds_only: bool = False
    """True for a yield: a generator keeps its own variables, but the caller may end it, and with it a block of it."""


@dataclass(eq=False, repr=False, slots=True)
class Yield:
    """Hand a value out. The body goes on when it is asked again."""

    node: Context


@dataclass(eq=False, repr=False, slots=True)
class Run:
    """Run an op, or call a function. The handles that have moved into it are used up."""

    node: Context
    part: Slot
    calls: bool = False
    """True for a call of a function, such as one that `partial` has bound a handle to. It uses up what was bound to it,
    not what has moved into an op that it holds: the function may only look at the op."""


@dataclass(eq=False, repr=False, slots=True)
class Touch:
    """Use of an enclosing place by a closure that is called or passed on here. `inside` locates the use in it."""

    node: Context
    place: Place
    inside: Context
    defined: Context
    """The closure's definition. A move before it makes the use inside an error, a later move makes the call one."""
    later: bool = False
    """True if the closure may run at any time from here on."""


Instruction: TypeAlias = (
    Read
    | Move
    | Share
    | Lend
    | Build
    | Store
    | Keep
    | Forget
    | Rearrange
    | Escape
    | Yield
    | Run
    | Touch
    | EndLoan
    | AskFeed
)


_I = TypeVar("_I")


def _masks_of_place(i: Read | Move | Lend) -> tuple[int, int]:
    return 0 if i.into is None else 1 << i.into, 1 << i.place.slot


def _masks_of_build(i: Build) -> tuple[int, int]:
    return 0 if i.into is None else 1 << i.into, _slots(i.parts)


def _masks_of_store(i: Store) -> tuple[int, int]:
    return 0 if i.place.path else 1 << i.place.slot, 0 if i.part is None else 1 << i.part


def _slots(parts: tuple[Slot, ...]) -> int:
    live = 0
    for part in parts:
        live |= 1 << part
    return live


MASKS: Final[dict[type[Instruction], Callable[[Any], tuple[int, int]]]] = {
    Read: _masks_of_place,
    Move: _masks_of_place,
    Lend: _masks_of_place,
    BlockLoan: _masks_of_place,
    OpenFeed: _masks_of_place,
    Build: _masks_of_build,
    Store: _masks_of_store,
    Share: lambda i: (0, 1 << i.other.slot),
    Touch: lambda i: (0, 1 << i.place.slot),
    AskFeed: lambda i: (0, 1 << i.place.slot),
    Keep: lambda i: (0, _slots(i.parts)),
    Escape: lambda i: (0, 1 << i.part),
    Run: lambda i: (0, 1 << i.part),
}
"""For each class of instructions: the slots that it fills, and those that it reads. The others have neither."""


# ---- what the values of expressions depend on


@dataclass(eq=False, repr=False, slots=True)
class Evaluate:
    """Evaluate expressions, and bind targets to the value of the last one. None is an expression of unknown value."""

    node: Context
    values: tuple[Expression | None, ...]
    targets: tuple[Expression, ...] = ()


@dataclass(eq=False, repr=False, slots=True)
class Test:
    """Choose between suites. One of them may be dead code, if the choice depends on a known value."""

    node: Context
    conditions: tuple[Expression | None, ...]
    suites: list[Suite]


@dataclass(eq=False, repr=False, slots=True)
class Meet:
    """The ways through the suites of a statement meet again."""

    node: Context
    tests: list[Test]
    ends: list["BasicBlock"]
    """The block at the end of each suite."""


Evaluation: TypeAlias = Evaluate | Test | Meet


# ---- the graph


@dataclass(eq=False, repr=False, slots=True)
class BasicBlock:
    """A basic block: instructions that run one after the other, for each of the two lattices those that it is about."""

    index: int = -1
    """Position among the blocks of a finished body; -1 before that, and for a block that nothing leads to."""
    instructions: list[Instruction] = field(default_factory=list)
    """What has an effect on handles."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """What has one on the values that are known."""
    next: list["BasicBlock"] = field(default_factory=list)
    in_loop: bool = False
    """True for a block of a loop in a finished body: it leads back to itself or to an earlier one."""
    behind: "BasicBlock | None" = None
    """The block behind a loop that begins here. It comes after those of the loop, whichever of them leads to it."""


@dataclass(eq=False, repr=False, slots=True)
class Body:
    """The control-flow graph of one function or lambda, or of a module's top level."""

    node: FuncItem | MypyFile
    blocks: list[BasicBlock]
    """The entry block first. In a finished body: all reachable blocks, in reverse postorder."""
    roots: list[Root | None]
    """The variable of each slot; None for a temporary."""
    slots: dict[Root, Slot]
    local: set[Slot]
    """Slots of the body's own variables, and of temporaries that are borrowed from."""
    elements: set[Slot]
    """Slots of variables whose values another object keeps too, for example loop variables."""
    children: list["Body"]
    """The bodies of nested functions and lambdas."""
    mistakes: list[Finding]
    """The mistakes that are certain where the body is lowered, whatever the way that leads there."""
    unfollowed: set[Root] = field(default_factory=set)
    """Variables that are named where their type does not show a handle or an op, for example one declared `Any`."""
    opaque: set[Root] = field(default_factory=set)
    """Variables that a closure uses whose calls are not followed: a method, or one that a decorator gets."""
    returned: set[Place | None] = field(default_factory=set)
    """The places of the results, None for a result that has none."""
    yielded: set[Place] = field(default_factory=set)
    """The places of the items that the result of an iterator or a generator goes over."""
    items: dict[Slot, Place] = field(default_factory=dict)
    """The variables of comprehensions, each with the place of the items that it goes over."""
    given_away: set[Root] = field(default_factory=set)
    """Parameters whose types say nothing of moves, and whose values the body passes on to what moves a handle."""
    _by_class: dict[type[object], list[Any]] = field(default_factory=dict)

    @property
    def is_lambda(self) -> bool:
        return isinstance(self.node, LambdaExpr)

    def classes(self) -> KeysView[type[object]]:
        """Return the classes of the instructions of a finished body."""
        if not self._by_class:
            for block in self.blocks:
                for i in block.instructions:
                    self._by_class.setdefault(type(i), []).append(i)
        return self._by_class.keys()

    def all_of(self, kind: type[_I]) -> list[_I]:
        """Return the instructions of one class, but for its subclasses, in a finished body."""
        found: list[_I] = self._by_class[kind] if kind in self.classes() else []
        return found


def reverse_postorder(entry: BasicBlock) -> list[BasicBlock]:
    """Return the reachable blocks in reverse postorder, and number them in that order.

    Each block follows its predecessors, except along the back edges of loops. The blocks of a loop are in sequence.
    """
    reached = set(_postorder(entry, lambda block: block.next))
    found = _postorder(entry, lambda block: block.next if block.behind is None else [block.behind, *block.next])
    ordered = [block for block in reversed(found) if block in reached]
    for index, block in enumerate(ordered):
        block.index = index
    for block in ordered:
        for follower in block.next:
            for repeated in ordered[follower.index : block.index + 1]:
                repeated.in_loop = True
    return ordered


def _postorder(entry: BasicBlock, followers: Callable[[BasicBlock], list[BasicBlock]]) -> list[BasicBlock]:
    found: list[BasicBlock] = []
    seen = {entry}
    path = [(entry, iter(followers(entry)))]
    while path:
        block, rest = path[-1]
        for follower in rest:
            if follower not in seen:
                seen.add(follower)
                path.append((follower, iter(followers(follower))))
                break
        else:
            path.pop()
            found.append(block)
    return found


# ---- the statements around a place that an exit from it passes


@dataclass(eq=False, repr=False, slots=True)
class Loop:
    """The target blocks of `break` and `continue`."""

    broken: BasicBlock
    continued: BasicBlock


@dataclass(eq=False, repr=False, slots=True)
class Finally:
    """A `finally` suite, copied into every exit, and the handler of the exceptions that the suite itself raises."""

    suite: Suite
    handler: BasicBlock | None


@dataclass(eq=False, repr=False, slots=True)
class LoanBlock:
    """A `with` block for which something is lent: every exit from it ends the loans."""

    ends: list[EndLoan]
