"""What those who look at a feed see: `explain`, `watch` in a terminal, and the tracks of a trace."""

import io
import re
import sys
from itertools import pairwise
from typing import Any

import pytest
import trio
from rich.console import Console

from dagpu import (
    DagpuError,
    Flow,
    Trace,
    flow,
    merge,
    observe,
    source,
    trace,
    use_device,
    use_interpreter,
    value,
    watch,
    zip_flows,
    zip_ops,
)
from tests.behaviour.flows.flow_programs import Producer, SlowInterpreter, clocked


def drawn(described: Flow[Any], total: int | None, values: int) -> str:
    """Return the last picture of a feed after some values."""
    console = Console(file=io.StringIO(), width=160, force_terminal=False)

    async def main() -> None:
        async with described as feed:
            with watch(feed, total=total, title="frames", console=console):
                for _ in range(values):
                    await feed.next()

    with use_interpreter(SlowInterpreter()):
        clocked(main)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def test_the_last_picture_has_the_numbers_and_the_stages() -> None:
    """Values, the share of the total, the rate on trio's clock, and the stages with their state."""
    text = drawn(flow(range(9)).run(value, in_flight=2), 8, 5)
    assert "frames" in text
    assert "5 of 8 (62%)" in text
    assert "a second" in text
    assert "left" in text
    assert "0 skipped" in text
    assert "for the producer" in text
    assert f"run at {__file__}" in text
    assert "of 2 in flight, in order" in text
    assert f"  flow at {__file__}" in text


def test_a_picture_without_a_total_has_no_share() -> None:
    """Only the number of values is known."""
    text = drawn(flow(Producer(list(range(9)), lambda: 1.0)).latest(), None, 3)
    assert "frames 3, 1 a second" in text
    assert "%)" not in text
    assert "left" not in text


def test_a_feed_whose_block_is_over_is_shown_as_closed() -> None:
    """The numbers remain, and there are no stages any more."""
    console = Console(file=io.StringIO(), width=160, force_terminal=False)

    async def main() -> None:
        async with flow([1, 2]) as feed:
            await feed.next()
        with watch(feed, console=console):
            pass

    trio.run(main)
    assert isinstance(console.file, io.StringIO)
    assert "closed" in console.file.getvalue()
    assert f"feed opened at {__file__}" in console.file.getvalue()


def test_watch_without_rich_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional."""
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)

    async def main() -> None:
        async with flow([1]) as feed:
            with pytest.raises(DagpuError, match=r"rich is not installed.*Install it: pip install rich"):
                watch(feed)

    trio.run(main)


def test_explain_shows_each_stage_above_those_it_asks() -> None:
    """One line for each stage, with the place of its call and its state."""

    async def main() -> list[str]:
        described = zip_flows(
            flow(Producer([1, 2, 3])).batched(2, within=1.0).map(len), merge(flow("ab").at_most(9.0), flow("c").take(1))
        )
        async with described.window(2).switch(lambda x: flow(x)) as feed:
            return feed.explain().splitlines()

    lines = clocked(main)
    assert [line.partition(" at ")[0] for line in lines] == [
        "switch",
        "  window",
        "    zip_flows",
        "      map",
        "        batched",
        "          flow",
        "      merge",
        "        at_most",
        "          flow",
        "        take",
        "          flow",
    ]
    assert lines[4].endswith("0 of 2 gathered")
    assert lines[7].endswith("0 skipped")
    assert lines[9].endswith("1 more")
    assert all(f" at {__file__}:" in line for line in lines)


def traced(described: Flow[Any]) -> Trace:
    async def main() -> None:
        async with described as feed:
            async for _ in feed:
                pass

    with trace() as found:
        trio.run(main)
    return found


def test_a_trace_has_a_track_for_each_feed_and_each_run() -> None:
    """The feed's track has a span for each value, and the track of `run` one for each item, within the value's."""
    found = traced(flow(range(5)).run(lambda x: value(x).map(lambda y: y + 1), in_flight=3))
    tracks = {track.name.partition(" at ")[0]: track for track in found.tracks}
    assert tracks.keys() == {"feed", "run"}
    assert [name for name, _, _ in tracks["feed"].spans] == [f"value {n}" for n in range(1, 6)]
    assert sorted(name for name, _, _ in tracks["run"].spans) == [f"run {n}" for n in range(1, 6)]
    ends = {name.split()[1]: end for name, _, end in tracks["run"].spans}
    for name, begin, end in tracks["feed"].spans:
        assert begin <= ends[name.split()[1]] <= end


def test_the_events_of_tracks_never_overlap_on_a_thread() -> None:
    """Values in flight together are on threads of their own, in a process for all feeds."""
    found = traced(flow(range(7)).run(value, in_flight=3))
    events = found.events()
    (process,) = [e for e in events if e["name"] == "process_name" and e["args"]["name"] == "feeds"]
    spans = [e for e in events if e.get("cat") == "feed"]
    assert len(spans) == 14
    assert {e["pid"] for e in spans} == {process["pid"]}
    for tid in {e["tid"] for e in spans}:
        lane = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == tid)
        assert all(end <= begin + 1e-3 for (_, end), (begin, _) in pairwise(lane))
    named = {e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == process["pid"]}
    assert named == {e["tid"] for e in spans}


def test_without_a_trace_nothing_is_recorded() -> None:
    """A feed that was opened before the block is not in it, and a trace without feeds has no process for them."""

    async def main() -> Trace:
        async with flow(range(3)).run(value) as feed:
            await feed.next()
            with trace() as found:
                await feed.next()
        return found

    found = trio.run(main)
    assert found.tracks == ()
    assert not [e for e in found.events() if e.get("args") == {"name": "feeds"}]


async def _described(op: Any) -> tuple[str, str]:
    async with observe(op) as feed:
        await feed.next()
        return feed.explain(), repr(feed.stats)


def test_a_feed_tells_sources_of_one_line_apart() -> None:
    """Beside its place stands the value of a source of numbers; the statistics show their counts."""
    with use_device("host"):
        near, far = source(2.0), source(3.0)
        text, stats = trio.run(_described, zip_ops(near, far).map(sum))
    assert re.findall(r"source at \S+:\d+, now (\S+):", text) == ["2.0", "3.0"]
    assert stats.startswith("<Stats values=1, skipped=0,")
