"""The order in which the actions of several lanes are submitted."""

from hypothesis import given
from hypothesis import strategies as st

from dagpu.backends.cuda.commands.command_list import Command, Kind
from dagpu.backends.cuda.commands.encoder import round_robin
from dagpu.testing import Cell, HostCall, Instruction

WORK: Instruction = HostCall(id, None, Cell(0), (), (0,), 0, None)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, list[Command]]:
    """Actions of some lanes, in an order in which every record stands before the waits for it."""
    lanes = draw(st.integers(1, 5))
    actions: list[Command] = []
    events: list[int] = []
    for number in range(draw(st.integers(0, 60))):
        lane = draw(st.integers(0, lanes - 1))
        kind = draw(st.sampled_from([Kind.LAUNCH, Kind.LAUNCH, Kind.RECORD, Kind.WAIT, Kind.MARK]))
        if kind is Kind.RECORD:
            events.append(number)
            actions.append(Command(kind, lane, None, number))
        elif kind is Kind.WAIT and events:
            actions.append(Command(kind, lane, None, draw(st.sampled_from(events))))
        else:
            actions.append(Command(Kind.LAUNCH, lane, WORK, number))
    return lanes, actions


@given(scripts())
def test_each_lane_keeps_its_order_and_waits_come_after_records(script: tuple[int, list[Command]]) -> None:
    """Nothing is lost, nothing overtakes in its lane, and no lane waits for what is submitted later."""
    lanes, actions = script
    found = round_robin(actions, lanes, set())
    for lane in range(lanes):
        assert [a for a in found if a.lane == lane] == [a for a in actions if a.lane == lane]
    recorded: set[int] = set()
    for action in found:
        if action.kind is Kind.RECORD:
            recorded.add(action.a)
        elif action.kind is Kind.WAIT:
            assert action.a in recorded


def test_branches_begin_together() -> None:
    """With four branches of eight launches each, the first four launches are the first ones of all branches."""
    actions = [Command(Kind.LAUNCH, lane, WORK, number) for lane in range(4) for number in range(8)]
    found = round_robin(actions, 4, set())
    assert [action.lane for action in found] == [0, 1, 2, 3] * 8
    assert [action.a for action in found if action.lane == 2] == list(range(8))


def test_a_lane_that_waits_lets_the_others_go_on() -> None:
    """A fork: the lane that waits for the source begins as soon as that is recorded."""
    source = [Command(Kind.LAUNCH, 0, WORK, 0), Command(Kind.LAUNCH, 0, WORK, 1), Command(Kind.RECORD, 0, None, 7)]
    rest = [Command(Kind.LAUNCH, 0, WORK, 2), Command(Kind.LAUNCH, 0, WORK, 3)]
    other = [Command(Kind.WAIT, 1, None, 7), Command(Kind.LAUNCH, 1, WORK, 4)]
    found = round_robin([*source, *rest, *other], 2, set())
    assert [(action.kind, action.lane) for action in found] == [
        (Kind.LAUNCH, 0), (Kind.LAUNCH, 0), (Kind.RECORD, 0), (Kind.WAIT, 1), (Kind.LAUNCH, 1), (Kind.LAUNCH, 0),
        (Kind.LAUNCH, 0),
    ]  # fmt: skip
