"""The engine of the mypy plugin's flow rules, below mypy: graphs, liveness and what holds where, against definitions.

What it finds in programs is held by the corpus (test_mypy_plugin) and by random programs (test_mypy_random).
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mypy.nodes import Context, MypyFile

from dagpu import MovedError, Tensor, f32, fill, zeros
from dagpu.mypy_plugin import checks, messages
from dagpu.mypy_plugin.analysis.graph import (
    EVERYTHING,
    SHARED,
    BasicBlock,
    Body,
    Build,
    Instruction,
    Lend,
    Move,
    Place,
    Read,
    Store,
    reverse_postorder,
)
from dagpu.mypy_plugin.analysis.ownership import Dataflow, WholeBody, entry_states
from dagpu.mypy_plugin.analysis.solver import live_after_each, live_before, liveness
from dagpu.mypy_plugin.plugin import fingerprint
from tests.support.mypy_checks import Checker, dependencies

VARIABLES, SLOTS = 3, 6
"""The slots of the random bodies: variables first, temporaries behind them."""
HERE = Context(1, 0)


# ---- random bodies
# Each strategy is made once: to make one costs more than to draw from it.


@cache
def places() -> st.SearchStrategy[Place]:
    return st.builds(Place, st.integers(0, VARIABLES - 1), st.sampled_from([(), (".a",), (".a", ".b"), ("[0]",)]))


@cache
def slots() -> st.SearchStrategy[int]:
    return st.integers(0, SLOTS - 1)


@cache
def temporaries() -> st.SearchStrategy[int]:
    return st.integers(VARIABLES, SLOTS - 1)


@cache
def instructions() -> st.SearchStrategy[Instruction]:
    return st.one_of(
        st.builds(Read, st.just(HERE), places(), temporaries(), st.just(EVERYTHING)),
        st.builds(Move, st.just(HERE), places(), temporaries(), st.just("share()")),
        st.builds(Lend, st.just(HERE), places(), temporaries(), st.booleans()),
        st.builds(Build, st.just(HERE), temporaries(), st.tuples(slots(), slots()), st.just(EVERYTHING), st.booleans()),
        st.builds(Store, st.just(HERE), places(), st.none() | slots(), st.sampled_from([EVERYTHING, SHARED])),
    )


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """Up to four blocks of up to three instructions, with any edges between them."""
    blocks = [
        BasicBlock(instructions=draw(st.lists(instructions(), max_size=3))) for _ in range(draw(st.integers(1, 4)))
    ]
    for block in blocks:
        block.next = draw(st.lists(st.sampled_from(blocks), max_size=2, unique=True))
    ordered = reverse_postorder(blocks[0])
    node = MypyFile([], [])
    return Body(node, ordered, [None] * SLOTS, {}, set(range(SLOTS)), set(), [], [])


def paths(body: Body, rounds: int = 2) -> Iterator[list[BasicBlock]]:
    """Every way through a body that comes to no block more than so many times, and every beginning of one."""
    todo = [[body.blocks[0]]]
    while todo:
        path = todo.pop()
        yield path
        todo += [[*path, follower] for follower in path[-1].next if path.count(follower) < rounds]


# ---- graphs


@given(bodies())
def test_blocks_are_in_the_order_that_control_comes_to_them(body: Body) -> None:
    """All that is reached is there, once, numbered; a block comes before those it leads to, but for the ways back."""
    reached = {block for path in paths(body, rounds=1) for block in path}
    assert set(body.blocks) == reached
    assert [block.index for block in body.blocks] == list(range(len(body.blocks)))
    for block in body.blocks:
        for follower in block.next:
            if follower.index <= block.index:  # then there is a way from the one to the other: a loop
                assert any(path[-1] is block for path in paths_from(follower))


def test_the_blocks_of_a_loop_are_in_sequence() -> None:
    """What is behind a loop comes after all of its blocks, also if only its middle leads there."""
    entry, head, middle, end, behind = (BasicBlock() for _ in range(5))
    entry.next, head.next, middle.next, end.next = [head], [middle], [behind, end], [head]
    head.behind = behind
    assert reverse_postorder(entry) == [entry, head, middle, end, behind]
    middle.next = [end]  # nothing leads there
    behind.index = -1
    assert reverse_postorder(entry) == [entry, head, middle, end]
    assert behind.index == -1


def paths_from(entry: BasicBlock) -> Iterator[list[BasicBlock]]:
    todo = [[entry]]
    while todo:
        path = todo.pop()
        yield path
        todo += [[*path, follower] for follower in path[-1].next if follower not in path]


# ---- liveness


@given(instructions(), st.integers(0, (1 << SLOTS) - 1))
def test_a_slot_that_is_filled_is_live_before_only_if_it_is_read(i: Instruction, live: int) -> None:
    """By definition, for one instruction: what it reads is live before it, and of the rest what it does not fill."""
    read, filled = set[int](), set[int]()
    match i:
        case Read() | Move() | Lend():
            read, filled = {i.place.slot}, set() if i.into is None else {i.into}
        case Build():
            read, filled = set(i.parts), set() if i.into is None else {i.into}
        case Store():
            read, filled = set() if i.part is None else {i.part}, set() if i.place.path else {i.place.slot}
        case _:
            raise AssertionError(i)
    before = {slot for slot in range(SLOTS) if live >> slot & 1} - filled | read
    assert live_before(i, live) == sum(1 << slot for slot in before)


@given(bodies())
def test_a_slot_is_live_if_a_way_leads_to_where_it_is_read(body: Body) -> None:
    """By definition, along every way from a block: it is read before anything is put into it."""
    at_entry = liveness(body)
    for block in body.blocks:
        expected = 0
        for path in paths_from(block):
            live = 0
            for passed in reversed(path):
                for i in reversed(passed.instructions):
                    live = live_before(i, live)
            expected |= live
        assert at_entry[block.index] == expected


@given(bodies())
def test_liveness_between_instructions_leads_to_that_of_the_block(body: Body) -> None:
    """The variables live after the first instruction determine, through that instruction, those live at the beginning
    of the block.
    """
    at_entry = liveness(body)
    for block in body.blocks:
        if block.instructions:
            first = live_after_each(block, at_entry)[0]
            assert live_before(block.instructions[0], first) == at_entry[block.index]


# ---- what holds where


@given(bodies())
def test_what_holds_is_what_holds_on_some_way(body: Body) -> None:
    """Moves and loans at the beginning of a block are those of all ways to it, as far as the slot is live."""
    live = liveness(body)
    lent = sum({1 << i.place.slot for block in body.blocks for i in block.instructions if isinstance(i, Lend)})
    moved: dict[tuple[BasicBlock, int], set[object]] = {}
    held: dict[tuple[BasicBlock, int], set[object]] = {}
    for path in paths(body, rounds=3):
        state = Dataflow(WholeBody(lent, {}))
        for block in path[:-1]:
            for i in block.instructions:
                state.step(i)
        for slot, moves in state.moved.items():
            moved.setdefault((path[-1], slot), set()).update(moves)
        for slot, what in state.held.items():
            held.setdefault((path[-1], slot), set()).update(what)
    for block, state in entry_states(body, live):
        for slot in range(SLOTS):
            if live[block.index] >> slot & 1:
                assert set(state.moved.get(slot, ())) == moved.get((block, slot), set())
                assert set(state.held.get(slot, ())) == held.get((block, slot), set())
        for i in block.instructions:
            state.step(i)


@given(places(), places())
def test_putting_something_into_a_place_makes_it_whole(moved: Place, stored: Place) -> None:
    """A move is forgotten exactly if what it took lies in what is made anew."""
    state = Dataflow(WholeBody(0))
    move = Move(HERE, moved, SLOTS, "share()")
    state.step(move)
    state.step(Store(HERE, stored, None, EVERYTHING))
    inside = moved.slot == stored.slot and moved.path[: len(stored.path)] == stored.path
    assert (move in state.moved.get(moved.slot, ())) is not inside


# ---- words


TAKES: dict[str, Callable[[Tensor[f32]], object]] = {
    "share()": lambda t: t.share(),
    "partition()": lambda t: t.partition((2,)),
    "reshape()": lambda t: t.reshape((2, 2)),
    "fill()": lambda t: fill(t, 1.0),
}


@pytest.mark.parametrize("how", TAKES)
def test_the_cure_is_that_of_the_run(how: str) -> None:
    """The message of mypy for a moved tensor is that of a run, except for the place."""
    t = zeros((4,)).sync()
    TAKES[how](t)
    with pytest.raises(MovedError) as caught:
        t.borrow()
    said = messages.used_after_move("t", None, [how], [HERE], again=False)
    assert f"moved by {how}" in said
    assert said.split("To use it twice: ")[1] == str(caught.value).split("To use it twice: ")[1]


# ---- the plugin around it


def test_any_change_of_a_source_voids_the_cache(tmp_path: Path) -> None:
    """The fingerprint is that of all sources, with their names."""
    seen = set()
    for name, text in [("a.py", "x = 1"), ("a.py", "x = 2"), ("inner/b.py", ""), ("inner/c.py", "")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        fingerprint.cache_clear()
        seen.add(fingerprint(tmp_path))
    fingerprint.cache_clear()
    assert len(seen) == 4


def test_a_defect_of_the_plugin_is_a_note(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not end mypy's run: that module is not checked by us, and the note says how to report it."""

    def broken(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(checks, "check_values", broken)
    checker = Checker(tmp_path, dependencies(tmp_path_factory))
    checker.write({"moved.py": "from dagpu import zeros\n\nt = zeros((4,)).sync()\nt.share()\nt.shape\nx: int = ''\n"})
    note, error = checker.check("moved.py")
    assert (note.kind, note.line) == ("note", 1)
    assert "KeyError: 'lost'" in note.text
    assert "please report it" in note.text
    assert (error.line, error.code) == (6, "assignment")
