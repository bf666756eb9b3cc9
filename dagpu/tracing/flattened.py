"""`Flattened`: an op as a key, by which plans are found, and leaves, which are the inputs of one run."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

from dagpu.ops.base import DeviceOp
from dagpu.ops.graph import Captured
from dagpu.ops.single_flight import Once
from dagpu.ops.versions import Snapshot

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]

Row: TypeAlias = tuple[Any, ...]
"""One row of the table: the kind of a value (dagpu.tracing.value_kinds), its place, and all that a trace can
tell of it. A leaf, and its index, is what a run may have another of."""

SEED_PLACE: Final = 0
"""The argument position of the seed in `Flattened.number_leaves`. An op that takes a seed has no other number."""


@final
class CacheKey:
    """The table of an op, with its hash computed once. A cache asks for the hash several times, and a long chain has
    about six rows for each launch."""

    __slots__ = ("_hash", "rows")

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self._hash = hash(rows)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return type(other) is CacheKey and self.rows == other.rows


NO_KEY: Final = CacheKey(())
"""The key of an op that has not been read to its end."""


@final
class RememberedValue:
    """The value of a `Shared` or `Unzip`, as the key has it."""

    __slots__ = ("alive", "components", "leaf", "made_for", "uses", "value")

    def __init__(self, value: Any, leaf: int, made_for: Mapping[Any, int]) -> None:
        self.made_for = made_for
        """The sources of which an earlier run has made the value, with their revisions."""
        self.value = value
        """The value (of an `Unzip`, the list of its components); `NOTHING` if the run has to compute it."""
        self.leaf = leaf
        """The index of the `Once` among the leaves, if the run has to compute the value."""
        self.uses = 0
        """The number of times that the DAG uses the value, or a component of it."""
        self.components: set[int] = set()
        """The components of an `Unzip` that the DAG uses."""
        self.alive: tuple[bool, ...] = ()
        """For each component of an `Unzip` that has not run: true if an op may still take it."""


class Flattened:
    """The leaves of one run, and the key of the plans that can serve it."""

    def __init__(self) -> None:
        self.key = NO_KEY
        self.leaves: list[Any] = []
        self.nodes: set[AnyOp] = set()
        """The ops that hold leaves. A closure may build other ops around the same objects, where they are not
        leaves."""
        self.array_leaves: dict[int, int] = {}
        """The index of the array of each `FromHost` among the leaves, by the id of that op."""
        self.number_leaves: dict[tuple[int, int], int] = {}
        """The index of each number among the leaves. The key of an argument of a kernel is the id of the `Launch` and
        the argument's position, and that of a seed is the id of the `Alloc` and `SEED_PLACE`."""
        self.calls: dict[int, slice] = {}
        """The rows of a pipeline's arguments, by the id of the `Value` that holds them."""
        self.named: dict[int, object] = {}
        """The objects whose ids are in the key, by their ids. The owner of the key keeps these objects alive, so that
        the ids stay unique."""
        self.graphs: list[Captured] = []
        """The graphs that the op launches. A plan keeps alive what its graph refers to, so the graph itself must own
        the plan."""
        self.owners: list[Any] = []
        """The pipelines that the op calls. A plan keeps alive what its pipeline closes over, so the pipeline itself
        must own the plan."""
        self.remembered: dict[Once, RememberedValue] = {}
        """The values of the `Shared` and `Unzip` nodes of the DAG."""
        self.snapshot: Snapshot | None = None
        """The instant at which the run reads sources; None if the op has none."""
        self.source_leaves: dict[AnyOp, int] = {}
        """The sources of the DAG, and of its remembered values, each with the index of the leaf that has its
        revision."""
        self.source_values: dict[AnyOp, int] = {}
        """The index of the value of each source of the DAG among the leaves; -1 for a value that is in the key."""
        self.streams = False
        """True if the op names a stream. A plan of such an op keeps that stream alive."""
        self.changeable = False
        """True if the same op may have another key in its next run: because the shape or element type of an array may
        be changed in place, or because the op remembers a value. (Lists and dicts belong to the op alone, since a call
        copies them.)"""

    def revisions(self) -> dict[AnyOp, int]:
        """Return the revision of each source of the DAG, and of its remembered values."""
        return {node: self.leaves[index][1] for node, index in self.source_leaves.items()}
