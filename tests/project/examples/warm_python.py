"""A Python process that has imported what examples import, and forks a process for each of them.

The imports take longer than most examples. What a process does after them is what it does without: the example is its
`__main__`, in a folder of its own, and it ends as an interpreter ends.

The process reads requests from its standard input, one a line: a JSON list of the script or module, the folder that it
runs in, the file of its output, and its arguments. To each it answers with the exit status. It has no other thread.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from tests.support.example_scripts import DEADLINE_S, WARNINGS, environment
from tests.support.paths import ROOT

IMPORTED: Final = (
    "dagpu.entry.public",
    "dagpu.backends.host",
    "dagpu.runtime.interpreter",
    "rich.console",
    "sklearn.datasets",
    "trio",
)


@final
class WarmPython:
    """A process of this module."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, *WARNINGS, "-m", "tests.project.examples.warm_python"],
            cwd=ROOT,
            env=environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run an example in `folder`, as the function `run` does."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        output = folder / "output.local.txt"
        name = f"examples.{script.name}" if script.is_dir() else str(script)
        request = [name, str(folder), str(output), *arguments]
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(request, status, output.read_text(encoding="utf-8"))

    def close(self) -> None:
        """End the process."""
        self._server.communicate()


def next_request() -> list[str] | None:
    """Wait for requests and do them. Returns the request in the process that is to run it, and None at the end."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            request: list[str] = json.loads(line)
            return request
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def main() -> None:
    """Do all requests."""
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # no collection of a child walks, and so copies, the memory of the imports
    request = next_request()
    if request is None:
        return
    signal.alarm(DEADLINE_S)  # ends a process that hangs
    program, folder, output, *arguments = request
    os.chdir(folder)
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    for standard in (1, 2):
        os.dup2(written, standard)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[:] = [program, *arguments]
    if program.endswith(".py"):
        sys.path[0] = str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path[0] = folder
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
