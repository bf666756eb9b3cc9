"""Run times of the examples on the host: each in a process of its own, from its start to its end.

    python -m benchmarks.gallery [--repeats 3] [--no-save]

Imports count, because a user waits for them too. The column cpu is the processor time of the process and its children,
which other work on the machine hardly changes. The examples that the tests run in a short form are measured in it.
An example whose packages are not installed is left out.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

from benchmarks.support.table import Span, Table, load_average, machine, now, save, show
from tests.support.example_scripts import LONG, SCRIPTS, run


def seconds(script: Path) -> Span | None:
    """Run an example once; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        start, used = now(), processor_time()
        done = run(script, Path(folder), *(["--quick"] if script.stem in LONG else []), DAGPU_DEVICE="host")
        took = now().since(start)
    if done.returncode:
        print(f"{script.name} is left out: {done.stdout.rstrip().splitlines()[-1]}", file=sys.stderr)
        return None
    return Span(took.wall, processor_time() - used)


def processor_time() -> float:
    """Return the seconds of processor time of all processes that this one has started and awaited."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each example (3)")
    parser.add_argument("--no-save", action="store_true", help="only print")
    given = parser.parse_args()
    about = machine(["numpy", "trio"])
    table = Table("Examples", "s", "From the start of Python to its end, on the host. Long examples run with --quick.")
    for script in SCRIPTS:
        spans = [span for _ in range(given.repeats) if (span := seconds(script))]
        if spans:
            table.add(script.name, spans, 1.0, remark="--quick" if script.stem in LONG else "")
    about["load average after"] = load_average()
    print(show([table], about))
    if not given.no_save:
        save("gallery", "Run times of the examples", [table], about)


if __name__ == "__main__":
    main()
