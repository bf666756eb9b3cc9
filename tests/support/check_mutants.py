"""Mutants of functions that refuse: each lacks one of the conditions under which the function gives up.

A condition is the test of an `if` whose body alone returns, an operand of it where it is an `or`, the body of an
`except` that returns, or a result that is compared. Tests hold that without any one of them something wrong passes.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

REFUSALS: Final = frozenset(("False", "None", "MISS"))
"""What the functions return if they give up."""


def check_mutants(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Iterate over the mutants of a function, each with the text of the condition that it lacks."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for number, node in enumerate(ast.walk(tree)):
        for without, what in _weaker(node):
            mutant = copy.deepcopy(tree)
            place = list(ast.walk(mutant))[number]
            for field, value in ast.iter_fields(without):
                setattr(place, field, value)
            ast.fix_missing_locations(mutant)
            scope = dict(function.__globals__)
            exec(compile(mutant, f"<without {what}>", "exec"), scope)
            yield f"{function.__qualname__}: {what}", scope[function.__name__]


def _weaker(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """Iterate over the nodes that may take the place of a node, each with the text of what is left out."""
    match node:
        case ast.If(test=ast.BoolOp(op=ast.Or(), values=values), body=[ast.Return(value=given)]) if _refuses(given):
            for each in values:
                weaker: list[ast.expr] = [_ignored(other) if other is each else other for other in values]
                yield ast.If(ast.BoolOp(ast.Or(), weaker), node.body, node.orelse), ast.unparse(each)
        case ast.If(test=test, body=[ast.Return(value=given)]) if _refuses(given):
            yield ast.If(_ignored(test), node.body, node.orelse), ast.unparse(test)
        case ast.ExceptHandler(body=[ast.Return(value=given)]) if _refuses(given):
            yield ast.ExceptHandler(node.type, node.name, [ast.Pass()]), ast.unparse(node)
        case ast.Return(value=ast.BoolOp(op=ast.And(), values=values)):
            for each in values:
                rest = [other for other in values if other is not each]
                yield ast.Return(rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)), ast.unparse(each)
        case ast.Return(value=ast.Compare() | ast.Call(func=ast.Name(id="bool" | "find_items"))):
            assert node.value is not None
            yield ast.Return(ast.BoolOp(ast.Or(), [node.value, ast.Constant(True)])), ast.unparse(node.value)
        case _:
            pass


def _ignored(test: ast.expr) -> ast.expr:
    """Return a test that is false, but does what this one does."""
    return ast.BoolOp(ast.And(), [test, ast.Constant(False)])


def _refuses(given: ast.expr | None) -> bool:
    return given is not None and ast.unparse(given) in REFUSALS
