"""The reference has every public name, and its docstrings are of a form that Sphinx reads as it is meant."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

import dagpu
from dagpu import grad as gradients
from dagpu.entry.public import BY_NAME_ONLY
from tests.support.doc_pages import DOCS

PAGES: Final = sorted((DOCS / "reference").glob("*.md"))
TEXT: Final = "\n".join([page.read_text(encoding="utf-8") for page in PAGES])
ENTRY: Final = re.compile(r"^\.\. (?:auto|py:)(?P<kind>\w+):: (?P<name>dagpu[\w.]*)", re.MULTILINE)


def documented() -> dict[str, str]:
    """Return the kind of each entry of the reference by its name. Those of modules are members of these."""
    found = {match["name"]: match["kind"] for match in ENTRY.finditer(TEXT)}
    classes = {f"dagpu.grad.{name}": "class" for name in ("Parameterized", "Rule")}
    derivatives = {f"dagpu.grad.{name}": "function" for name in gradients.__all__}
    return found | {f"dagpu.array.{name}": "function" for name in dagpu.array.__all__} | derivatives | classes


def named(name: str) -> Any:
    """Return the object of a full name."""
    module, _, last = name.rpartition(".")
    if documented().get(name) == "module":
        return importlib.import_module(name)
    try:
        return getattr(importlib.import_module(module), last)
    except ImportError:
        return getattr(named(module), last)


def classes() -> list[type[Any]]:
    """Return the classes of the reference, and those of dagpu from which they inherit."""
    shown = [named(name) for name, kind in documented().items() if kind in ("class", "exception")]
    return list(dict.fromkeys([c for cls in shown for c in cls.__mro__ if c.__module__.startswith("dagpu.")]))


def attribute_docstrings(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Iterate over the attributes of a class that have a docstring: fields, what `__init__` sets, and properties."""
    (found,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    assert isinstance(found, ast.ClassDef)
    init = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    for body in [found.body, *[node.body for node in init]]:
        for node, after in pairwise(body):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                continue
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after.value.value, str):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                name = ast.unparse(target).removeprefix("self.")
                if not name.startswith("_"):
                    yield name, inspect.cleandoc(after.value.value)
    for name, member in vars(cls).items():
        if isinstance(member, property) and member.__doc__ and not name.startswith("_"):
            yield name, inspect.cleandoc(member.__doc__)


def docstrings() -> Iterator[tuple[str, str]]:
    """Iterate over all docstrings that the reference shows, with the names of their objects."""
    for name in documented():
        if text := inspect.getdoc(named(name)):
            yield name, text
    for cls in classes():
        yield from [(f"{cls.__name__}.{name}", text) for name, text in attribute_docstrings(cls)]
        for name, member in vars(cls).items():
            if not name.startswith("_") and callable(member) and (text := inspect.getdoc(member)):
                yield f"{cls.__name__}.{name}", text


def test_every_public_name_is_in_the_reference() -> None:
    """By the name under which it is imported. Element types and shapes are in a table."""
    found = {*documented(), *[f"dagpu.{name}" for name in re.findall(r"`(\w+)`", TEXT)]}
    public = [*dagpu.__all__, *BY_NAME_ONLY]
    assert [name for name in public if f"dagpu.{name}" not in found] == []


def test_the_first_line_about_an_attribute_has_no_colon() -> None:
    """Sphinx takes what stands before a colon there for the type of the attribute, and tears the sentence apart."""
    torn = [
        f"{cls.__name__}.{name}: {text}"
        for cls in classes()
        for name, text in attribute_docstrings(cls)
        if re.search(r":\s*\S", text.partition("\n")[0])
    ]
    assert torn == []


def test_backticks_of_docstrings_are_in_pairs_around_words() -> None:
    """In each paragraph. One that is alone is a warning, and with it `make docs` fails. One before a letter, as in the
    plural of a name, does not end the name."""
    wrong: list[str] = []
    for name, text in docstrings():
        for paragraph in re.split(r"\n\s*\n", text):
            pieces = paragraph.split("`")
            paired = len(pieces) % 2 == 1
            if not paired or any(re.match(r"\w", prose) for prose in pieces[2::2]):
                wrong.append(f"{name}: {paragraph}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_entry_is_there_twice(page: Path) -> None:
    """Links lead to one place."""
    here = [match["name"] for match in ENTRY.finditer(page.read_text(encoding="utf-8"))]
    everywhere = [match["name"] for match in ENTRY.finditer(TEXT)]
    assert [name for name in here if everywhere.count(name) > 1] == []
