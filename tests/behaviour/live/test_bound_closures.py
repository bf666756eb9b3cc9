"""A closure is called only for an argument that it was not given last, also if the op is traced again in between."""

from typing import Any

import pytest
import trio

from dagpu import Source, from_host, observe, ones, source, zip_ops
from tests.behaviour.laws.marked_ops import marked
from tests.behaviour.laws.marked_ops import no_marks as no_marks
from tests.behaviour.live.live_kernels import N, Op, array, flipped
from tests.support.marks import MARKS

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


def test_what_is_behind_an_array_of_a_map_is_not_called_in_a_later_trace() -> None:
    """An array that a map has made is the same one in each later trace: a map, a `host_map` and a kernel behind it run
    once its source has changed."""
    calls = Calls()
    a, b = source(array(1)), source(array(2))

    async def main() -> None:
        made = b.map(lambda x: x + 1).shared()
        mapped = made.map(calls.noted("map", lambda x: float(x[0])))
        on_host = made.host_map(calls.noted("host_map", lambda x: float(x[0])))
        behind = flipped(made.then(from_host)).to_host().host_map(calls.noted("behind", lambda x: float(x[0])))
        async with observe(zip_ops(traced_again(a), mapped, on_host, behind)) as feed:
            for number in range(3):
                value: Any = await feed.next()
                assert value[1:] == (3.0, 3.0, -2.0)
                assert calls.take() == ([] if number else ["behind", "host_map", "map"])
                a.set(array(5 + number))
            b.set(array(4))
            value = await feed.next()
            assert value[1:] == (5.0, 5.0, -4.0)
            assert calls.take() == ["behind", "host_map", "map"]

    trio.run(main)


def test_a_kernel_behind_a_map_does_not_run_again_in_a_later_trace() -> None:
    """A map returns an array. What follows it stands for the same array in each later trace."""
    a, b = source(array(1)), source(array(2))

    async def main() -> None:
        behind = marked(1, b.then(from_host).to_host().map(lambda x: x[:2] + 1).then(from_host))
        async with observe(zip_ops(traced_again(a), behind.to_host())) as feed:
            for number in range(3):
                a.set(array(5 + number))
                value: Any = await feed.next()
                assert (value[1] == 4).all()
                assert MARKS.seen() == [1]
            b.set(array(3))
            await feed.next()
            a.set(array(1))
            await feed.next()
            assert MARKS.seen() == [1, 1]

    trio.run(main)


def test_maps_of_several_copies_of_one_tensor_are_not_called_again() -> None:
    """Two copies of a tensor to the host are two arrays with equal contents, and a later trace may take one for the
    other."""
    calls = Calls()

    async def main() -> None:
        a, b = source(array(1)), source(array(2))
        tensor = b.then(from_host).shared()
        maps = [tensor.to_host().map(calls.noted(name, lambda x: float(x[0]))) for name in ("one", "two", "three")]
        async with observe(zip_ops(traced_again(a), *maps)) as feed:
            for number in range(3):
                a.set(array(5 + number))
                value: Any = await feed.next()
                assert value[1:] == (2.0, 2.0, 2.0)
                assert calls.take() == ([] if number else ["one", "three", "two"])
            b.set(array(4))
            await feed.next()
            assert calls.take() == ["one", "three", "two"]

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


def test_what_is_behind_a_list_and_a_closure_of_an_array_is_not_called_again() -> None:
    """Each trace gives closures lists of their own, which they may change; the list is the same as before all the same.
    An array that a closure has handed on is the same too, and no kernel that reads it runs again."""
    calls = Calls()

    def total(v: list[float]) -> float:
        v.reverse()  # its own list
        return 10 * v.pop() + v.pop()

    async def main() -> None:
        a, b, n, m = source(array(1)), source(array(2)), source(1.5), source(2.0)
        listed = zip_ops(n, m).map(calls.noted("listed", list)).map(calls.noted("total", total))
        uploaded = flipped(b.then(calls.noted("uploaded", from_host))).to_host()
        async with observe(zip_ops(traced_again(a), listed, uploaded)) as feed:

            async def value() -> tuple[float, float]:
                made: Any = await feed.next()
                return made[1], float(made[2][0])

            assert await value() == (17.0, -1.0)
            assert calls.take() == ["listed", "total", "uploaded"]
            for number in (3, 4, 5):
                a.set(array(number))
                before = feed.stats.launched
                assert await value() == (17.0, -1.0)
                assert not calls.take()
                assert feed.stats.launched - before == 3, "an upload, a kernel and a copy"
            b.set(array(9))
            before = feed.stats.launched
            assert await value() == (17.0, -8.0)
            assert calls.take() == ["uploaded"]
            assert feed.stats.launched - before == 3, "those of the other part"
            n.set(2.0)
            m.set(1.5)
            assert await value() == (21.5, -8.0), "the list is the one that the closure has made of the first"
            assert calls.take() == ["listed", "total"]

    trio.run(main)
