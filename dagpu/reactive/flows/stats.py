"""`Stats`, the numbers of an open flow, kept up to date by its stages and its feed."""

from collections import deque
from typing import Final, final

from dagpu.common.places import here, leaves_run
from dagpu.reactive.flows.arguments import check_quantile

_LATEST: Final = 1024
"""The number of values for which `rate` and `latency` are computed."""


@final
class Stats:
    """Numbers of an open flow so far. Times are in seconds, on trio's clock; memory is in bytes."""

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
