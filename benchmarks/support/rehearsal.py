"""`--rehearse`: a benchmark's own part on the host, with tiny sizes; nothing is measured, and nothing kept."""

import sys
from collections.abc import Sequence

from benchmarks.support.gpu import Bench, start


def start_or_rehearse(name: str, description: str, argv: Sequence[str] | None = None) -> Bench:
    """`gpu.start`, which also takes `--rehearse` for `--device host`."""
    given = sys.argv[1:] if argv is None else argv
    arguments = [part for word in given for part in (("--device", "host") if word == "--rehearse" else (word,))]
    return start(name, f"{description} --rehearse: the same as --device host.", arguments)


__all__ = ["start_or_rehearse"]
