"""The stages of a flow, each of which makes values of those of the one before it; the checks of their arguments, at the
call and before anything runs; and the numbers of an open flow.
"""

import inspect
import math
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, Generic, TypeAlias, final

import trio
from typing_extensions import TypeVar

from dagpu.backends.host.measuring import SpanTrack
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import check_function, is_real_number, wrong_argument

# ---- arguments


def check_seconds(
    value: Any,
    call: str,
    where: Origin,
    name: str,
    what: str = "seconds",
    *,
    zero: bool = False,
    endless: bool = False,
) -> float:
    """Return a time or a rate as a float: above 0, or 0 too with `zero`; finite, or infinite too with `endless`.

    Raises:
        TypeError: the value is not a number.
        ValueError: the number is out of range.
    """
    number = float(value) if is_real_number(value) else None
    limit = math.inf if endless else sys.float_info.max
    if number is None or not 0 <= number <= limit or (number == 0 and not zero):
        kind = TypeError if number is None else ValueError
        wanted = f"a number of {what}, {'0 or more' if zero else 'above 0'},"
        raise wrong_argument(call, where, name, value, wanted, "Write 0.01, say", kind)
    return number


def check_quantile(value: Any, where: Origin) -> float:
    """Return the argument of `Stats.latency` as a float.

    Raises:
        TypeError: the value is not a number.
        ValueError: the number is not from 0 to 1.
    """
    if is_real_number(value) and 0 <= value <= 1:
        return float(value)
    kind = ValueError if is_real_number(value) else TypeError
    cure = "Write 0.99 for the time that one value in a hundred exceeds"
    raise wrong_argument("latency", where, "quantile", value, "a number from 0 to 1", cure, kind)


def check_step(f: Any, where: Origin) -> None:
    """Check that the argument of `fold` is a function of a state and a value, whose body runs when it is called.

    Raises:
        TypeError: it is not callable, it is an async or generator function, or it cannot be called with two arguments.
    """
    check_function(f, "fold", where, "step")
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # a function of C without a signature
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise TypeError(
            f"fold at {describe(where)}: step cannot be called with two arguments, the state and a value. Write "
            ".fold(state, lambda state, x: ...)."
        ) from None


def check_target(target: object, where: Origin) -> None:
    """Check that the argument of `into` has a method `set`.

    Raises:
        TypeError: it has none.
    """
    if isinstance(target, type) or not callable(getattr(target, "set", None)):
        cure = "Pass a source, or an object with a method set(x)"
        raise wrong_argument("into", where, "target", target, "a source", cure)


# ---- the numbers of an open flow


_LATEST: Final = 1024
"""The number of values for which `rate` and `latency` are computed."""


