"""The texts of dagpu's messages, read from its source: those of three or more words in functions that make errors.

A message consists of pieces: the problem, the place and the cure. Each piece must occur in a message that a test
provokes (`tests.behaviour.errors.cures`), or have a reason in `LEFT_OUT`.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.paths import ROOT

PACKAGE = ROOT / "dagpu"
APART = "mypy_plugin"
"""The package left out here. Its corpus is tests/typing/plugin; tests/plugin/test_mypy_cures.py tests its cures."""

BUILDERS = {"refuse_call", "declaration_error", "wrong_argument", "_refuse", "refuse", "out_of_memory", "no_room"}
"""Functions that make an error from the texts that they are given."""

MESSAGE_MODULES = {
    "diagnostics",
    "topology",
    "launch_params",
    "cuda_scalars",
    "cuda_signature",
    "cuda_parameters",
    "call_arguments",
    "annotations",
    "wrong_arguments",
}
"""Modules in which all functions make texts for messages."""

_HOLE = "\0"
_WORD = re.compile(r"[A-Za-z']{2,}")
_TYPE = re.compile(r"^[\w.]+(\[[\w., \[\]]*\])?$")
"""Matches texts that are types: annotations, and the first argument of `cast`."""


class Piece(NamedTuple):
    """One text. `module` is relative to the package; `function` is the innermost function around the text."""

    module: str
    function: str
    text: str

    def is_in(self, message: str) -> bool:
        """Return True if the message contains this piece, with any texts in its placeholders."""
        return any(_has(message, text) for text in (self.text, self.text[:1].upper() + self.text[1:]))

    def __str__(self) -> str:
        return f"{self.module} {self.function}: {self.text.replace(_HOLE, '{}')}"


def _has(message: str, text: str) -> bool:
    at = 0
    for part in re.split(r"\0|\{[^{}]*\}", text):
        at = message.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def pieces() -> Iterator[Piece]:
    """Iterate over all pieces."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if module.startswith(APART):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
            own = list(_own_nodes(function))
            if path.stem in MESSAGE_MODULES or "cure" in function.name or any(map(_makes_an_error, own)):
                for text in _texts(own):
                    yield Piece(module, function.name, text)
        if path.stem in MESSAGE_MODULES or any(map(_makes_an_error, ast.walk(tree))):
            assigned = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
            for text in _texts([inner for value in assigned for inner in ast.walk(value)]):
                if re.search(r"[a-z]\. |[a-z], or |^[A-Z][a-z]+ (?:the|it|in|a) ", text):  # a sentence, or part of one
                    yield Piece(module, "", text)


def _own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Iterate over the nodes of a function, without those of inner functions and without docstrings."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo += ast.iter_child_nodes(node)


def _makes_an_error(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in BUILDERS or (name.endswith("Error") and name[0].isupper())
        case _:
            return False


def _texts(nodes: list[ast.AST]) -> Iterator[str]:
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) in inside:
            continue
        match node:
            case ast.Constant(value=str(text)):
                pass
            case ast.JoinedStr(values=values):
                text = "".join([str(v.value) if isinstance(v, ast.Constant) else _HOLE for v in values])
            case _:
                continue
        if len(_WORD.findall(text)) >= 3 and not _TYPE.match(text):
            yield text
