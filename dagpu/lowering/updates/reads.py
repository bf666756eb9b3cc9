"""`Reads`: the sources and cutoffs on which the values of one run depend, as its DAG says.

A value depends on what is below its op, and where a closure has returned an op, on what is below that. What the run has
read before it, or beside it, does not matter.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias, final

from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Cutoff, Shared, Then, Unzip, sources_of
from dagpu.ops.single_flight import Once
from dagpu.ops.source_op import Source

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Remembering: TypeAlias = Shared[Any] | Unzip[Any]
Read: TypeAlias = Source[Any] | Cutoff[Any, Any, Any]


@final
class _Below:
    """What is below an op. It refers to no op that a closure has built: that keeps handles, whose memory the run would
    have to give out as a result."""

    __slots__ = ("inside", "reads")

    def __init__(self) -> None:
        self.reads: dict[Read, None] = {}
        self.inside: list[_Below | Once] = []
        """What is below the ops that closures have returned, and the remembered values, which are looked up."""


@final
class Reads:
    """What the `Shared` and `Unzip` values of one run depend on. Ask for a value only when it is made: no closure below
    it is still to be called."""

    __slots__ = ("_below", "_found", "_new", "_waiting")

    def __init__(self) -> None:
        self._below: dict[Once | AnyOp, _Below] = {}
        """What is below each remembered value, and below each op that is watched."""
        self._found: dict[Once | AnyOp, tuple[Read, ...]] = {}
        """The values that earlier runs have made, and those that were asked for."""
        self._waiting: dict[AnyOp, list[_Below]] = {}
        """The ops whose closures are still to be called, with what they are parts of: one on the host may be part of
        several."""
        self._new: list[tuple[AnyOp, AnyOp | None, tuple[Read, ...] | None]] = []
        """What has been recorded and not been looked at: a node that is evaluated, or whose closure has returned an
        op, or that has run by a plan of its own."""

    def start(self, node: AnyOp) -> None:
        """Record a `Shared` or `Unzip` that the run evaluates, or before the run another op for which `of` is asked."""
        self._new.append((node, None, None))

    def built(self, node: AnyOp, op: AnyOp) -> None:
        """Record the op that the closure of a node has returned."""
        self._new.append((node, op, None))

    def ran(self, node: AnyOp, reads: Iterable[Read]) -> None:
        """Record an op that ran by a plan of its own, and what its value depends on."""
        self._new.append((node, None, tuple(reads)))

    def settle(self, *, depends: bool) -> None:
        """Let go of the ops that closures have built, once all closures have been called: the handles in them would
        count as results. Without `depends` no value of the run depends on a source, and nothing is looked at."""
        if depends:
            self._look()
        self._new.clear()

    def used(self, once: Once, reads: Iterable[Read]) -> None:
        """Record a value that an earlier run has made, and what it depends on."""
        self._found[once] = tuple(reads)

    def of(self, value: Once | AnyOp) -> tuple[Read, ...]:
        """Return the sources and cutoffs on which a value depends, each once."""
        self._look()
        found = self._found.get(value)
        if found is None:
            reads: dict[Read, None] = {}
            todo: list[_Below | Once | AnyOp] = [value]
            seen: set[_Below | Once | AnyOp] = set()
            while todo:
                each = todo.pop()
                if each in seen:
                    continue
                seen.add(each)
                if isinstance(each, _Below):
                    reads.update(each.reads)
                    todo += each.inside
                elif each in self._found:
                    reads.update(dict.fromkeys(self._found[each]))
                else:
                    todo.append(self._below[each])
            found = self._found[value] = tuple(reads)
        return found

    def _look(self) -> None:
        """Look at what has been recorded since. A run that reads no source never does."""
        for node, op, reads in self._new:
            if op is not None:
                for below in self._waiting.pop(node, ()):
                    self._walk(op, below)
            elif reads is not None:
                self._put_reads(node, reads)
            elif type(node) is not Shared and type(node) is not Unzip:
                if node not in self._below:
                    self._walk(node, self._open(node))
            elif node.once not in self._below:
                self._walk(_source(node), self._open(node.once))
        self._new.clear()

    def _put_reads(self, node: AnyOp, reads: tuple[Read, ...]) -> None:
        """Let whatever has closures below this node depend on these reads: they were called in another run."""
        inside = _Below()
        inside.reads.update(dict.fromkeys(reads))
        todo, seen = [node], {node}
        while todo:
            each = todo.pop()
            for below in self._waiting.pop(each, ()):
                below.inside.append(inside)
            more = [source for source in sources_of(each) if source not in seen]
            seen.update(more)
            todo += more

    def _open(self, value: Once | AnyOp) -> _Below:
        below = self._below[value] = _Below()
        return below

    def _walk(self, root: AnyOp, below: _Below) -> None:
        """Find what is below an op, for each remembered value that is met for the first time apart."""
        todo = [(root, below)]
        seen: set[tuple[AnyOp, _Below]] = set()
        while todo:
            node, below = todo.pop()
            if type(node) is Shared or type(node) is Unzip:
                below.inside.append(node.once)
                if node.once not in self._below:
                    todo.append((_source(node), self._open(node.once)))
                continue
            if (node, below) in seen:
                continue
            seen.add((node, below))
            if type(node) is Source or type(node) is Cutoff:
                below.reads[node] = None
            elif type(node) is Then:
                self._waiting.setdefault(node, []).append(below)
            todo += [(source, below) for source in sources_of(node)]


def _source(node: Remembering) -> AnyOp:
    """Return the op whose value a node remembers."""
    return node.split.source if isinstance(node, Unzip) else node.source
