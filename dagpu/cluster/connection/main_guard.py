"""Finds a program that its own worker processes would run again.

A process that Python starts imports the main module anew (`multiprocessing`, start method spawn), so that it has the
functions and classes of that module. What the module runs at its top level runs there too, unless an `if` excludes it.
"""

import ast
import linecache
import sys
from pathlib import PurePath
from types import FrameType, ModuleType

from dagpu.common.errors import ClusterError
from dagpu.common.origin import Origin, describe


def refuse_to_run_again(origin: Origin) -> None:
    """Raise an error if the processes of `Cluster.local`, called at this place, would run the program again.

    Raises:
        ClusterError: the main module is running, and no `if` excludes processes that import it.
    """
    found = line_to_guard()
    if found is not None:
        file, line = found
        where = f"{PurePath(file).name}:{line}"
        raise ClusterError(
            f"Cluster.local at {describe(origin)}: each worker is a process that imports the main module again, and "
            f"would run {where} again, and with it this call. Put that line under an if of its own: "
            'if __name__ == "__main__":'
        )


def line_to_guard() -> tuple[str, int] | None:
    """Return the file and the line of the main module that is running now, and that a process would run again.

    None if an `if` encloses the line, if the main module is none that processes import, or if its source is not there.
    """
    main = sys.modules.get("__main__")
    if main is None or not _is_imported_again(main):
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return None if is_guarded("".join(linecache.getlines(file)), line) else (file, line)


def _is_imported_again(main: ModuleType) -> bool:
    """True for a file or a module, false for a package, for `python -c`, an interpreter and a notebook, as
    `multiprocessing.spawn` has it."""
    spec = main.__spec__
    if spec is not None:
        return not f".{spec.name}".endswith(".__main__")
    return getattr(main, "__file__", None) is not None


def is_guarded(source: str, line: int) -> bool:
    """Return true if an `if` encloses a line of a module, or if this source is not that of a module with the line."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return True
    at_line = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _has_line(node, line)]
    return not at_line or any(isinstance(node, ast.If) for node in at_line)


def _has_line(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
