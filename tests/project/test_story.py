"""The path from an op to its result stays short, for a reader who follows it."""

from typing import Final

from benchmarks.checking.story import count_plain_ops
from tests.simulated.cuda import installed

MOST_CALLS: Final = 628
"""The most calls of a first run. A profiler counts 628 on CPython 3.11, and fewer where caches are warm."""
MOST_FILES: Final = 65
"""The most files that a first run enters. It enters 64, and one more where finalizers of other tests run in it."""


def test_a_first_run_grows_no_longer() -> None:
    """A change that adds hops to the first run of an op has to take others away, or to say why it may not."""
    with installed(gpus=1):
        _, runs = count_plain_ops()
    (calls, files, *_), _ = runs["first op: sync()"]
    assert calls <= MOST_CALLS, "python -m benchmarks.checking.story counts them"
    assert files <= MOST_FILES, "python -m benchmarks.checking.story counts them"
