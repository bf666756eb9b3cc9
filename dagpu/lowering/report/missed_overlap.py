"""Independent branches of a plan that are predicted not to overlap, with the reasons.

A *branch* is a chain of instructions: each is the only successor of the one before it, and has no other predecessor.
Two branches are independent if neither depends on the other.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, final

from dagpu.lowering.report.prediction import Prediction
from dagpu.lowering.schedule.engines import COMPUTE

MOST_BRANCHES: Final = 400
"""Most branches that are compared with each other, longest first; 400 give about 80,000 pairs, a second's work."""


@final
@dataclass(frozen=True, slots=True)
class Branch:
    """A chain of pieces of a forecast."""

    pieces: tuple[int, ...]
    """Indices of the pieces, in order."""
    begin: float
    """Begin of the first piece, in seconds from the start of the run."""
    end: float
    """End of the last piece, in seconds from the start of the run."""


@final
@dataclass(frozen=True, slots=True)
class Serialized:
    """Two independent branches that do not overlap: the second begins after the first has ended."""

    first: Branch
    second: Branch
    cause: str
    """`same stream`, `wait`, `memory`, `copy engine`, `busy stream` or `input`."""
    why: str
    """The reason in words, with the numbers of the instructions."""
    lost: float
    """Seconds that they could have overlapped: the work of the shorter one."""


@final
@dataclass(frozen=True, slots=True)
class Branches:
    """Branches of a plan, and the independent pairs among the longest that do not overlap."""

    longest: tuple[Branch, ...]
    """The longest branches, at most `MOST_BRANCHES`, in the plan's order."""
    count: int
    """Number of all branches."""
    pairs: int
    """Number of independent pairs among the longest branches."""
    apart: tuple[Serialized, ...]
    """The independent pairs that do not overlap, most lost first. Pairs of cause `input` come last."""


def branches_apart(plan: Prediction) -> Branches:
    """Find the independent branches of a plan that do not overlap."""
    chains, of_piece = _chains(plan)
    by_length = sorted(range(len(chains)), key=lambda chain: -_work(plan, chains[chain]))
    chosen = sorted(by_length[:MOST_BRANCHES])
    above = _above(plan, chains, of_piece, chosen)
    reasons = _Reasons(plan)
    found: list[Serialized] = []
    pairs = 0
    branches = {chain: _branch(plan, chains[chain]) for chain in chosen}
    for (bit, one), (other_bit, other) in combinations(enumerate(chosen), 2):
        if above[one] >> other_bit & 1 or above[other] >> bit & 1:
            continue
        pairs += 1
        first, second = sorted((branches[one], branches[other]), key=lambda branch: (branch.begin, branch.end))
        if second.begin >= first.end:
            cause, why = reasons.find(first, second)
            lost = min(_work(plan, first.pieces), _work(plan, second.pieces))
            found.append(Serialized(first, second, cause, why, lost))
    found.sort(key=lambda apart: (apart.cause == "input", -apart.lost))
    return Branches(tuple(branches.values()), len(chains), pairs, tuple(found))


def _work(plan: Prediction, pieces: Sequence[int]) -> float:
    """Return the sum of the durations of pieces, in seconds."""
    return sum([plan.pieces[piece].seconds for piece in pieces])


def _branch(plan: Prediction, pieces: Sequence[int]) -> Branch:
    return Branch(tuple(pieces), plan.pieces[pieces[0]].begin, plan.pieces[pieces[-1]].end)


def _chains(plan: Prediction) -> tuple[list[list[int]], list[int]]:
    """Return all branches, and for each piece the index of its branch."""
    followers = [0] * len(plan.pieces)
    for piece in plan.pieces:
        for earlier in piece.inputs:
            followers[earlier] += 1
    chains: list[list[int]] = []
    of_piece: list[int] = []
    for index, piece in enumerate(plan.pieces):
        if len(piece.inputs) == 1 and followers[piece.inputs[0]] == 1:
            chain = of_piece[piece.inputs[0]]
        else:
            chain = len(chains)
            chains.append([])
        chains[chain].append(index)
        of_piece.append(chain)
    return chains, of_piece


