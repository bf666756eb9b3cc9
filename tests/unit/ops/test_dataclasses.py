"""Dataclasses of dagpu hold what they declare, and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import dagpu

PACKAGE = Path(dagpu.__file__).parent


def dataclasses_in(source: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The name of each class that `dataclass` makes, with the options that it is made with."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for made_by in node.decorator_list:
                match made_by:
                    case ast.Name(id="dataclass"):
                        yield node.name, {}
                    case ast.Call(func=ast.Name(id="dataclass"), keywords=options):
                        yield node.name, {str(o.arg): ast.literal_eval(o.value) for o in options}
                    case _:
                        pass


def test_every_dataclass_has_slots() -> None:
    """Nobody can set an attribute that a class does not declare, and an object is as small as its fields."""
    found = [
        (f"{path.relative_to(PACKAGE)}: {name}", options)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, options in dataclasses_in(path.read_text(encoding="utf-8"))
    ]
    assert len(found) > 80
    assert [where for where, options in found if options.get("slots") is not True] == []
