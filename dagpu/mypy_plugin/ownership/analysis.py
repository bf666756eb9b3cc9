"""Entry point of the flow rules: the findings in one function, and at the top level of one module."""

from collections.abc import Iterator

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
from dagpu.mypy_plugin.ownership.control_flow import Body
from dagpu.mypy_plugin.ownership.effects import summarise
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower import (  # noqa: F401  # each registers itself
    lower_calls,
    lower_expressions,
    lower_statements,
    new_containers,
)
from dagpu.mypy_plugin.ownership.lower.lower_functions import bodies_of, effect_in, is_pipeline
from dagpu.mypy_plugin.ownership.module_facts import Effect, ModuleFacts, Types
from dagpu.mypy_plugin.ownership.reporting import Finding, check_body
from dagpu.mypy_plugin.syntax import suites_of

_IMPORTED = frozenset({"dagpu", names.INTEROP, names.ADOPT})


def adopted_variables(tree: MypyFile, types: Types) -> frozenset[Var]:
    """Return the variables that are the first argument of `adopt`, in a module that imports it or dagpu. `types` has
    every expression that mypy has checked."""
    if not any(symbol.fullname in _IMPORTED for symbol in tree.names.values()):
        return frozenset()
    calls = [e for e in types if isinstance(e, CallExpr) and isinstance(e.callee, RefExpr)]
    first = [e.args[0] for e in calls if isinstance(e.callee, RefExpr) and e.callee.fullname == names.ADOPT and e.args]
    return frozenset([e.node for e in first if isinstance(e, NameExpr) and isinstance(e.node, Var)])


class Analysis:
    """The analysis of one module, function by function."""

    def __init__(self, tree: MypyFile, types: Types, effects: dict[str, Effect] | None = None) -> None:
        self.functions = list(checked_functions(tree))
        """The module's functions and methods, each with its class."""
        self.module = ModuleFacts(
            tree.fullname,
            types,
            symbols=tree.names,
            expects_errors=not tree.names.keys().isdisjoint(("dagpu", *names.RUNTIME_ERRORS)),
            adopted=adopted_variables(tree, types),
            own=frozenset(function for function, _ in self.functions),
            effects=effects,
        )
        self.module.continuations.update(s.func for s in tree.defs if isinstance(s, Decorator) and is_pipeline(s))

    def check_function(self, function: FuncDef) -> list[Finding]:
        """Return the findings in a function and in the functions nested in it."""
        return self._check_bodies(bodies_of(self.module, function))

    def derive_effect(self, function: FuncDef) -> Effect | None:
        """Derive a function's effect on its parameters from its current body, not from the remembered effects."""
        self.module.effects, known = None, self.module.effects
        effect = effect_in(self.module, function)
        self.module.effects = known
        return effect

    def check_top_level(self, tree: MypyFile) -> list[Finding]:
        """Return the findings at the top level of a module, outside its functions."""
        builder = GraphBuilder(tree, self.module)
        for function, info in self.functions:
            if info is None:
                closure = summarise(function, bodies_of(self.module, function)[0])
                if closure.uses or closure.assigns:
                    builder.closures[function] = closure
        for statement in tree.defs:
            builder.statement(statement)
        return self._check_bodies([builder.finish()])

    def _check_bodies(self, bodies: list[Body]) -> list[Finding]:
        found: list[Finding] = []
        todo = list(bodies)
        while todo:
            body = todo.pop()
            todo += body.children
            found += check_body(body, self.module)
        unique = {(f.order, f.code, f.message): f for f in found}
        return sorted(unique.values(), key=lambda f: (f.order, f.code.code))


def checked_functions(tree: MypyFile) -> Iterator[tuple[FuncDef, TypeInfo | None]]:
    """Iterate over the functions and methods of a module that mypy checks separately, each with its class."""

    def search(statements: list[Statement], info: TypeInfo | None) -> Iterator[tuple[FuncDef, TypeInfo | None]]:
        for s in statements:
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
                    for suite in suites_of(s):
                        if not suite.is_unreachable:
                            yield from search(suite.body, info)

    yield from search(tree.defs, None)
