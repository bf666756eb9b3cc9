"""The path from an op to its result stays short, for a reader who follows it."""

from typing import Final

from benchmarks.checking.story import count_plain_ops
from tests.simulated.cuda import installed

MOST_CALLS: Final = 597
"""The most calls of a first run, on CPython 3.11, once the caches are warm. Four of them ask whether a
gradient records."""
MOST_FILES: Final = 63
"""The most files that such a run enters."""


def test_a_first_run_grows_no_longer() -> None:
    """A change that adds hops to the first run of an op has to take others away, or to say why it may not.

    The least of three counts tells: caches may be cold, and finalizers of other tests may run in one.
    """
    counts: list[tuple[int, int]] = []
    for _ in range(3):
        with installed(gpus=1):
            _, runs = count_plain_ops()
        (calls, files, *_), _ = runs["first op: sync()"]
        counts.append((calls, files))
    assert min(calls for calls, _ in counts) <= MOST_CALLS, "python -m benchmarks.checking.story counts them"
    assert min(files for _, files in counts) <= MOST_FILES, "python -m benchmarks.checking.story counts them"
