"""Derives the effect of a function on its parameters from its body."""

from collections.abc import Iterator
from typing import Final

from mypy.nodes import FuncItem

from dagpu.mypy_plugin.ownership.closure_facts import moved_at_end
from dagpu.mypy_plugin.ownership.control_flow import (
    SPENDABLE,
    Body,
    Build,
    Escape,
    Forget,
    Lend,
    Move,
    OpenFeed,
    Path,
    Place,
    Read,
    Run,
    Shift,
    Slot,
    Store,
)
from dagpu.mypy_plugin.ownership.module_facts import Effect, ModuleFacts
from dagpu.mypy_plugin.ownership.solving.fixpoint import derived_moves, entry_states
from dagpu.mypy_plugin.typing.type_facts import MOVES

_STAYS: Final = ("being returned", "being entered")
"""The words of moves of an attribute that an object keeps: a method that returns one may be called again."""
_RETURNED: Final = "returned from"


def derive_effect(module: ModuleFacts, body: Body) -> Effect:
    """Derive the effect of a function on its parameters from its body."""
    node = body.node
    assert isinstance(node, FuncItem)
    named = {body.slots[argument.variable]: argument.variable.name for argument in node.arguments}
    takes = {
        argument.variable.name
        for argument in node.arguments
        if argument.kind.is_star() or not module.kinds.kind_of(argument.variable.type) & MOVES
    }
    moves = list(derived_moves(body))
    takes.update(named[m.place.slot] for m in moves if not m.place.path and m.place.slot in named)
    runs: set[str] = set()
    made_of: dict[Slot, set[str]] = {slot: {name} for slot, name in named.items()}
    assigned: set[str] = set()
    lends = False
    for block in body.blocks:
        for i in block.instructions:
            match i:
                case Move():
                    moves.append(i)
                    if not i.place.path and i.place.slot in named:
                        takes.add(named[i.place.slot])
                case Read() if i.into is not None:
                    made_of[i.into] = made_of.get(i.place.slot, set())
                case Build() if i.into is not None and i.keeps & SPENDABLE:
                    made_of[i.into] = set().union(*(made_of.get(part, ()) for part in i.parts))
                case Store() if not i.place.path and i.part is not None:
                    made_of[i.place.slot] = made_of.get(i.part, set())
                case Run():
                    runs |= made_of.get(i.part, set())
                case Lend():
                    lends = lends or (bool(i.place.path) and i.place.slot in named)
                case _:
                    pass
            if isinstance(i, Store | Forget | Shift) and i.place.slot in named:
                assigned.add(named[i.place.slot])
    empties = {named[m.place.slot] for m in moves if m.place.path and m.place.slot in named}
    return Effect(
        frozenset(takes),
        frozenset(named.values()) - takes,
        frozenset(runs),
        frozenset(empties),
        _moved_parts(body, named) if empties else (),
        tuple(dict.fromkeys(_used_parts(body, named))),
        tuple(sorted(_lent_parts(body, named))) if lends else (),
        _given_part(body, named),
        frozenset(named.values()) - assigned,
    )


def _moved_parts(body: Body, named: dict[Slot, str]) -> tuple[tuple[str, Path, str], ...]:
    """Return the attributes of parameters that have moved where a body ends, and not only to another name."""
    parts = {
        (root.name, path, how)
        for (root, path), how, binds in moved_at_end(body)
        if path and body.slots.get(root) in named and not binds and not how.startswith(_STAYS)
        if _are_attributes(path)
    }
    return tuple(sorted(parts))


def _are_attributes(path: Path) -> bool:
    return all(step[0] == "." for step in path)


def _used_parts(body: Body, named: dict[Slot, str]) -> Iterator[tuple[str, Path]]:
    """Iterate over the attributes of parameters that the first block uses, before it assigns a part of them."""
    assigned: set[Slot] = set()
    for i in body.blocks[0].instructions:
        match i:
            case Store() | Forget() | Shift():
                assigned.add(i.place.slot)
            case Read() | Move() | Lend():
                slot, path = i.place
                if path and slot in named and slot not in assigned and _are_attributes(path):
                    yield named[slot], path
            case _:
                pass


def _lent_parts(body: Body, named: dict[Slot, str]) -> set[tuple[str, Path, bool]]:
    """Return the attributes of parameters that the result of a body borrows."""
    found: set[tuple[str, Path, bool]] = set()
    for block, state in entry_states(body, [-1] * len(body.blocks)):
        for i in block.instructions:
            if isinstance(i, Escape) and i.how == _RETURNED:
                for loan in state.held.get(i.part, ()):
                    if isinstance(loan, Lend) and not isinstance(loan, OpenFeed) and not loan.captured:
                        slot, path = loan.place
                        if path and slot in named and _are_attributes(path):
                            found.add((named[slot], path, loan.exclusive))
            state.step(i)
    return found


def _given_part(body: Body, named: dict[Slot, str]) -> tuple[str, Path] | None:
    """Return the attribute of a parameter that each `return` of a body returns; None if there is none."""
    returned: dict[Slot, Place] = {}
    found: set[Place | None] = set()
    for block in body.blocks:
        for i in block.instructions:
            match i:
                case Move(how="being returned"):
                    returned[i.into] = i.place
                case Escape(how="returned from"):
                    found.add(returned.get(i.part))
                case _:
                    pass
    place = found.pop() if len(found) == 1 else None
    if place is None or not place.path or place.slot not in named or not _are_attributes(place.path):
        return None
    return named[place.slot], place.path
