"""Hold the types in `_driver.pyi` against those in the compiled module's docstrings: stubtest compares names, kinds and
defaults of parameters, and no types.

A type that the docstring calls `object` is one that C++ converts by itself, and is taken on trust.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from boost_signatures import BoostSignature, boost_signatures, is_boost_function

WIDER: Final = {
    "__eq__": "answers False to what it cannot compare",
    "__ne__": "the same",
    "get_pointer": "has an overload that is there for subclasses, and raises",
}
"""Methods whose stubs say something else, and why."""

_TUPLES: Final = {"Grid", "Block"}


@dataclass(frozen=True, slots=True)
class Stub:
    """A stub file, by name."""

    functions: dict[str, list[ast.FunctionDef]]
    classes: dict[str, ast.ClassDef]

    @classmethod
    def read(cls, path: Path) -> "Stub":
        body = ast.parse(path.read_text(encoding="utf-8")).body
        return cls(_functions(body), {node.name: node for node in body if isinstance(node, ast.ClassDef)})

    def method(self, owner: str, name: str) -> list[ast.FunctionDef]:
        """Its overloads, wherever in the bases they are; none if it is not there."""
        node = self.classes.get(owner)
        if node is None:
            return []
        found = _functions(node.body).get(name)
        if found:
            return found
        return next(filter(None, (self.method(ast.unparse(base), name) for base in node.bases)), [])


def disagreements(module: ModuleType, stub: Stub) -> tuple[int, list[str]]:
    """How many functions were compared, and a line for each overload on one side that the other has not."""
    compared, lines = 0, []
    for where, function, owner, drop_self in boost_functions(module):
        name = where.rpartition(".")[2]
        if name in WIDER:
            continue
        overloads = boost_signatures(function.__doc__ or "")
        definitions = stub.method(owner, name) if owner else stub.functions.get(name, [])
        compared += 1
        lines += [
            f"{where}: the stub has no {overload}"
            for overload in overloads
            if not any(_agree(definition, overload, owner, drop_self) for definition in definitions)
        ]
        lines += [
            f"{where}: PyCUDA has no ({ast.unparse(definition.args)}) -> {_text(definition.returns)}"
            for definition in definitions
            if not any(_agree(definition, overload, owner, drop_self) for overload in overloads)
        ]
    return compared, lines


def boost_functions(module: ModuleType) -> Iterator[tuple[str, object, str, bool]]:
    """Its public functions and methods: qualified name, function, class ("" if none), is the first parameter self."""
    for name, value in sorted(vars(module).items()):
        if is_boost_function(value):
            yield name, value, "", False
        elif isinstance(value, type) and value.__name__ == name:  # and no other name of a class
            for member, method in sorted(vars(value).items()):
                static = isinstance(method, staticmethod)
                function = method.__func__ if isinstance(method, staticmethod) else method
                if is_boost_function(function) and (member.startswith("__") or not member.startswith("_")):
                    yield f"{name}.{member}", function, name, not static


def _agree(definition: ast.FunctionDef, overload: BoostSignature, owner: str, drop_self: bool) -> bool:
    parameters = [*definition.args.posonlyargs, *definition.args.args][drop_self:]
    types = overload.types[drop_self:]
    required = len(parameters) - len(definition.args.defaults)
    return (
        required <= len(types) <= len(parameters)
        and all(_fits(_text(p.annotation), t, owner) for p, t in zip(parameters, types, strict=False))
        and (definition.name == "__init__" or _fits(_text(definition.returns), overload.result, owner))
    )


def _fits(annotation: str, declared: str, owner: str) -> bool:
    """Is the annotation a type that the docstring calls `declared`?"""
    if declared == "object":
        return True
    if declared == "tuple":
        return annotation.startswith("tuple[") or annotation in _TUPLES
    return annotation.removesuffix(" | MaybeNone") == declared or (annotation == "Self" and owner == declared)


def _functions(body: list[ast.stmt]) -> dict[str, list[ast.FunctionDef]]:
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def _text(annotation: ast.expr | None) -> str:
    return "" if annotation is None else ast.unparse(annotation)
