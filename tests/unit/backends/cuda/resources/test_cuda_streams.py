"""The pool of streams and events of a device."""

import gc
from collections.abc import Iterator

import pytest

from dagpu.backends.cuda.resources.streams import MARK_EVERY, MARKS, POOL, SPREAD, Streams
from dagpu.common.errors import PlanError
from tests.simulated.cuda import installed
from tests.simulated.gpu import SimulatedGpu
from tests.simulated.machine import Machine


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The first device's context is current."""
    with installed() as machine, machine.gpus[0].current():
        yield machine


@pytest.fixture
def gpu(machine: Machine) -> SimulatedGpu:
    return machine.gpus[0]


@pytest.fixture
def streams(gpu: SimulatedGpu) -> Streams:
    return Streams(gpu)


def test_lanes_of_a_plan_have_streams_of_their_own(streams: Streams) -> None:
    """A plan has a separate stream for each lane, whatever the lanes' numbers are."""
    assert len({id(stream) for stream in streams.take([0, 7, 3, 12])}) == 4


def test_runs_one_after_the_other_share_a_stream(streams: Streams, machine: Machine) -> None:
    """An idle stream is taken before a new one is made."""
    before = len(machine.streams)
    first = streams.take([0])
    assert [streams.take([n]) for n in range(5)] == [first] * 5
    assert len(machine.streams) == before + 1


def test_runs_at_once_spread(streams: Streams) -> None:
    """Over as many streams as there are hardware queues, and then evenly."""
    taken = []
    for number in range(3 * SPREAD):
        (stream,) = streams.take([0])
        stream.users.add(number)
        taken.append(stream)
    assert len(set(taken)) == SPREAD
    assert {len(stream.users) for stream in taken} == {3}


def test_a_plan_of_very_many_lanes_shares_streams(streams: Streams) -> None:
    """There is a limit to the pool."""
    taken = streams.take(range(3 * POOL))
    assert len(taken) == 3 * POOL
    assert len(set(taken)) == POOL
    assert len(streams.take([0])) == 1


def test_a_stream_of_ones_own_is_a_key(streams: Streams) -> None:
    """It stands for itself, beside lanes that are numbers."""
    own = streams.open()
    one, mine, two = streams.take([0, own, 1])
    assert mine is own.stream
    assert len({one, mine, two}) == 3


def test_keys_of_others_are_refused(streams: Streams, machine: Machine) -> None:
    """A stream of another device, and what is no stream at all."""
    with machine.gpus[1].current():
        foreign = Streams(machine.gpus[1]).open()
    for key in (foreign, "stream"):
        with pytest.raises(PlanError, match="not a stream of that device"):
            streams.take([key])


def test_a_dropped_stream_comes_back(streams: Streams) -> None:
    """It is kept for whoever next wants one of his own."""
    own = streams.open()
    stream = own.stream
    del own
    gc.collect()
    assert streams.open().stream is stream


def test_events_are_used_again(streams: Streams, gpu: SimulatedGpu) -> None:
    """One is made only where none is idle."""
    events = [streams.take_event() for _ in range(3)]
    for event in events:
        streams.give_back(event)
    assert {id(streams.take_event()) for _ in range(3)} == {id(event) for event in events}
    assert gpu.events == 3


def test_a_stream_counts_as_full_before_the_driver_blocks(streams: Streams, machine: Machine) -> None:
    """After so many instructions that have not been done; and no longer once they have."""
    (stream,) = streams.take([0])
    with machine.hold():
        for _ in range(MARKS - 1):
            stream.count_entries(MARK_EVERY)
            assert not stream.full()
        stream.count_entries(MARK_EVERY - 1)
        assert not stream.full()
        stream.count_entries(1)
        assert stream.full()
        assert stream.congested()
    stream.drain()
    assert not stream.full()
    assert not stream.congested()


def test_draining_gives_its_events_back(streams: Streams, gpu: SimulatedGpu) -> None:
    """Marks are taken from the pool of events, and go back to it."""
    (stream,) = streams.take([0])
    for _ in range(50):
        stream.count_entries(MARK_EVERY)
        stream.drain()
    assert gpu.events <= MARKS + 1


def test_an_exclusive_stream_is_not_a_lanes_stream(streams: Streams) -> None:
    """It waits for one run, and must not hold up another."""
    first, second = streams.take_exclusive(), streams.take_exclusive()
    assert first is not second
    streams.give_back_exclusive(first)
    assert streams.take_exclusive() is first
    assert not {first, second} & set(streams.take(range(SPREAD)))
