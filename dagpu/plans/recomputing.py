"""Recomputation: programs that make temporaries again, so that they need not be kept.

It is a transformation of programs. A temporary that one pure instruction writes, from what does not change, may end
before a pause in its uses and be made again after it, by the same instruction on other buffers. So are inputs of that
instruction that have ended by then. Results keep their bits: a value is computed more often, and never
otherwise, which `verify_placement` proves by value numbers. Nothing here knows of gradients.

The search goes down a ladder of limits, each a part of the peak before, through the states of
`dagpu.plans.retention`. On each rung temporaries end in a pause until the limit is kept: those first that bring the
program nearest to it for a second of work, where the work counts all that has to be made again. Then as many are kept
again as there is room for. A small program's state is improved then: some temporaries are kept in spite of the limit
and others end for them, as in a search of large neighbourhoods. Of the program's order and a depth-first one, which
makes a temporary when it is read, that one is searched which holds fewer bytes over all instructions. Each state, a
program, its peak and its work, is kept, and none depends on the limit of a policy. So a larger limit never takes more
work.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Final, NamedTuple, final

import numpy as np

from dagpu.common.errors import PlanError
from dagpu.handles.device_handles import UserBody
from dagpu.plans.fitting import depth_first, fit
from dagpu.plans.list_schedule import ListSchedule, RoomySchedules
from dagpu.plans.plan import ALIGNMENT, Plan, written_over
from dagpu.plans.policies import Fixed, Placement, own_bytes, place_program, reordered
from dagpu.plans.prediction import makespan_of
from dagpu.plans.program import (
    HOST,
    Buffer,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    If,
    Instruction,
    Launch,
    Program,
    Renumbering,
    Role,
    covers,
)
from dagpu.plans.retention import Retention, Values
from dagpu.plans.scheduler import as_placed
from dagpu.plans.text import counted, duration

_SMALL: Final = 300
"""The most instructions of a program that is searched thoroughly."""
_LARGE: Final = 1200
"""The most instructions of a program of which more than a few plans are tried without recomputation."""
_COPIES: Final = (CopyHtoD, CopyDtoH)
_POWERS: Final = 3
"""The number of ways to weigh bytes above a limit."""
_RUNGS: Final = ((_SMALL, 0.96, _POWERS), (600, 0.95, 2), (_LARGE, 0.95, 1), (inf, 0.87, 1))
"""For programs of at most so many instructions a limit as a part of the one before, and the ways that are tried."""
_TRIES: Final = 600
"""Attempts to improve each state, times instructions."""
_MOST_TRIES: Final = 6
"""The most such attempts."""
_WORTH: Final = 1.6
"""The work of a state that is improved, as a factor of that of the program."""
_AT_ONCE: Final = (1, 2, 4, 8, 16)
"""The values of which one attempt keeps some."""
_MOST_WORK: Final = (2, 1.4)
"""The most work of a state, as a factor of that of the program: of one that is not large, and of a large one."""
_LOOKS: Final = 4
"""The most pauses that are looked at from one state to the next, for each instruction."""
_NEARLY: Final = 0.8
"""The worth of a pause that is taken, as a part of what the next one may have at most. To find the best one exactly
takes twice as long in a program of many equal layers."""
_LEAST: Final = 1e-9
"""The least seconds that making again counts as."""
_ROOMS: Final = (1.4,)
"""The rooms that are tried for a state on several streams, as factors of its peak; none for one of a large program."""
_PLANS: Final = 16_000
"""The most instructions of all states that are tried together. Of a larger program fewer states are."""


def repeats(instruction: Instruction, buffers: Sequence[Buffer]) -> bool:
    """Return whether an instruction may run twice: it changes nothing but what it writes, and writes the same again."""
    if type(instruction) is Launch:
        kernel = instruction.kernel
        return kernel.state is None and instruction.tile_list is None and not isinstance(kernel.library, UserBody)
    return type(instruction) is Fill or (type(instruction) is CopyDtoD and covers(instruction, buffers))


# ---- the search


@final
class State(NamedTuple):
    """A program that makes some temporaries again."""

    peak: int
    """The most bytes of temporaries that are alive at once in its order."""
    work: float
    """The seconds of all its instructions."""
    again: int
    """The number of instructions that are made again."""
    made: tuple[tuple[int, tuple[int, ...]], ...]
    """For each stage that makes temporaries again, these."""
    begins: dict[int, list[int]]
    """For each temporary with several spans, the stages in which they begin."""


@final
class Recomputation:
    """The states of a program, from the one that makes nothing again to the one that takes the least memory."""

    def __init__(self, program: Program, times: Sequence[float]) -> None:
        self.times = times
        deep = depth_first(program)
        tried = [(program, list(times)), (reordered(program, deep), [times[at] for at in deep])]
        searched = [(values_of(each, seconds), each) for each, seconds in tried]
        states = [(Retention(values), values, each) for values, each in searched]
        start, values, self._program = min(states, key=lambda each: int(each[0].held().sum()))
        self.states = _without_dominated(_search(start, values))
        """The states, each with less peak and more work than the one before."""

    def program(self, state: State) -> Program:
        """Return the program of a state. The buffers of the first program keep their numbers."""
        old, numbering = self._program, Renumbering()
        buffers, instructions, policy_of = list(old.buffers), list[Instruction](), list[int]()
        maker = {buffer: at for at, each in enumerate(old.instructions) for buffer in each.writes}
        made, begins = dict(state.made), state.begins
        instances = {value: [value] for value in begins}

        def at_stage(value: int, stage: int) -> int:
            return instances[value][bisect_right(begins[value], stage) - 1] if value in begins else value

        def put(index: int, stage: int, outputs: dict[int, int]) -> None:
            each = old.instructions[index]
            to = _Same({buffer: at_stage(buffer, stage) for buffer in each.reads} | outputs)
            if any(to[buffer] != buffer for buffer in (*each.reads, *each.writes)):
                each = numbering.instruction(each, to, each.device)
            instructions.append(each)
            policy_of.append(old.policy_of[index])

        for stage in range(len(old.instructions)):
            for value in made.get(stage, ()):
                outputs: dict[int, int] = {}
                for buffer in old.instructions[maker[value]].writes:  # its scratch memory too
                    outputs[buffer] = len(buffers)
                    buffers.append(buffers[buffer])
                instances[value].append(outputs[value])
                put(maker[value], stage, outputs)
            put(stage, stage, {})
        return replace(old, buffers=tuple(buffers), instructions=tuple(instructions), policy_of=tuple(policy_of))


def values_of(program: Program, times: Sequence[float]) -> Values:
    """Return what a search asks of a program."""
    sizes = [
        -(-each.nbytes // ALIGNMENT) * ALIGNMENT if each.role is Role.TEMPORARY and each.device != HOST else 0
        for each in program.buffers
    ]
    reads = [tuple([b for b in dict.fromkeys(each.reads) if sizes[b]]) for each in program.instructions]
    writes = [tuple([b for b in dict.fromkeys(each.writes) if sizes[b]]) for each in program.instructions]
    over = [written_over(each, program) if type(each) is Launch else 0 for each in program.instructions]
    may_end = [may and size > 0 for may, size in zip(_may_end(program), sizes, strict=True)]
    return Values(reads, writes, sizes, may_end, over, times)


def _search(state: Retention, values: Values) -> Iterator[State]:
    """Yield the states of a search down a ladder of limits."""
    draw, count, least = Random(0), max(len(values.times), 1), state.work
    rung, powers = next((rung, powers) for most, rung, powers in _RUNGS if count <= most)
    tries = min(_TRIES // count, _MOST_TRIES) if count <= _SMALL else 0
    peak = limit = int(state.held().max(initial=0))
    yield _snapshot(state, peak)
    while peak:
        limit = int(limit * rung)
        if peak <= limit:
            continue
        if not _lower(state, values, limit, powers):
            return
        for attempt in range(tries if state.work < _WORTH * least else 0):
            _improve(state, values, limit, draw, attempt)
        peak = int(state.held().max())
        yield _snapshot(state, peak)


def _snapshot(state: Retention, peak: int) -> State:
    made = tuple([(stage, tuple(again)) for stage, again in enumerate(state.again) if again])
    begins = {value: [begin for begin, _ in spans] for value, spans in enumerate(state.spans) if len(spans) > 1}
    return State(peak, state.work, sum([len(again) for _, again in made]), made, begins)


def _lower(state: Retention, values: Values, limit: int, powers: int) -> bool:
    """Bring a state within a limit, and return whether that is so. Of several ways the one with the least work is
    taken; if none succeeds the state stays as it is."""
    found: list[tuple[float, int]] = []
    for power in range(powers):
        state.begin()
        if _Descent(state, values, limit, power).run():
            _rise(state, values, limit)
            if powers == 1:
                state.accept()
                return True
            found.append((state.work, power))
        state.undo()
    if found:
        _Descent(state, values, limit, min(found)[1]).run()
        _rise(state, values, limit)
    return bool(found)


def _improve(state: Retention, values: Values, limit: int, draw: Random, attempt: int) -> None:
    """Keep some values in spite of a limit, let others end for them, and take the result if it is no more work. The
    first attempts keep all."""
    gaps = [(value, end) for value, spans in enumerate(state.spans) for _, end in spans[:-1]]
    if not gaps:
        return
    work, size = state.work, draw.choice(_AT_ONCE)
    power = attempt if attempt < _POWERS else draw.randrange(_POWERS)
    if attempt < _POWERS:
        pass
    elif draw.random() < 0.5:
        first = draw.randrange(len(gaps))
        gaps = gaps[max(first - size // 2, 0) : first + size // 2 + 1]
    else:
        gaps = draw.sample(gaps, min(size, len(gaps)))
    state.begin()
    for value, end in gaps:
        at = state.span_at(value, end)
        if state.spans[value][at][1] == end and at + 1 < len(state.spans[value]):
            state.keep(value, at)
    if _Descent(state, values, limit, power).run():
        _rise(state, values, limit)
        if state.work <= work:
            state.accept()
            return
    state.undo()


@final
class _Descent:
    """The moves that bring a state within a limit: those first that bring it nearest for a second of work. The bytes
    above the limit count the more where they are the most, by their 8th, 2nd or 0th power."""

    def __init__(self, state: Retention, values: Values, limit: int, power: int) -> None:
        self._state, self._values, self._limit, self._power = state, values, limit, power
        self._heap: list[tuple[float, int, int, int]] = []
        """Pauses by the most that they may be worth: that with the sign changed, the value, the stages around."""
        self._known: set[tuple[int, int, int]] = set()
        """The pauses in the heap."""
        self._weigh()

    def run(self) -> bool:
        """Let spans end until the state keeps the limit, and return whether it does."""
        state, heap, everything = self._state, self._heap, range(len(self._values.sizes))
        count, passes = len(self._values.times), 0
        most, looks = _MOST_WORK[count > _LARGE] * sum(self._values.times), _LOOKS * count
        while self._sums[-1]:
            if not heap:
                if passes == 2:
                    return False
                passes += 1
                self._add(everything)
                continue
            looks -= 1
            _, value, before, use = heappop(heap)
            self._known.discard((value, before, use))
            if not state.is_gap(value, before, use):
                continue
            # If nothing is worth what is kept longer for it, that does not count.
            worth = self._worth(value, before, use, counts_kept=passes < 2)
            if worth <= 0:
                continue
            if heap and worth < -heap[0][0] * _NEARLY:
                self._push(worth, value, before, use)
                continue
            state.touched.clear()
            state.end(value, before, use)
            passes = 0
            if state.work > most or looks < 0:
                return False
            self._weigh()
            self._add(sorted(state.touched))
        return True

    def _weigh(self) -> None:
        """Find for each stage the bytes above the limit, their weight, and the sum of them up to each stage."""
        excess = np.maximum(self._state.held() - self._limit, 0)
        weights = excess / max(int(excess.max(initial=0)), 1)
        squares = weights * weights
        fourth = squares * squares
        self._excess = excess
        self._weights = (fourth * fourth, squares, (excess > 0).astype(np.float64))[self._power]
        self._sums = np.cumsum(excess)

    def _gain(self, value: int, before: int, use: int) -> float:
        """Return the weighed bytes above the limit that are not held in a pause."""
        state = self._state
        # Where it is made again for others, it ends within that stage.
        stays = not state.again[before] or before == state.maker[value] or value in self._values.reads[before]
        first = before + stays
        if self._sums[use - 1] == self._sums[first - 1]:
            return 0.0
        here = slice(first, use)
        return float((np.minimum(self._excess[here], self._values.sizes[value]) * self._weights[here]).sum())

    def _worth(self, value: int, before: int, use: int, *, counts_kept: bool) -> float:
        """Return what a pause is worth for a second of work; 0 for nothing."""
        worth = self._gain(value, before, use)
        if not worth:
            return 0.0
        price, kept = self._state.price(value, use)
        for nbytes, after, until in kept if counts_kept else ():
            if self._sums[until - 1] != self._sums[after]:
                worth -= nbytes * float(self._weights[after + 1 : until].sum())
        return worth / max(price, _LEAST)

    def _add(self, members: Iterable[int]) -> None:
        """Add the pauses of values, as if nothing else had to be made again for them."""
        state = self._state
        for value in members:
            if self._values.may_end[value]:
                seconds = max(self._values.times[state.maker[value]], _LEAST)
                for before, use in state.gaps(value):
                    if (value, before, use) not in self._known and (worth := self._gain(value, before, use)):
                        self._push(worth / seconds, value, before, use)

    def _push(self, worth: float, value: int, before: int, use: int) -> None:
        self._known.add((value, before, use))
        heappush(self._heap, (-worth, value, before, use))


def _rise(state: Retention, values: Values, limit: int) -> None:
    """Keep again what there is room for, what took the most work first."""
    held = state.held()
    while True:
        found = [
            (-values.times[state.maker[value]], value, spans[at][1])
            for value, spans in enumerate(state.spans)
            for at in range(len(spans) - 1)
            if int(held[spans[at][1] + 1 : spans[at + 1][0]].max(initial=0)) + values.sizes[value] <= limit
        ]
        before = state.work
        for _, value, after in sorted(found):
            at = state.span_at(value, after)
            spans = state.spans[value]
            if spans[at][1] != after or at + 1 == len(spans):
                continue
            if int(held[after + 1 : spans[at + 1][0]].max(initial=0)) + values.sizes[value] > limit:
                continue
            work = state.work
            state.begin()
            state.keep(value, at)
            if int(state.held().max()) <= limit and state.work < work:
                state.accept()
            else:
                state.undo()
            held = state.held()
        if state.work >= before:
            return


@final
class _Same(dict[int, int]):
    """New numbers of buffers. A buffer that is not in it keeps its number."""

    def __missing__(self, buffer: int) -> int:
        return buffer


def _may_end(program: Program) -> list[bool]:
    """Return for each buffer whether it is a temporary that one instruction writes that may run again, from what does
    not change after that."""
    buffers, writers = program.buffers, [0] * len(program.buffers)
    for each in program.instructions:
        for buffer in each.writes:
            writers[buffer] += 1
    steady = [count <= (each.role is not Role.INPUT) for count, each in zip(writers, buffers, strict=True)]
    found = [False] * len(buffers)
    for each in program.instructions:
        scratch = each.scratch.buffer if type(each) is Launch and each.scratch is not None else -1
        made = [buffer for buffer in each.writes if buffer != scratch]
        if len(made) == 1 and writers[made[0]] == 1 and made[0] not in each.reads and repeats(each, buffers):
            about = buffers[made[0]]
            alone = about.role is Role.TEMPORARY and about.device != HOST
            found[made[0]] = alone and all(map(steady.__getitem__, each.reads))
    return found


def _without_dominated(states: Iterable[State]) -> list[State]:
    """Return the states that no other one beats in both peak and work, by ascending work."""
    found: list[State] = []
    for state in sorted(states, key=lambda each: (each.work, each.peak)):
        if not found or state.peak < found[-1].peak:
            found.append(state)
    return found


# ---- within a limit


@final
@dataclass(frozen=True, slots=True)
class _Choice:
    """A program, its placement and its plan."""

    time: float
    program: Program
    placement: Placement
    plan: Plan
    about: str


def recomputed(
    program: Program, memory_for_runs: Callable[[str, Sequence[int]], int | None] = lambda _, __: None
) -> Program:
    """Return the program that keeps the memory limit of a `ListSchedule` with `recompute=True` in the least predicted
    time; the program itself if its plan keeps the limit anyway, or if no such policy places all of it (see
    `_policy_of`).

    Its policy is then a `Fixed` one. If nothing that was tried keeps the limit, it is the program of the least peak,
    and `schedule` raises the error.

    Without a limit `memory_for_runs` gives that of the device for results of some sizes, with or without recomputation;
    None for no limit. If no plan is found within that, the program is returned: memory may be free when it runs.
    """
    policy = _policy_of(program)
    if policy is None or len(program.devices) != 1 or "/" in program.devices[0]:
        return program
    given, limit = policy.memory_limit, policy.memory_limit
    if given is None:
        results = [each.nbytes for each in program.buffers if each.role is Role.OUTPUT and each.device != HOST]
        limit = memory_for_runs(program.devices[0], results)
        if limit is None or own_bytes(program) <= limit:
            return program
        policy = replace(policy, memory_limit=limit)
    elif not policy.recompute:
        return program
    if limit is None or If in map(type, program.instructions):
        return program
    source, program = program, replace(program, policies=(policy,), policy_of=(0,) * len(program.instructions))
    placement = place_program(program)
    free = as_placed(program, placement)
    if free.peak_bytes <= limit:
        return source
    before = makespan_of(free, policy.costs)
    best: _Choice | None = None
    try:
        found = fit(program, placement, as_placed, briefly=len(program.instructions) > _LARGE)
        best = _Choice(makespan_of(found.plan, policy.costs), program, found.placement, found.plan, found.about)
    except PlanError:
        pass
    if policy.recompute:
        best = _recomputed_within(program, policy, limit, free, best, least=given is not None)
    if best is None:
        return source
    chosen = best
    about = chosen.about
    if chosen.program is not program:
        longer = chosen.time / before - 1 if before else 0.0
        about = (
            f"{about}: {chosen.plan.peak_bytes:,} bytes, where the plan without a limit takes {free.peak_bytes:,}; "
            f"predicted {duration(chosen.time)}, {abs(longer):.1%} {'more' if longer >= 0 else 'less'} than without"
        )
    if given is None:
        about = f"what {program.devices[0]} had free; {about}"
    fixed = Fixed(policy, replace(chosen.placement, about=about), limit)
    return replace(chosen.program, policies=(fixed,), policy_of=(0,) * len(chosen.program.instructions))


def _policy_of(program: Program) -> ListSchedule | None:
    """Return the list scheduling that places all instructions, but for copies from and to the host that another one
    without a limit may place: `op.schedule(policy).to_host()`. None for other policies."""
    used = set(program.policy_of)
    mine = {at for at, each in zip(program.policy_of, program.instructions, strict=True) if type(each) not in _COPIES}
    mine = mine or used
    policies = {at: program.policies[at] for at in used}
    if len(mine) != 1 or any(type(each) is not ListSchedule for each in policies.values()):
        return None
    (own,) = mine
    others = [each for at, each in policies.items() if at != own]
    policy: ListSchedule = policies[own]
    return policy if all(each.memory_limit is None for each in others) else None


def _recomputed_within(
    program: Program, policy: ListSchedule, limit: int, free: Plan, best: _Choice | None, *, least: bool
) -> _Choice | None:
    """Return the best plan of all states that keeps a limit, or the best one without recomputation. If none keeps it,
    return with `least` that of the least peak."""
    search = Recomputation(program, policy.costs.times(program))
    outputs = free.peak_bytes - sum(free.arena_bytes)
    most = inf if policy.streams == 1 else _PLANS // len(program.instructions)  # on one stream the first is the best
    states = _thinned(search.states[1:], most)
    for state in states:
        if best is not None and state.work / policy.streams >= best.time:
            break  # work on other engines aside, it cannot be sooner done
        if state.peak + outputs <= limit:
            best = _best_of(search, state, policy, limit, outputs, best)
    if best is None and states and least:
        best = _best_of(search, states[-1], policy, None, outputs, None)
    return best


def _thinned(states: Sequence[State], most: float) -> list[State]:
    """Return about so many states, and six at least: the last one, and of the others those whose peaks are apart by
    about the same factor, by two where they are a fifth of the first one, which few limits need."""
    most = max(most, 6)
    if len(states) <= most:
        return list(states)
    first = states[0].peak
    factor = (first / max(states[-1].peak, first / 5, 1)) ** (1 / (most - 1))
    found: list[State] = []
    for state in states[:-1]:
        if not found or state.peak * (factor if 5 * state.peak > first else 2) <= found[-1].peak:
            found.append(state)
    return [*found, states[-1]]


def _best_of(
    search: Recomputation, state: State, policy: ListSchedule, limit: int | None, outputs: int, best: _Choice | None
) -> _Choice | None:
    """Return the best plan of a state that keeps a limit, or the best one before if none is better. Streams wait for no
    memory, or so that bytes are used again as in the program's order, or so that instructions start in that order while
    there is room. Without a limit, return the second."""
    program = search.program(state)
    order = list(range(len(program.instructions)))
    schedules = RoomySchedules(program, policy.streams, policy.costs, [True] * len(order))
    about = f"{counted(state.again, 'instruction')} made again ({duration(state.work - search.states[0].work)} of work)"
    if best is not None and schedules.bound >= best.time:
        return best
    free = schedules.place(order, inf)
    plain = Placement(free.placement.keys, order)
    found = best
    tries = [plain.one_by_one()]
    if limit is not None and policy.streams > 1:
        rooms = _ROOMS if len(search.times) <= _LARGE else ()
        roomy = [schedules.place(order, state.peak * more) for more in rooms]
        tries = [tried.placement for tried in roomy if tried.most + outputs <= limit]
        tries += [plain, plain.one_by_one()]
    for tried in tries:
        plan = as_placed(program, tried)
        if limit is None or plan.peak_bytes <= limit:
            time = makespan_of(plan, policy.costs)
            if found is None or time < found.time:
                found = _Choice(time, program, tried, plan, about)
            if tried is plain:
                break  # with waits for memory it would not be sooner done
    return found
