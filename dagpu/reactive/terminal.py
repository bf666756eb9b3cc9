"""`watch`: a live picture of a feed in a terminal, drawn by rich, which is imported only here and only then."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import trio

from dagpu.common.errors import DagpuError
from dagpu.common.places import describe, here, leaves_run
from dagpu.common.wrong_arguments import check_count, wrong_argument
from dagpu.plans.text import duration
from dagpu.reactive.flows.feed import Feed
from dagpu.reactive.flows.stage import Stats

if TYPE_CHECKING:
    from rich.console import Console, RenderableType  # an optional package

_REDRAWS_PER_SECOND = 10
_BAR_WIDTH = 30


@leaves_run
def watch(
    feed: Feed[Any], /, *, total: int | None = None, title: str = "", console: "Console | None" = None
) -> AbstractContextManager[None]:
    """Show a progress bar, the numbers and the stages of a feed in the terminal while the block is open.

        async with frames as feed:
            with watch(feed, total=600):
                async for frame in feed:
                    ...

    A thread redraws them ten times a second, and at the end of the block. Where the output is not a terminal, only the
    last picture is printed. Needs the package rich: `pip install rich`.

    Args:
        feed: an open flow.
        total: the number of values that are expected, for the bar and the remaining time; by default unknown.
        title: a text before the bar; by default the place where the feed was opened.
        console: the console of rich to draw on; by default the terminal.

    Raises:
        DagpuError: rich is not installed.
    """
    origin = here()
    if not isinstance(feed, Feed):
        cure = "Open the flow, and pass what the block gets: async with flow as feed"
        raise wrong_argument("watch", origin, "feed", feed, "a feed", cure)
    if total is not None:
        check_count(total, "watch", origin, "total")
    if not isinstance(title, str):
        raise wrong_argument("watch", origin, "title", title, "a text", 'Write title="frames"')
    try:
        from rich.console import Console as RichConsole
    except ImportError:
        raise DagpuError(
            f"watch at {describe(origin)}: the package rich is not installed, which draws in the terminal. Install "
            "it: pip install rich."
        ) from None
    if console is not None and not isinstance(console, RichConsole):
        cure = "Leave it out, or pass rich.console.Console()"
        raise wrong_argument("watch", origin, "console", console, "a console of rich", cure)
    return _watching(feed, total, title, console)


@contextmanager
def _watching(feed: Feed[Any], total: int | None, title: str, console: "Console | None") -> Iterator[None]:
    from rich.live import Live

    picture = _Picture(feed, total, title or f"feed opened at {describe(feed.origin)}")
    with Live(get_renderable=picture, console=console, refresh_per_second=_REDRAWS_PER_SECOND):
        yield


class _Picture:
    """Draws a feed: the bar, the numbers, and the stages as far as the feed is open."""

    def __init__(self, feed: Feed[Any], total: int | None, title: str) -> None:
        self._feed = feed
        self._total = total
        self._title = title

    def __call__(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        stats = self._feed.stats
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(self._total or 1.0, stats.values if self._total else 0.0, _BAR_WIDTH)
        head.add_row(Text(self._title), *([bar] if self._total else []), Text(progress_text(stats, self._total)))
        return Group(head, Text(numbers_text(stats), "dim"), Text(self._stages(), "dim"))

    def _stages(self) -> str:
        try:
            return self._feed.explain()
        except trio.ClosedResourceError:
            return "closed"


def progress_text(stats: Stats, total: int | None) -> str:
    """Return the number of values, their rate, and the time that is left if the total is known."""
    found = f"{stats.values:,}" if total is None else f"{stats.values:,} of {total:,} ({stats.values / total:.0%})"
    found += f", {stats.rate:,.4g} a second"
    if total is not None and stats.rate and stats.values < total:
        found += f", {duration((total - stats.values) / stats.rate)} left"
    return found


def numbers_text(stats: Stats) -> str:
    """Return latencies, items in flight, skipped values, and who waited for whom."""
    producer, consumer = stats.waiting
    latency = f"p50 {duration(stats.latency(0.5))}, p99 {duration(stats.latency(0.99))}"
    counts = f"{stats.in_flight} in flight, {stats.skipped:,} skipped"
    return f"{latency}; {counts}; waited {producer:.0%} for the producer, {consumer:.0%} for the consumer"
