"""All that is to hold on several GPUs, and all that is to be fast, in one command, with one line for each part.

    python -m tests.gpu.long.meshes                 on the machine's GPUs: two or four of them, 10 to 20 minutes
    python -m tests.gpu.long.meshes --rehearse 4    the tests on simulated GPUs, and a dry run of the benchmarks

It runs the tests of several GPUs, those that take all memory by themselves, the same tests under compute-sanitizer's
memcheck, random DAGs for a while, and `benchmarks.mesh`, whose tables have the goals and whether they are met. Ends
with 1 unless all parts succeed. The whole output is kept in `meshes.txt` (`--out`).
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tests.gpu.long.child_process import run_child
from tests.gpu.long.sanitize import FOUND, sanitizer
from tests.support.paths import ROOT

TESTS: Final = ("tests/gpu/meshes",)

NO_HOST_BODY: Final = "not on_both and not network and not independent and not branches and not threads"
"""Tests with kernels that have no body for the host, which simulated GPUs cannot run."""

DEADLINE_S: Final = 1800


@final
@dataclass(frozen=True)
class Part:
    """One part of the command."""

    name: str
    command: Sequence[str]


def parts_on(gpus: int, minutes: float) -> list[Part]:
    """Return the parts on a machine with this many GPUs."""
    python, names = sys.executable, [f"cuda:{number}" for number in range(gpus)]
    tests = [python, "-m", "pytest", "-q", "-rs", *TESTS]
    watch = [sanitizer(), "--tool", "memcheck", "--show-backtrace", "device", "--report-api-errors", "no"]
    watch += ["--error-exitcode", str(FOUND), "--print-limit", "20"]
    chosen = "layouts or random or either or any_of or halo or collectives"
    return [
        Part("tests", [*tests, "-m", "not exclusive"]),
        Part("all memory", [*tests, "-m", "exclusive"]),
        Part("memcheck", [*watch, *tests, "-m", "not exclusive", "-k", chosen]),
        Part("random DAGs", [python, "-m", "tests.gpu.long.mesh_storm", str(minutes), *names]),
        Part("benchmarks", [python, "-m", "benchmarks.mesh", "--devices", *names]),
    ]


def rehearsal(gpus: int) -> list[Part]:
    """Return the parts that a machine without GPUs can do."""
    python, names = sys.executable, [f"cuda:{number}" for number in range(gpus)]
    return [
        Part("tests", [python, "-m", "pytest", "-q", "-rs", *TESTS, "-k", NO_HOST_BODY]),
        Part("random DAGs", [python, "-m", "tests.gpu.long.mesh_storm", "0.1", *names]),
        Part("benchmarks", [python, "-m", "benchmarks.mesh", "--device", "host"]),
    ]


def run(part: Part, environment: dict[str, str]) -> tuple[bool, float, str]:
    """Run one part. Return whether it succeeded, its seconds, and its output."""
    begin = time.monotonic()
    status, output = run_child(part.command, ROOT, environment, DEADLINE_S)
    if status is None:
        output += f"\nno end after {DEADLINE_S} s"
    return status == 0, time.monotonic() - begin, output


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all tests and benchmarks of several GPUs.")
    parser.add_argument("--rehearse", type=int, default=0, metavar="N", help="on N simulated GPUs")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs to use (all)")
    parser.add_argument("--minutes", type=float, default=3, help="of random DAGs (3)")
    parser.add_argument("--only", default="", help="of the parts those whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("meshes.txt"), help="file for the whole output (meshes.txt)")
    given = parser.parse_args()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    if given.rehearse:
        environment |= {"DAGPU_TEST_SIMULATED": str(given.rehearse), "DAGPU_TEST_DEVICE": "host:0"}
        parts = rehearsal(given.rehearse)
    else:
        from dagpu import devices

        gpus = given.gpus or sum(each.kind == "cuda" for each in devices())
        if gpus < 2:
            sys.exit(f"meshes: {gpus} GPUs here, and two are needed. --rehearse 4 runs the tests on simulated ones.")
        parts = parts_on(gpus, given.minutes)
    failed, whole = [], []
    for part in [each for each in parts if given.only in each.name]:
        good, seconds, output = run(part, environment)
        lines = [line for line in output.splitlines() if line.strip()]
        print(
            f"{'good' if good else 'FAILED':<7}{part.name:<12}{seconds:7.1f} s  {lines[-1] if lines else ''}",
            flush=True,
        )
        whole.append(f"==== {part.name}: {' '.join(part.command)}\n{output}")
        failed += [] if good else [part.name]
        if part.name == "benchmarks" or not good:
            print(output[-12_000:], flush=True)
    given.out.write_text("\n".join(whole), encoding="utf-8")
    print(f"{len(whole) - len(failed)} of {len(whole)} parts good; all output is in {given.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
