"""`observe(check=True)` reports no difference where a cutoff takes two values for equal: the run from scratch gets the
value that was let through."""

from fractions import Fraction
from typing import Any

import pytest
import trio

from dagpu import UpdateError, cutoff, from_host, observe, source, zip_ops
from tests.behaviour.live.live_kernels import array, blended


def test_a_cutoff_with_equal_is_no_difference() -> None:
    """Numbers that differ by less than one are equal. What comes after the cutoff has the number that it let through
    last, on the host and on the device."""

    async def main() -> None:
        given, t = source(1.0), source(array(1))
        coarse = cutoff(given.map(lambda v: v), lambda a, b: abs(a - b) < 1).shared()
        tensor = t.then(from_host).shared()
        op = zip_ops(coarse, coarse.map(lambda v: Fraction(v) + 1), blended(tensor, tensor, coarse).to_host())
        async with observe(op, check=True) as feed:
            for number, wanted in [(1.0, 1.0), (1.5, 1.0), (1.75, 1.0), (2.5, 2.5), (3.25, 2.5), (1.0, 1.0)]:
                given.set(number)
                t.set(array(1))
                value: Any = await feed.next()
                assert (value[0], value[1], float(value[2][0])) == (wanted, wanted + 1, wanted + 1.5)

    trio.run(main)


def test_a_difference_behind_a_cutoff_is_reported() -> None:
    """The check still sees a closure that depends on more than what it is given."""
    calls: list[float] = []

    async def main() -> None:
        given = source(1.0)

        def count(v: float) -> int:
            calls.append(v)
            return len(calls)

        async with observe(cutoff(given.map(lambda v: v), lambda a, b: a == b).map(count), check=True) as feed:
            with pytest.raises(UpdateError, match="differs from a run from scratch"):
                await feed.next()

    trio.run(main)
