"""`python -m dagpu explain SCRIPT` and `trace SCRIPT`: run an unchanged script and report on its pipelines."""

import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagpu
from dagpu import DeviceOp, StreamInterpreter, use_interpreter
from dagpu.common.origin import describe
from dagpu.lowering.plan import Plan
from dagpu.lowering.report.explanation import explain as in_words
from dagpu.ops.drawing.op_names import name_of_call


def explain(script: str, arguments: Sequence[str]) -> int:
    """Run a script, and print each of its plans before the plan runs. Return the script's exit status.

    The first plan with instructions comes with the sentences that say how to read all of them.
    """
    legend = True

    def print_plan(op: DeviceOp[Any, Any, Any], plan: Plan) -> None:
        nonlocal legend
        print(f"--- {name_of_call(op)} at {describe(op.origin)}\n{in_words(plan, legend=legend)}\n", flush=True)
        legend = legend and not plan.steps

    with use_interpreter(StreamInterpreter(on_plan=print_plan)):
        return run(script, arguments)


def trace(script: str, arguments: Sequence[str], out: str) -> int:
    """Run a script, write its timeline, and print planned and measured overlap. Return the script's exit status."""
    with dagpu.trace(out) as measured:
        status = run(script, arguments)
    print(f"\n{measured}\n\n{out}: open it in ui.perfetto.dev")
    return status


def run(script: str, arguments: Sequence[str]) -> int:
    """Run a script as `python script` would. Return its exit status."""
    if not Path(script).is_file():
        print(f"dagpu: there is no script {script}", file=sys.stderr)
        return 2
    with _as_main(script, arguments):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return _status(end.code)
    return 0


def _status(code: object) -> int:
    """Convert the argument of `sys.exit` to an exit status, as Python does: print an object that is not a number."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


@contextmanager
def _as_main(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as for a script that is run as the main program; restore both at the end."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
