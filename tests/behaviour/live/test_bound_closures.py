"""A closure is called only for an argument that it was not given last, also if the op is traced again in between."""

from typing import Any

import pytest
import trio

from dagpu import Source, from_host, observe, ones, source, zip_ops
from tests.behaviour.live.live_kernels import N, Op, array, flipped

pytestmark = pytest.mark.host_only("kernels' host bodies")


def traced_again(given: Source[Any]) -> Op:
    """An op that is traced in each update: a closure builds it of data from the device."""
    first = flipped(given.then(from_host)).to_host().map(lambda v: float(v[0]))
    return first.then(lambda v: ones((N,) if v > 0 else (N, 1))).to_host()


class Calls:
    """The calls of closures, by name."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def noted(self, name: str, f: Any) -> Any:
        """The closure `f`, whose calls are noted."""

        def call(x: Any) -> Any:
            self.made.append(name)
            return f(x)

        return call

    def take(self) -> list[str]:
        """The names of those that were called since the last time, in order."""
        made, self.made = sorted(self.made), []
        return made


def test_a_map_is_not_called_again_in_a_later_trace() -> None:
    """Nor is one of what a map has returned, one whose array came from the device, and one that a closure has built;
    each is called once its own source has changed."""
    calls = Calls()

    async def main() -> None:
        a, b, n, m = source(array(1)), source(array(2)), source(1.5), source(2.0)
        twice = n.map(calls.noted("twice", lambda v: v * 2)).map(calls.noted("more", lambda v: v + 1)).shared()
        down = flipped(b.then(from_host)).to_host().map(calls.noted("down", lambda v: float(v[0])))
        inner = n.then(lambda v: m.map(calls.noted("inner", lambda w: w + 1)) if v > 0 else m)
        async with observe(zip_ops(traced_again(a), twice, down, inner)) as feed:

            async def value() -> tuple[Any, ...]:
                made: Any = await feed.next()
                return tuple(made[1:])

            assert await value() == (4.0, -1.0, 3.0)
            assert calls.take() == ["down", "inner", "more", "twice"]
            for number in range(3):
                a.set(array(5 + number))
                assert await value() == (4.0, -1.0, 3.0)
                assert calls.take() == []
            b.set(array(4))
            assert await value() == (4.0, -3.0, 3.0)
            assert calls.take() == ["down"]
            m.set(5.0)
            assert await value() == (4.0, -3.0, 6.0)
            assert calls.take() == ["inner"]
            n.set(2.5)
            assert await value() == (6.0, -3.0, 6.0)
            assert calls.take() == ["inner", "more", "twice"]

    trio.run(main)


def test_an_op_that_a_closure_returned_follows_what_it_has_read() -> None:
    """A closure that has read its number returns the op of that number also behind a later trace."""

    async def main() -> None:
        a, n, m = source(array(1)), source(1.0), source(10.0)
        op = zip_ops(traced_again(a), n.then(lambda v: m.map(lambda w: w + v) if v > 0 else m.map(lambda w: w - v)))
        async with observe(op) as feed:
            steps: list[tuple[Any, Any, float]] = [
                (a, array(2), 11.0),
                (n, -2.0, 12.0),
                (a, array(3), 12.0),
                (n, 3.0, 13.0),
            ]
            for given, number, wanted in steps:
                await feed.next()
                given.set(number)
                value: Any = await feed.next()
                assert value[1] == wanted
                m.set(20.0)
                value = await feed.next()
                assert value[1] == wanted + 10
                m.set(10.0)

    trio.run(main)


@pytest.mark.parametrize("late", [False, True])
def test_what_a_failed_update_has_made_good_is_kept(late: bool) -> None:
    """A function of the host fails once, behind a kernel's result and beside maps. The next update calls it again, and
    nothing that was made for the same values."""
    calls, fails = Calls(), [False]

    def fail(v: Any) -> Any:
        if fails[0]:
            fails[0] = False
            raise ValueError("once")
        return v

    async def main() -> None:
        a, n = source(array(1)), source(1.0)
        first = a.then(from_host).to_host().host_map(calls.noted("early", lambda v: v + 1)).then(from_host)
        behind = flipped(first).to_host().host_map(calls.noted("fails", fail)).then(from_host).to_host()
        beside = n.map(calls.noted("map", lambda v: v + 1)).shared()
        op = zip_ops(beside, behind) if late else zip_ops(behind, beside)
        async with observe(op) as feed:
            await feed.next()
            assert calls.take() == ["early", "fails", "map"]
            fails[0] = True
            a.set(array(5))
            n.set(2.0)
            with pytest.raises(ValueError, match="once"):
                await feed.next()
            assert calls.take() == ["early", "fails", "map"]
            value: Any = await feed.next()
            assert (value[1 - late], float(value[late][0])) == (3.0, -5.0)
            assert calls.take() == ["fails"]

    trio.run(main)
