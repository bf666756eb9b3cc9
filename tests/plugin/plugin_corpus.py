"""The programs of the plugin's corpus in tests/typing/plugin: where they are, and what mypy is expected to report."""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import dagpu
from tests.support.paths import ROOT

CORPUS = ROOT / "tests" / "typing" / "plugin"


EXPECTED = re.compile(r"# E: ([\w-]+)")


AWAITS_GRAPHS = {"graphs", "pipelines"} if not hasattr(dagpu, "CudaGraph") else set[str]()


class Program(NamedTuple):
    """A function of the corpus: `side` is right, wrong or unjudged; lines count from 1, both ends included."""

    side: str
    module: str
    name: str
    first: int
    last: int
    runs: bool
    """Does its `def` say that it ends well?"""


def needs_nothing(arguments: ast.arguments) -> bool:
    """Return True if the function can be called without arguments."""
    by_place = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return by_place == 0 and all(default is not None for default in arguments.kw_defaults)


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module, those under an `if` among them."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        elif isinstance(statement, ast.If):
            yield from functions(statement.body)


def programs(side: str) -> list[Program]:
    """Return the programs in the files of one side.

    They are read without import, because a wrong module may fail to import.
    """
    found: list[Program] = []
    for file in sorted((CORPUS / side).glob("*.py")):
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        for function in functions(ast.parse(text).body):
            if function.decorator_list or not needs_nothing(function.args):
                continue
            last = function.end_lineno or function.lineno
            runs = "# R: runs" in lines[function.lineno - 1]
            found.append(Program(side, file.stem, function.name, function.lineno, last, runs))
    return found
