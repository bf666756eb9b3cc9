"""Simulated GPUs are adversaries: whatever a real device may do late, or in another order, they do for some seed."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated.cuda import installed

ORDERS = st.integers(0, 2**20)


def recorded(gpu: Any, stream: Any) -> Any:
    event = gpu.new_event()
    event.record(stream)
    return event


@settings(max_examples=60)
@given(ORDERS, st.integers(1, 6))
def test_an_event_is_seen_after_its_work_and_in_order(seed: int, count: int) -> None:
    """A look never sees an event before its work is done. What is seen stays so, and all before it in its stream is
    seen as well. Looking again and again sees it in the end."""
    with installed(seed, gpus=1) as machine:
        gpu, done = machine.gpus[0], list[int]()
        with gpu.current():
            stream: Any = gpu.new_stream()
            events = []
            for number in range(count):
                stream.put(lambda number=number: done.append(number))
                events.append(recorded(gpu, stream))
            seen = [False] * count
            while not all(seen):
                before = list(seen)
                for number in reversed(range(count)):
                    seen[number] = events[number].query()
                    assert not seen[number] or number in done
                    assert seen[number] or not before[number]
                assert seen == sorted(seen, reverse=True)


def outcomes(gpu: Any) -> set[str]:
    """Return the outcomes that the host sees of a run that ends with an event and a descriptor closed after it."""
    done, found = list[str](), set[str]()
    stream: Any = gpu.new_stream()
    stream.put(lambda: done.append("work"))
    end = recorded(gpu, stream)
    stream.put(lambda: done.append("closed"))
    seen = False
    while not (seen and "closed" in done):
        seen = end.query()
        if "work" in done and not seen:
            found.add("the end is seen late")
        if "closed" in done and not seen:
            found.add("closed before the end is seen")
        if seen and "closed" not in done:
            found.add("closed after the end is seen")
    return found


def test_the_end_of_a_run_comes_in_any_order() -> None:
    """Its event may be seen long after its work is done, and its descriptor be closed before that, or after."""
    with installed(seed=1, gpus=1) as machine:
        gpu = machine.gpus[0]
        with gpu.current():
            found = set().union(*[outcomes(gpu) for _ in range(200)])
    assert found == {"the end is seen late", "closed before the end is seen", "closed after the end is seen"}


def test_who_waits_sees_all_that_is_over() -> None:
    """After a wait for an event, or for the device, a look misses nothing of what came before."""
    for seed in range(40):
        with installed(seed, gpus=1) as machine:
            gpu = machine.gpus[0]
            with gpu.current():
                first: Any = gpu.new_stream()
                second: Any = gpu.new_stream()
                early, event, other = recorded(gpu, first), recorded(gpu, first), recorded(gpu, second)
                event.synchronize()
                assert early.query()
                assert event.query()
                gpu.synchronize()
                assert other.query()
