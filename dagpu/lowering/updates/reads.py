"""`Reads`: the sources and cutoffs on which the values of one run depend, as its DAG says.

A value depends on what is below its op, and where a closure has returned an op, on what is below that. What the run has
read before it, or beside it, does not matter.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias, final

from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Cutoff, Shared, Unzip, sources_of
from dagpu.ops.live.source_op import Source
from dagpu.ops.single_flight import Once

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Remembering: TypeAlias = Shared[Any] | Unzip[Any]
Read: TypeAlias = Source[Any] | Cutoff[Any, Any, Any]


@final
class Reads:
    """What the `Shared` and `Unzip` values of one run depend on. Ask for a value only when it is made: no closure below
    it is still to be called."""

    __slots__ = ("_below", "_built", "_found")

    def __init__(self) -> None:
        self._below: dict[Once, AnyOp] = {}
        """The op whose value each of them is."""
        self._built: dict[AnyOp, AnyOp] = {}
        """The ops that closures have returned."""
        self._found: dict[Once, tuple[Read, ...]] = {}

    def start(self, node: Remembering) -> None:
        """Record a value that the run evaluates."""
        self._below[node.once] = _below(node)

    def built(self, node: AnyOp, op: AnyOp) -> None:
        """Record the op that the closure of a node has returned."""
        self._built[node] = op

    def used(self, once: Once, reads: Iterable[Read]) -> None:
        """Record a value that an earlier run has made, and what it depends on."""
        self._found[once] = tuple(reads)

    def of(self, once: Once) -> tuple[Read, ...]:
        """Return the sources and cutoffs on which a value depends, each once."""
        todo = [once]
        while todo:
            if todo[-1] in self._found:
                todo.pop()
                continue
            found, inside = self._walk(self._below[todo[-1]])
            if missing := [each for each in inside if each not in self._found]:
                todo += missing  # a value below this one: what it depends on is found once
                continue
            for each in inside:
                found.update(dict.fromkeys(self._found[each]))
            self._found[todo.pop()] = tuple(found)
        return self._found[once]

    def _walk(self, root: AnyOp) -> tuple[dict[Read, None], list[Once]]:
        """Return the sources and cutoffs below an op, and the remembered values, behind which it does not look."""
        found: dict[Read, None] = {}
        inside: list[Once] = []
        seen: set[AnyOp] = set()
        todo = [root]
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            if type(node) is Shared or type(node) is Unzip:
                self._below.setdefault(node.once, _below(node))
                inside.append(node.once)
                continue
            if type(node) is Source or type(node) is Cutoff:
                found[node] = None
            todo += sources_of(node)
            if node in self._built:
                todo.append(self._built[node])
        return found, inside


def _below(node: Remembering) -> AnyOp:
    """Return the op whose value a node remembers."""
    return node.split.source if isinstance(node, Unzip) else node.source
