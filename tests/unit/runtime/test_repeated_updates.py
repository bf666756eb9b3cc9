"""An update of sources that changed together before: what it does is the same for every number of clean nodes."""

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import trio

from dagpu import DeviceOp, Feed, Source, from_host, observe, source
from dagpu.reactive import verify_updates as verify_update
from tests.behaviour.live.live_kernels import array, blended, flipped
from tests.behaviour.live.live_trials import machine

Op = DeviceOp[Any, Any, Any]
STALE = 3
CLEAN = 6, 60


def chain(clean: int, late: Source[float]) -> Op:
    """Launches of which the last ones depend on `late`."""
    op: Op = from_host(array(1)).share().shared()
    first = op
    for _ in range(clean):
        op = flipped(op).share().shared()
    for _ in range(STALE):
        op = blended(op, first, late).share().shared()
    return op.to_host()


async def change(feed: Feed[Any], late: Source[float], count: int) -> None:
    """Make updates."""
    for _ in range(count):
        late.set(late.get() + 1)
        await feed.next()


def counted_in(work: Callable[[int, Source[float], Feed[Any]], Any], kind: str) -> list[int]:
    """What `work` counts, for few and for many clean launches."""

    async def main(clean: int) -> int:
        late = source(1.0)
        async with observe(chain(clean, late)) as feed:
            await feed.next()
            found: int = await work(clean, late, feed)
            return found

    with machine(kind):
        return [trio.run(main, clean) for clean in CLEAN]


@pytest.mark.parametrize("kind", ["host", "simulated"])
def test_an_update_calls_as_many_functions_for_every_number_of_clean_nodes(kind: str) -> None:
    """From the third update of one source on, the number of functions of the reactive layer that are called from `set`
    to the value does not depend on what is clean. Coroutines do not count: each step of a wait is a call."""

    async def work(_clean: int, late: Source[float], feed: Feed[Any]) -> int:
        calls = 0

        def count(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            code = frame.f_code
            ours = "/dagpu/reactive/" in code.co_filename and not inspect.CO_COROUTINE & code.co_flags
            calls += ours and event == "call"

        await change(feed, late, 3)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            await change(feed, late, 4)
        finally:
            sys.setprofile(before)
        return calls

    few, many = counted_in(work, kind)
    assert few == many > 0


def test_the_proof_of_a_new_plan_looks_at_what_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of one source is proved in as many terms for every number of clean launches: the terms of the op before
    any change are numbered once, with the plan of everything."""
    terms = 0
    table_of_terms = verify_update._Terms  # noqa: SLF001  # the proof's own table is not public
    number = table_of_terms.number

    def counted(table: Any, term: Any) -> int:
        nonlocal terms
        terms += 1
        return number(table, term)

    monkeypatch.setattr(table_of_terms, "number", counted)

    async def work(clean: int, late: Source[float], feed: Feed[Any]) -> int:
        nonlocal terms
        assert terms > clean, "the first plan is proved"
        terms = 0
        await change(feed, late, 3)
        return terms

    few, many = counted_in(work, "host")
    assert few == many > STALE