@final
class Stats:
    """Numbers of an open flow so far. Times are in seconds, on trio's clock; memory is in bytes."""

    __slots__ = (
        "_handed", "_latencies", "_left", "_waited_for_consumer", "_waited_for_producer", "in_flight", "kept_bytes",
        "launched", "reused", "skipped", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.values: int = 0
        """The number of values handed out."""
        self.skipped: int = 0
        """The number of values that newer ones replaced before anyone asked, in `latest`, `at_most` and `every`."""
        self.in_flight: int = 0
        """The number of items that `run` and `fold` have pulled and not handed out."""
        self.launched: int = 0
        """The number of device instructions that ran in updates of `observe`."""
        self.reused: int = 0
        """The number of device instructions that updates of `observe` did not have to run."""
        self.kept_bytes: int = 0
        """The device memory that `observe` keeps between updates."""
        self._handed: deque[float] = deque(maxlen=_LATEST)
        self._latencies: deque[float] = deque(maxlen=_LATEST)
        self._left: float | None = None
        """The end of the last call of `next`; None before the first."""
        self._waited_for_producer = 0.0
        self._waited_for_consumer = 0.0

    def __repr__(self) -> str:
        counts = ("values", "skipped", "in_flight", "launched", "reused", "kept_bytes")
        return f"<Stats {', '.join(f'{name}={getattr(self, name):,}' for name in counts)}>"

    @property
    def rate(self) -> float:
        """Values a second, of the last 1,024; 0 before the second value."""
        times = self._handed
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0

    @leaves_run
    def latency(self, quantile: float = 0.5) -> float:
        """Return a quantile of the seconds from a value's pull to its hand-over, of the last 1,024 values.

        `quantile` is from 0 to 1: `latency(0.99)` is exceeded by one value in a hundred. Returns 0 without values.

        Raises:
            ValueError: `quantile` is not from 0 to 1.
        """
        quantile = check_quantile(quantile, here())
        found = sorted(self._latencies)
        return found[min(int(quantile * len(found)), len(found) - 1)] if found else 0.0

    @property
    def waiting(self) -> tuple[float, float]:
        """The shares of the time in which the consumer waited for the producer, and the producer for the consumer.

        The two add up to 1. A first share near 1 says that more items in flight may help; a second near 1 says that
        they do not.
        """
        total = self._waited_for_producer + self._waited_for_consumer
        return (self._waited_for_producer / total, self._waited_for_consumer / total) if total else (0.0, 0.0)

    # ---- for feeds and stages

    def hand_over(self, since: float, now: float) -> None:
        """Count a value that was pulled at `since` and is handed out `now`."""
        self.values += 1
        self._handed.append(now)
        self._latencies.append(now - since)

    def count_call(self, asked: float, now: float) -> None:
        """Count the time from the end of the call of `next` before to a call at `asked`, for which the producer waited,
        and from then to `now`, for which the consumer waited."""
        left, self._left = self._left, now
        self._waited_for_producer += now - asked
        if left is not None:
            self._waited_for_consumer += asked - left


# ---- stage
#
# `FlowStage`, a part of an open flow, which is asked for one value at a time, and `Opening`, which makes such parts.
#
# Each method of a flow adds a stage, which asks the stage before it. Four rules hold for every stage:
#
# - It pulls a value only when it is asked for one, unless its documentation says otherwise. - If `next` is cancelled,
# no value is lost: the next call returns it. - An error takes the place of the value that failed. The stage may be
# asked again, and goes on with the next value. - After `End`, `next` raises `End` again.

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class End(Exception):  # reason: like StopIteration, it is a result and no error
    """Raised by `FlowStage.next`: there are no more values."""


class FlowStage(Generic[_T_co]):
    """Computes the values of an open flow. One task at a time asks it."""

    kind: str = "stage"
    """The public function that makes the stage, such as "run"."""
    origin: Origin = None
    """The place of that function's call."""
    since: float = 0.0
    """The time at which the value that `next` returned last was pulled, on trio's clock."""
    sources: "tuple[FlowStage[Any], ...]" = ()
    """The stages that this one asks."""

    async def next(self) -> _T_co:
        """Return the next value.

        Raises:
            End: there are no more values.
        """
        raise NotImplementedError

    def state(self) -> str:
        """Describe the state of the stage in a few words, such as "3 of 4 in flight"; "" if there is nothing to say."""
        return ""

    def explain(self) -> list[str]:
        """Describe the stage and those that it asks, one a line, the sources of a stage below it and indented."""
        state = self.state()
        lines = [f"{self.kind} at {describe(self.origin)}{f': {state}' if state else ''}"]
        return lines + ["  " + line for source in self.sources for line in source.explain()]


class Asker(Enum):
    """The task that asks a stage. It decides what the stage must do for that task."""

    CONSUMER = "consumer"
    """A task that may be cancelled while the flow stays open. `next` executes a checkpoint for each value."""
    PUMP = "pump"
    """A task of the open flow, which is cancelled only with all of it. `next` executes a checkpoint for each value."""
    RUNS = "runs"
    """A task of the open flow that executes a checkpoint for each value itself, in the run of an op."""


@final
@dataclass(frozen=True, slots=True)
class Opening:
    """The tasks, the numbers and the resources that the stages of one open flow share."""

    nursery: trio.Nursery
    stack: AsyncExitStack
    """What it holds is closed after the tasks of the nursery have ended."""
    stats: Stats
    track: Callable[[str], SpanTrack] | None
    """Makes a track of the timeline of this name; None if no trace is being recorded."""
    clock: Callable[[], float]
    """Reads trio's clock."""
    asker: Asker = Asker.CONSUMER

    def asked_by(self, asker: Asker) -> "Opening":
        """Return the opening for a stage that `asker` asks."""
        return replace(self, asker=asker)


Begin: TypeAlias = Callable[[Opening], FlowStage[_T]]
"""Makes the stage of a flow, and those that it asks, in an opening."""


@final
class ItemOutcome(Generic[_T]):
    """A value, or the error in its place; `done` says that one of them is set."""

    __slots__ = ("done", "error", "held", "since", "value")
    value: _T

    def __init__(self, since: float) -> None:
        self.since = since
        self.done = False
        self.error: Exception | None = None
        self.held = 0
        """The bytes of the memory budget that the item holds until it is handed out."""

    def succeed(self, value: _T) -> None:
        self.value = value
        self.done = True

    def fail(self, error: Exception) -> None:
        """Set the error. The frames of the task that calls this leave its traceback, for the task goes on."""
        without_our_frames(error)
        self.error = error
        self.done = True

    def take(self) -> _T:
        """Return the value, or raise the error."""
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # else the error and this frame would refer to each other
            del self


def failure(error: Exception) -> ItemOutcome[Any]:
    """Return the outcome of an item that failed now."""
    failed: ItemOutcome[Any] = ItemOutcome(trio.current_time())
    failed.fail(error)
    return failed


async def ask(stage: FlowStage[_T]) -> ItemOutcome[_T]:
    """Return the next value of a stage, or the error in its place.

    Raises:
        End: there are no more values.
    """
    try:
        value = await stage.next()
    except End:
        raise
    except Exception as error:
        return failure(error)
    outcome: ItemOutcome[_T] = ItemOutcome(stage.since)
    outcome.succeed(value)
    return outcome


FOREVER: Final = float("inf")
"""Seconds: a time limit that never ends."""
