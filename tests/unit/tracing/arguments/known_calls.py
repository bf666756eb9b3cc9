"""Calls with their tables, and pairs of calls that differ in one place."""

from collections.abc import Sequence
from typing import Any, Final, final

from hypothesis import strategies as st

from dagpu.tracing.call_guard import Guard, LeafBinding, guard_call
from tests.unit.tracing.arguments.argument_trees import AGAIN, CONTAINERS, LEAVES, Call, Tree, table_of, trees


@final
class Known:
    """A call with its table."""

    def __init__(self, trees: Sequence[Tree], number: float, *names: str) -> None:
        self.trees = trees, names
        self.call = Call(trees, names, number)
        self.table = table = table_of(self.call.arguments, self.call.named)
        self.key = None if table is None else table.key
        self.told = None if table is None else self.call.told(table.key.rows[1:], table.leaves)

    def guard(self, bindings: Sequence[LeafBinding] | None = None, buffers: int = 0) -> Guard | None:
        """The guard of this call; None if there is none. By default no leaf is used."""
        table = self.table
        if table is None:
            return None
        if bindings is None:
            bindings = [LeafBinding()] * len(table.leaves)
        return guard_call(self.call.arguments, self.call.named, table, bindings, buffers)

    def is_read_by(self, guard: Guard) -> bool:
        """True if a guard accepts this call. It finds the leaves of the key then."""
        found = guard.read(self.call.arguments, self.call.named)
        if found is None:
            return False
        assert self.table is not None
        assert list(map(id, found[1])) == list(map(id, self.table.leaves))
        return True


def one_leaf_changed(draw: Any, tree: Tree) -> Tree:
    """Return a description that differs in one leaf or container at most."""
    if isinstance(tree, str) or draw(st.integers(0, 5)) == 0:
        return draw(trees) if draw(st.booleans()) else tree
    kind, items = tree
    at = draw(st.integers(0, len(items)))
    if at == len(items):
        return draw(st.sampled_from(sorted(CONTAINERS))), items
    return kind, [one_leaf_changed(draw, each) if number == at else each for number, each in enumerate(items)]


def two_calls(data: st.DataObject) -> tuple[Known, Known]:
    """Draw two calls whose nested arguments are the same or differ in one place."""
    one = data.draw(st.lists(trees, min_size=1, max_size=3))
    other = list(one)
    at = data.draw(st.integers(0, len(one)))
    if at < len(one):
        other[at] = one_leaf_changed(data.draw, one[at])
    names = data.draw(st.lists(st.sampled_from("xyz"), unique=True, max_size=len(one)))
    other_names = names if data.draw(st.integers(0, 3)) else data.draw(st.permutations(names))
    return Known(one, 0, *names), Known(other, 100, *other_names)


TWICE: Final[list[list[Tree]]] = [
    [name, other, again]
    for name in ("shared", "array") for other in (name, "int") for again in (name, *AGAIN)
]  # fmt: skip


def pairs_differ() -> list[Known]:
    """Calls with each leaf and each container, alone and in a list, and with one object twice."""
    alone: list[list[Tree]] = [[each] for each in LEAVES]
    nested: list[list[Tree]] = [[(kind, ["int", "'a'"])] for kind in CONTAINERS]
    deep: list[list[Tree]] = [[("list", ["int", each])] for each in ("int", "'a'", "'b'", "shared", "f32(0)")]
    more: list[list[Tree]] = [[], ["int", "int"], [("tuple", [])], [("list", [])], [("list", ["int"])]]
    named = [Known(["int", each], 3.0, *names) for each in ("int", "'a'") for names in ("x", "y", "xy", "yx")]
    return named + [Known(each, 3.0) for each in alone + nested + deep + more + TWICE]
