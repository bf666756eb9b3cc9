"""`--rehearse`: runs dagpu's part of a benchmark on the host, with tiny sizes. Nothing is measured or saved."""

import sys
from collections.abc import Sequence

from benchmarks.support.gpu import Bench, start


def start_or_rehearse(name: str, description: str, argv: Sequence[str] | None = None) -> Bench:
    """Call `gpu.start`, with `--rehearse` as another name of `--device host`."""
    given = sys.argv[1:] if argv is None else argv
    arguments = [part for word in given for part in (("--device", "host") if word == "--rehearse" else (word,))]
    return start(name, f"{description} --rehearse: the same as --device host.", arguments)


__all__ = ["start_or_rehearse"]
