"""The model of feeds, held against itself: it is what feeds are tested by."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.feeds.feed_model import (
    Bind,
    Call,
    Cell,
    Cut,
    Given,
    Memo,
    ModelFeed,
    Node,
    Output,
    Several,
    bits,
    from_scratch,
    run,
)
from tests.programs.feeds.feed_recipes import Recipe, Turn, recipes, turns
from tests.programs.feeds.feed_trials import Model, array_of, number_of

DYNAMIC = ("chosen", "late", "nested", "cutoff", "sign", "rounded", "near", "unzip")
"""Steps behind which the nodes alone do not say what depends on what, or of which a part is made in vain."""


def set_cells(model: Model, turn: Turn) -> set[Cell]:
    """Change the cells of a model, and return those that have another revision."""
    changed = set()
    for at, value in turn.changes:
        cell = model.cells[at % len(model.cells)]
        before = cell.revision
        cell.set(array_of(value) if at % len(model.cells) < model.arrays else number_of(value))
        if cell.revision != before:
            changed.add(cell)
    return changed


def calls_of(root: Node) -> dict[Call, set[Cell]]:
    """The functions below a node, each with the cells that it depends on, as the nodes say it."""
    below: dict[Node, set[Cell]] = {}

    def walk(node: Node) -> set[Cell]:
        if node not in below:
            match node:
                case Cell():
                    below[node] = {node}
                case Call() | Several():
                    below[node] = set[Cell]().union(*map(walk, node.inputs))
                case Output() | Memo() | Cut() | Bind():
                    below[node] = walk(node.of)
                case Given():
                    below[node] = set()
        return below[node]

    walk(root)
    return {node: cells for node, cells in below.items() if isinstance(node, Call)}


@settings(max_examples=60)
@given(recipe=recipes(), steps=turns(feeds=2))
def test_the_model_has_the_values_of_runs_from_scratch(recipe: Recipe, steps: list[Turn]) -> None:
    """Whatever it has kept: the values of feeds, of previews and of plain runs are those that are evaluated anew."""
    model = Model(recipe)
    for turn in steps:
        set_cells(model, turn)
        for which in (0, 1) if turn.asks == (2,) else turn.asks:
            wanted = bits(from_scratch(model.roots[which]))
            feed = model.feeds[which]
            assert bits(feed.preview().value) == wanted
            assert not feed.due or bits(feed.next().value) == wanted
            assert bits(run(model.roots[which]).value) == wanted
            assert not feed.due


@settings(max_examples=60)
@given(recipe=recipes(without=DYNAMIC), steps=turns())
def test_the_model_runs_what_the_nodes_depend_on(recipe: Recipe, steps: list[Turn]) -> None:
    """Where there are no closures that return nodes, and no cutoffs, each function runs that depends on a change,
    once, and no other one."""
    model = Model(recipe, (0,))
    calls = calls_of(model.roots[0])
    feed = model.feeds[0]
    assert feed.next().ran == Counter(each.name for each in calls)
    for turn in steps:
        changed = set_cells(model, turn)
        due = any(cells & changed for cells in calls.values()) or bool(changed & reads_of(model.roots[0]))
        assert feed.due == due
        if due:
            assert feed.next().ran == Counter(each.name for each, cells in calls.items() if cells & changed)


def reads_of(root: Node) -> set[Cell]:
    """The cells that a root has as they are."""
    assert isinstance(root, Several)
    return {each for each in root.inputs if isinstance(each, Cell)}


@settings(max_examples=40)
@given(recipe=recipes(), steps=turns(feeds=2))
def test_two_feeds_of_the_model_run_no_more_than_two_that_share_nothing(recipe: Recipe, steps: list[Turn]) -> None:
    """What both share runs once, so together they run at most what each would run alone."""
    both, alone = Model(recipe), [Model(recipe, (which,)) for which in (0, 1)]
    ran, separate = Counter[str](), Counter[str]()
    for turn in (Turn((), False, (0, 1), None), *steps):
        for model in (both, *alone):
            set_cells(model, turn)
        for which in (0, 1) if turn.asks == (2,) else turn.asks:
            if both.feeds[which].due:
                ran += both.feeds[which].next().ran
                separate += alone[which].feeds[which].next().ran
    assert ran <= separate


@given(number=st.integers(-40, 40))
def test_two_outputs_have_two_values(number: int) -> None:
    """Of a function with two outputs each has a value of its own, in an update that makes neither, too."""
    cell, other = Cell(number), Cell(0)
    whole = Call("two", lambda x: (x + 1, x - 1), (cell,), outs=2)
    parts = [Call("up", lambda x: 2 * x, (Output(whole, 0),)), Call("down", lambda x: 2 * x, (Output(whole, 1),))]
    feed = ModelFeed(Several((*parts, other)))
    assert feed.next().value == (2 * number + 2, 2 * number - 2, 0)
    other.set(1)
    update = feed.next()
    assert update.value == (2 * number + 2, 2 * number - 2, 1)
    assert not update.ran


def test_a_memo_serves_others_until_what_it_reads_changes() -> None:
    """What is remembered serves another feed and plain runs; then it is made by the one that is asked first."""
    cell, other = Cell(1), Cell(10)
    node = Memo(Call("slow", lambda x: x + 1, (cell,)))
    roots = [Call(f"root {at}", lambda x, y: x + y, (node, other)) for at in (0, 1)]
    feeds = [ModelFeed(root) for root in roots]
    assert [feed.next().ran for feed in feeds] == [Counter(("slow", "root 0")), Counter(("root 1",))]
    other.set(20)
    assert [feed.next().ran for feed in reversed(feeds)] == [Counter(("root 1",)), Counter(("root 0",))]
    cell.set(2)
    assert [feed.next().ran for feed in reversed(feeds)] == [Counter(("slow", "root 1")), Counter(("root 0",))]
    assert run(roots[0]).ran == Counter(("root 0",))


def test_what_a_memo_remembers_is_all_that_is_below_it() -> None:
    """Also what the evaluation had met before the memo: the feed that takes its value takes that over too, and need not
    run it for what comes to read it."""
    cell = Cell(1)
    inner = Memo(Call("inner", lambda x: x + 1, (cell,)))
    outer = Memo(Call("outer", lambda x: 2 * x, (inner,)))
    maker, taker = ModelFeed(Several((inner, outer))), ModelFeed(outer)
    assert maker.next().ran == Counter(("inner", "outer"))
    assert not taker.next().ran
    reader = ModelFeed(Call("reader", lambda x: x, (inner,)))
    assert reader.next().kept_by([taker]) == {"inner"}


def test_the_model_says_what_a_write_over_memory_takes_along() -> None:
    """To run again what has written last, all that has written before it may run; and nothing else may."""
    first, last = Cell(1), Cell(2)
    start = Call("start", lambda x: x, (first,))
    root = Call("add", lambda x, y: x + y, (start, last), over=0)
    feed = ModelFeed(Several((root, Call("beside", lambda x: x, (first,)))))
    assert feed.next().ran == Counter(("start", "add", "beside"))
    last.set(3)
    update = feed.next()
    assert update.ran == Counter(("add",))
    assert update.again == {"start"}


def test_a_cutoff_stops_what_is_equal() -> None:
    """What comes after a cutoff runs again only for other contents."""
    cell = Cell(1.2)
    root = Call("after", lambda x: x, (Cut(Call("whole", int, (cell,))),))
    feed = ModelFeed(root)
    feed.next()
    for number, wanted in ((1.4, Counter(("whole",))), (2.5, Counter(("whole", "after")))):
        cell.set(number)
        assert feed.next().ran == wanted
