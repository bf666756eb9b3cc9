"""The checks that run after mypy has typed a module: the findings in one function, and at its top level."""

from collections.abc import Iterator
from typing import TypeAlias

from mypy.nodes import (
    CallExpr,
    ClassDef,
    Decorator,
    FuncDef,
    MypyFile,
    NameExpr,
    OverloadedFuncDef,
    RefExpr,
    Statement,
    TypeInfo,
    Var,
)

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis import calls, containers, expressions, statements  # noqa: F401  # each registers itself
from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.callees import bodies_of, effect_in, is_pipeline
from dagpu.mypy_plugin.analysis.effects import summarise
from dagpu.mypy_plugin.analysis.graph import Body
from dagpu.mypy_plugin.analysis.known import check_values, constants_of
from dagpu.mypy_plugin.analysis.module_facts import Effect, ModuleFacts, Types
from dagpu.mypy_plugin.analysis.reporting import check_body
from dagpu.mypy_plugin.analysis.value_checks import ValueChecks
from dagpu.mypy_plugin.messages import Finding
from dagpu.mypy_plugin.syntax import suites_of

Target: TypeAlias = FuncDef | MypyFile
"""The unit that mypy checks separately: a function or method with its nested functions, or a module's top level."""


_IMPORTED = frozenset({"dagpu", names.INTEROP, names.ADOPT})


def adopted_variables(tree: MypyFile, types: Types) -> frozenset[Var]:
    """Return the variables that are the first argument of `adopt`, in a module that imports it or dagpu. `types` has
    every expression that mypy has checked."""
    if not any(symbol.fullname in _IMPORTED for symbol in tree.names.values()):
        return frozenset()
    found: set[Var] = set()
    for e in types:
        match e:
            case CallExpr(callee=RefExpr() as callee, args=[NameExpr(node=Var() as variable), *_]):
                found.update([variable] if callee.fullname == names.ADOPT else [])
            case _:
                pass
    return frozenset(found)


class Checks:
    """The checks of one module, target by target."""

    def __init__(self, tree: MypyFile, types: Types, effects: dict[str, Effect] | None = None) -> None:
        self.functions = list(checked_functions(tree))
        """The module's functions and methods, each with its class."""
        self._module = ModuleFacts(
            tree.fullname,
            types,
            symbols=tree.names,
            expects_errors=not tree.names.keys().isdisjoint(("dagpu", *names.RUNTIME_ERRORS)),
            adopted=adopted_variables(tree, types),
            own=frozenset(function for function, _ in self.functions),
            effects=effects,
        )
        self._module.continuations.update(s.func for s in tree.defs if isinstance(s, Decorator) and is_pipeline(s))
        self._constants = constants_of(tree, types)

    def derive_effect(self, function: FuncDef) -> Effect | None:
        """Derive a function's effect on its parameters from its current body, not from the remembered effects."""
        self._module.effects, known = None, self._module.effects
        effect = effect_in(self._module, function)
        self._module.effects = known
        return effect

    def findings_in(self, target: Target) -> list[Finding]:
        """Return the findings in a function with the functions nested in it, or at the top level outside of functions.

        Deliberate mistakes are left out, and what a more exact finding on the same line says.
        """
        bodies = bodies_of(self._module, target) if isinstance(target, FuncDef) else [self._top_level(target)]
        found: list[Finding] = []
        checks = ValueChecks(self._module.types, lambda message, node, code: found.append(Finding(node, code, message)))
        for body in bodies:
            check_values(body, self._module, checks, self._constants)
        todo = list(bodies)
        while todo:
            body = todo.pop()
            todo += body.children
            found += check_body(body, self._module)
        covers = self._module.deliberate.covers
        unique = {(f.order, f.code, f.message): f for f in found if not covers(f.node.line, f.code)}
        exact = {(f.node.line, f.code) for f in unique.values()}
        wanted = [f for f in unique.values() if (f.node.line, f.unless) not in exact]
        return sorted(wanted, key=lambda f: (f.order, f.code.code))

    def _top_level(self, tree: MypyFile) -> Body:
        """Return the body of a module's top level."""
        builder = GraphBuilder(tree, self._module)
        for function, info in self.functions:
            if info is None:
                closure = summarise(function, bodies_of(self._module, function)[0])
                if closure.uses or closure.assigns:
                    builder.closures[function] = closure
        for s in tree.defs:
            builder.statement(s)
        return builder.finish()


def checked_functions(tree: MypyFile) -> Iterator[tuple[FuncDef, TypeInfo | None]]:
    """Iterate over the functions and methods of a module that mypy checks separately, each with its class."""

    def search(suite: list[Statement], info: TypeInfo | None) -> Iterator[tuple[FuncDef, TypeInfo | None]]:
        for s in suite:
            match s:
                case FuncDef():
                    yield s, info
                case Decorator():
                    yield s.func, info
                case OverloadedFuncDef():
                    yield from search(list(s.items), info)
                    if s.impl is not None:
                        yield from search([s.impl], info)
                case ClassDef():
                    yield from search(s.defs.body, s.info)
                case _:
                    for inner in suites_of(s):
                        if not inner.is_unreachable:
                            yield from search(inner.body, info)

    yield from search(tree.defs, None)
