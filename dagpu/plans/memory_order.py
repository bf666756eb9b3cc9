"""An order of the instructions of a program for little memory: a beam search, from the start and from the end.

To find the order that holds the least memory is NP-hard (R. Sethi, "Complete register allocation problems", SIAM J.
Comput. 4, 1975). The search goes on from several partial orders at once: in each step from those that have held the
least so far, and of these from those that hold the least now. Two partial orders of the same instructions hold the same
bytes, so the one that has held less is kept. From the end it is the same search with the order reversed: a buffer that
is alive between its first write and its last use is so in either direction. The better of the two orders is taken.

A program of 18 instructions is searched almost whole, one of thousands a few partial orders wide: `_WORK` bounds the
time.
"""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final, NamedTuple, final

from dagpu.plans.plan import written_over
from dagpu.plans.program import HOST, Launch, Program, Role

_WORK: Final = 3000
"""Steps of partial orders in one direction, in all."""
_WIDEST: Final = 256
"""The most partial orders that are kept."""
_NEXT: Final = 12
"""The most next instructions that are tried for each: those that hold the least then."""


def order_for_memory(program: Program) -> list[int]:
    """Return the instructions in an order that holds little memory. Each comes after all that it depends on."""
    graph = _Graph(program)
    forward, most = graph.search(backward=False)
    backward, other = graph.search(backward=True)
    return forward if most <= other else backward[::-1]


@final
class _State(NamedTuple):
    """A partial order."""

    most: int
    """The most bytes that it holds at once."""
    held: int
    """The bytes that it holds at its end."""
    ready: tuple[int, ...]
    """The instructions that may come next."""
    done: int
    """Its instructions, as a set of bits."""
    last: int
    """Its last instruction; -1 if it is empty."""
    before: "_State | None"
    """The partial order without the last instruction."""


@final
class _Graph:
    """What a search asks of a program, as sets of bits: in either direction."""

    def __init__(self, program: Program) -> None:
        accesses, count = program.accesses, len(program.instructions)
        self.count = count
        self._before = [0] * count
        self._after = [0] * count
        self._later: list[list[int]] = [[] for _ in range(count)]
        self._earlier: list[list[int]] = [[] for _ in range(count)]
        for index, found in enumerate(accesses.predecessors):
            for earlier in dict.fromkeys(found):
                self._before[index] |= 1 << earlier
                self._after[earlier] |= 1 << index
                self._later[earlier].append(index)
                self._earlier[index].append(earlier)
        self._touched: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        """For each instruction, the temporaries that it uses: their bytes, and all their users."""
        users: dict[int, list[int]] = {}
        for index, instruction in enumerate(program.instructions):
            for buffer in dict.fromkeys((*instruction.reads, *instruction.writes)):
                users.setdefault(buffer, []).append(index)
        for buffer, using in users.items():
            about = program.buffers[buffer]
            if about.role is Role.TEMPORARY and about.device != HOST and about.nbytes:
                mask = sum([1 << index for index in using])
                for index in using:
                    self._touched[index].append((about.nbytes, mask))
        self._over = [written_over(each, program) if type(each) is Launch else 0 for each in program.instructions]
        """For each instruction, the bytes that it does not take if it ends an input that it may write over."""

    def search(self, *, backward: bool) -> tuple[list[int], int]:
        """Return an order, and the most bytes that it holds; with `backward` from the end."""
        needs, follow = (self._after, self._earlier) if backward else (self._before, self._later)
        width = max(2, min(_WIDEST, _WORK // max(self.count, 1)))
        ready = tuple([index for index in range(self.count) if not needs[index]])
        states = [_State(0, 0, ready, 0, -1, None)]
        for _ in range(self.count):
            found: dict[int, _State] = {}
            for state in states:
                for most, held, index in nsmallest(_NEXT, self._steps(state)):
                    done = state.done | 1 << index
                    known = found.get(done)
                    if known is None or most < known.most:
                        found[done] = _State(most, held, (), done, index, state)
            states = [self._with_ready(state, needs, follow) for state in nsmallest(width, found.values(), key=_rank)]
        order: list[int] = []
        at: _State | None = states[0] if states else None
        while at is not None and at.last >= 0:
            order.append(at.last)
            at = at.before
        return order[::-1], states[0].most if states else 0

    def _steps(self, state: _State) -> list[tuple[int, int, int]]:
        """Return for each instruction that may come next the most bytes then, the bytes after it, and itself."""
        found: list[tuple[int, int, int]] = []
        done, held = state.done, state.held
        for index in state.ready:
            new = ended = 0
            rest = ~(done | 1 << index)
            for nbytes, users in self._touched[index]:
                if not users & done:
                    new += nbytes
                if not users & rest:
                    ended += nbytes
            over = self._over[index]
            now = held + new - (over if over and ended >= over else 0)
            found.append((max(state.most, now), held + new - ended, index))
        return found

    def _with_ready(self, state: _State, needs: Sequence[int], follow: Sequence[Sequence[int]]) -> _State:
        """Return a state with the instructions that may come next."""
        before = state.before
        assert before is not None
        done, last = state.done, state.last
        fresh = [index for index in follow[last] if not needs[index] & ~done]
        return state._replace(ready=(*[index for index in before.ready if index != last], *fresh))


def _rank(state: _State) -> tuple[int, int]:
    return state.most, state.held
