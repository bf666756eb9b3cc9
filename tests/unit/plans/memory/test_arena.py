"""The bytes of an arena: who gets which, and what becomes of them in between."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dagpu.plans.memory import Arena, FreeList
from dagpu.plans.plan import END, Clock

ALONE: Clock = [END, -1]
"""Of lane 0, which has waited for nobody."""


def test_a_lane_takes_its_own_latest_of_the_same_size() -> None:
    """A lane takes its own latest range of the same size without a search, whatever else is free."""
    arena = Arena(2)
    starts = [arena.take(0, ALONE, size) for size in (512, 512, 1024)]
    assert starts == [0, 512, 1024]
    for number, (start, size) in enumerate(zip(starts, (512, 512, 1024), strict=True)):
        arena.give(start, size, 0, number)
    assert [arena.take(0, ALONE, 512) for _ in range(2)] == [512, 0]
    assert arena.top == 2048


def test_of_another_lane_it_takes_what_is_released_before_in_every_execution() -> None:
    """Its clock must cover the release; the earliest of them is the likeliest."""
    arena = Arena(2)
    starts = [arena.take(1, [-1, END], 512) for _ in range(3)]
    for start, number in zip(starts, (10, 20, 30), strict=True):
        arena.give(start, 512, 1, number)
    top = arena.top
    assert arena.take(0, [END, 9], 512) == top
    assert arena.take(0, [END, 10], 512) == 0
    assert arena.take(0, [END, 15], 512) == arena.top - 512 > top
    assert arena.take(0, [END, 30], 512) == 512


def test_a_lane_that_waits_for_nobody_leaves_free_bytes_whole() -> None:
    """They are not for it; so they are there, in one piece, for whoever may have them."""
    arena = Arena(2)
    arena.give(arena.take(1, [-1, END], 2048), 2048, 1, 5)
    assert arena.take(0, ALONE, 512) == 2048
    assert arena.take(0, [END, 5], 2048) == 0


def test_bytes_of_several_sizes_are_joined_and_cut() -> None:
    """If no free range has the requested size, neighbours are joined, and the rest stays free."""
    arena = Arena(2)
    for number, start in enumerate([arena.take(0, ALONE, 512), arena.take(0, ALONE, 1024)]):
        arena.give(start, (512, 1024)[number], 0, number)
    assert arena.take(0, ALONE, 1536) == 0
    arena.give(0, 1536, 0, 7)
    assert sorted(arena.take(0, ALONE, 512) for _ in range(3)) == [0, 512, 1024]
    assert arena.top == 1536


# ---- holes


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_every_byte_is_held_or_free(random: Random, lanes: int) -> None:
    """Whatever is taken and given back, blocks that are held do not overlap. Once all are given back, whoever knows of
    every release may take all the bytes at once, and the arena does not grow for that: none were lost."""
    space = FreeList(lanes)
    held: list[tuple[int, int]] = []
    for number in range(40):
        if held and random.random() < 0.5:
            start, nbytes = held.pop(random.randrange(len(held)))
            space.give(start, nbytes, random.randrange(lanes), number)
        else:
            lane = random.randrange(lanes)
            clock = [END if other == lane else random.randint(-1, number) for other in range(lanes)]
            nbytes = 512 * random.randint(1, 6)
            start = space.take(lane, clock, nbytes)
            assert all(start + nbytes <= other or other + more <= start for other, more in held)
            assert start + nbytes <= space.top
            held.append((start, nbytes))
    top = space.top
    for start, nbytes in held:
        space.give(start, nbytes, 0, 40)
    assert space.take(0, [END] * lanes, top) == 0
    assert space.top == top


@given(st.randoms(use_true_random=False))
def test_of_all_holes_that_a_lane_may_use_it_takes_the_smallest(random: Random) -> None:
    """Its own and those of the other lane alike, wherever they lie; so large ones are left for what is large."""
    holes = [(512 * random.randint(1, 5), random.randrange(2)) for _ in range(6)]
    known = random.randint(-1, 6)
    for wanted in range(512, 3072, 512):
        space = FreeList(2)
        usable: dict[int, int] = {}
        starts: list[int] = []
        for size, _ in holes:
            starts.append(space.take(0, ALONE, size))
            space.take(0, ALONE, 512)  # stays, so that no two holes are neighbours
        for number, (start, (size, lane)) in enumerate(zip(starts, holes, strict=True)):
            space.give(start, size, lane, number)
            if size >= wanted and (lane == 0 or number <= known):
                usable[start] = size
        top = space.top
        found = space.take(0, [END, known], wanted)
        if usable:
            assert usable[found] == min(usable.values())
            assert space.top == top
        else:
            assert (found, space.top) == (top, top + wanted)
