"""Every example and the random DAGs under compute-sanitizer, with one line for each; ends with 1 unless all are clean.

    python -m tests.gpu.long.sanitize [--tool memcheck --tool racecheck] [--jobs 4] [--dags 40] [--only NAME]

memcheck finds accesses outside of what is allocated, and misaligned ones; racecheck finds races in shared
memory. Both slow kernels down 10 to 100 times, so the sizes here are small: the examples', and `--quick` where there is
such a form. Errors of driver calls are not reported: dagpu makes exceptions of them, and cuda.bindings asks the driver
on purpose for functions that it may not have.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tests.gpu.long.child_process import run_child
from tests.support.example_scripts import OTHER_PROCESSES, SCRIPTS, lacks_library, texts
from tests.support.paths import ROOT

FOUND = 86
"""The exit code with which compute-sanitizer says that it found something; no program here ends with it."""

DEADLINE_S = 240
"""For one program: far above what it takes."""

SUMMARY = re.compile(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)")


@final
@dataclass(frozen=True)
class Outcome:
    """The outcome of one program under one tool."""

    name: str
    tool: str
    clean: bool
    said: str
    seconds: float
    output: str


def programs(dags: int) -> dict[str, list[str]]:
    """Return the programs: the name and the command line of each. Examples whose libraries are missing are left out,
    and those that leave the GPU to other processes."""
    found = {"random DAGs": ["-m", "tests.gpu.support.dags", str(dags)]}
    for script in SCRIPTS:
        if lacks_library(script) or script.stem in OTHER_PROCESSES:
            continue
        program = ["-m", f"examples.{script.name}"] if script.is_dir() else [str(script)]
        found[script.stem] = [*program, *(["--quick"] if "--quick" in texts(script) else [])]
    return found


def sanitizer() -> str:
    """Return the path of compute-sanitizer."""
    beside = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer"
    found = shutil.which("compute-sanitizer") or (str(beside) if beside.exists() else None)
    if found is None:
        sys.exit("sanitize: there is no compute-sanitizer here. It comes with the CUDA toolkit: put its bin on PATH.")
    return found


def checked(name: str, command: list[str], tool: str) -> Outcome:
    """Run one program under one tool, in an empty folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "DAGPU_DEVICE": os.environ.get("DAGPU_DEVICE", "cuda:0")}
    # For backtraces of the host it keeps every frame of Python that launches a kernel, and the handles in there: no
    # SharedTensor would ever be the last.
    watch = [sanitizer(), "--tool", tool, "--show-backtrace", "device"]
    watch += ["--error-exitcode", str(FOUND), "--print-limit", "20"]
    if tool == "memcheck":
        watch += ["--report-api-errors", "no"]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        status, output = run_child([*watch, sys.executable, *command], folder, environment, DEADLINE_S)
    seconds = time.monotonic() - begin
    if status is None:
        return Outcome(name, tool, False, f"no end after {DEADLINE_S} s", seconds, output)
    summaries = SUMMARY.findall(output)
    if status:
        said = f"ended with {status}; {summaries[-1] if summaries else 'no summary'}"
        return Outcome(name, tool, False, said, seconds, output)
    if not summaries:
        return Outcome(name, tool, False, "said nothing: it may have watched no process", seconds, output)
    return Outcome(name, tool, True, summaries[-1], seconds, output)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the examples and random DAGs under compute-sanitizer.")
    parser.add_argument("--tool", action="append", choices=["memcheck", "racecheck", "synccheck", "initcheck"])
    parser.add_argument("--jobs", type=int, default=4, help="programs at a time (4)")
    parser.add_argument("--dags", type=int, default=40, help="random DAGs (40)")
    parser.add_argument("--only", help="of the programs those whose name has this in it")
    given = parser.parse_args()
    wanted = {name: command for name, command in programs(given.dags).items() if (given.only or "") in name}
    tasks = [
        (name, command, tool) for tool in given.tool or ["memcheck", "racecheck"] for name, command in wanted.items()
    ]
    sanitizer()
    failed = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(lambda task: checked(*task), tasks):
            mark = "clean" if outcome.clean else "FAILED"
            print(f"{mark:<7}{outcome.tool:<10}{outcome.name:<20}{outcome.seconds:6.1f} s  {outcome.said}", flush=True)
            failed += [] if outcome.clean else [outcome]
    for outcome in failed:
        print(f"\n---- {outcome.name} under {outcome.tool}\n{outcome.output[-4000:]}")
    print(f"{len(tasks) - len(failed)} of {len(tasks)} clean")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