def _above(plan: Prediction, chains: list[list[int]], of_piece: list[int], chosen: Sequence[int]) -> list[int]:
    """Return, for each branch, the chosen branches that it depends on, as a set of bits.

    Branches are numbered in the plan's order. Others depend only on the last piece of a branch, and only its first
    piece depends on others.
    """
    bit = {chain: 1 << number for number, chain in enumerate(chosen)}
    above: list[int] = []
    for pieces in chains:
        needed = 0
        for earlier in plan.pieces[pieces[0]].inputs:
            chain = of_piece[earlier]
            needed |= above[chain] | bit.get(chain, 0)
        above.append(needed)
    return above


@final
class _Reasons:
    """Finds the reason why the second of two branches begins after the first."""

    def __init__(self, plan: Prediction) -> None:
        self._plan = plan
        self._of_lane: list[list[int]] = [[] for _ in plan.lanes]
        """For each lane, its pieces in order."""
        self._place: list[int] = []
        """For each piece, its position on its lane."""
        self._engine: list[int] = []
        """For each piece, the previous copy on its copy engine; -1 if there is none."""
        latest: dict[tuple[int, int], int] = {}
        for index, piece in enumerate(plan.pieces):
            self._place.append(len(self._of_lane[piece.lane]))
            self._of_lane[piece.lane].append(index)
            engine = plan.device_of_lane[piece.lane], piece.engine
            self._engine.append(-1 if piece.engine == COMPUTE else latest.get(engine, -1))
            latest[engine] = index

    def find(self, first: Branch, second: Branch) -> tuple[str, str]:
        """Return the cause, and the reason in words."""
        pieces = self._plan.pieces
        last, head = first.pieces[-1], second.pieces[0]
        piece = pieces[head]
        late = max(piece.inputs, key=lambda other: pieces[other].end, default=-1)
        if late >= 0 and piece.begin <= pieces[late].end:
            return "input", f"#{piece.number} begins as soon as its input #{pieces[late].number} is there"
        engine = self._engine[head]
        if engine >= 0 and pieces[engine].end == piece.begin:
            busy = f"#{pieces[engine].number}"
            return "copy engine", f"the copy engine for #{piece.number} is busy with {busy} until then"
        if pieces[last].lane == piece.lane:
            return "same stream", f"same stream {self._plan.lanes[piece.lane]}, {self._elsewhere(head)}"
        if self._comes_after(head, last):
            return self._wait(last, head)
        before = self._of_lane[piece.lane][: self._place[head]]
        busy = f"with #{pieces[before[-1]].number}" if before else "waiting"
        return "busy stream", f"nothing orders them, but {self._plan.lanes[piece.lane]} is busy {busy} until then"

    def _elsewhere(self, head: int) -> str:
        """Say whether the piece could have begun earlier on another lane of its device."""
        plan, piece = self._plan, self._plan.pieces[head]
        device = plan.device_of_lane[piece.lane]
        ready = max([plan.pieces[other].end for other in piece.inputs], default=0.0)
        others = [lane for lane, at in enumerate(plan.device_of_lane) if at == device and lane != piece.lane]
        for lane in others:
            if self._idle(lane, ready, min(ready + piece.seconds, piece.begin)):
                return f"though {plan.lanes[lane]} is idle when #{piece.number} could begin"
        return "and every other stream is busy when it could begin" if others else "the only one"

    def _idle(self, lane: int, begin: float, end: float) -> bool:
        """Return whether a lane is idle for this time."""
        pieces, of_lane = self._plan.pieces, self._of_lane[lane]
        later = bisect_right(of_lane, begin, key=lambda piece: pieces[piece].end)
        return later == len(of_lane) or pieces[of_lane[later]].begin >= end

    def _wait(self, last: int, head: int) -> tuple[str, str]:
        """Name the latest wait on the lane of `head`, at or before it, that orders it after `last`."""
        pieces = self._plan.pieces
        of_lane = self._of_lane[pieces[head].lane]
        for place in range(self._place[head], -1, -1):
            piece = pieces[of_lane[place]]
            for earlier in piece.waits:
                if self._comes_after(earlier, last):
                    if earlier not in piece.inputs:
                        return "memory", f"memory: #{piece.number} waits for #{pieces[earlier].number} to release bytes"
                    name = self._plan.lanes[pieces[earlier].lane]
                    return "wait", f"a wait through #{piece.number}, which needs #{pieces[earlier].number} on {name}"
        return "wait", "a wait of the stream"

    def _comes_after(self, piece: int, other: int) -> bool:
        """True if `piece` is on the lane of piece `other`, or starts after that in every execution."""
        earlier = self._plan.pieces[other]
        return self._plan.clocks[piece][earlier.lane] >= earlier.step
