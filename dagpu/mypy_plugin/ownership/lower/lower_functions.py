"""Lowers functions to bodies, summarises nested functions as closures, and derives effects on parameters."""

from typing import Final

from mypy.nodes import (
    CallExpr,
    Decorator,
    Expression,
    FuncDef,
    FuncItem,
    LambdaExpr,
    MemberExpr,
    RefExpr,
    SuperExpr,
    SymbolNode,
    TypeInfo,
)
from mypy.semanal import is_trivial_body
from mypy.types import Instance, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.closure_facts import moved_at_end, summarise
from dagpu.mypy_plugin.ownership.control_flow import SPENDABLE, Body, Build, Escape, Move, Path, Read, Run, Slot, Store
from dagpu.mypy_plugin.ownership.fixpoint import derived_moves
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.module_facts import Closure, Effect, ModuleFacts
from dagpu.mypy_plugin.typing.type_facts import MOVES

_STAYS: Final = ("being returned", "being entered")
"""The words of moves of an attribute that an object keeps: a method that returns one may be called again."""


def lower_function(b: GraphBuilder, node: FuncItem) -> Body:
    """Lower a function in `b`, a builder made for it, and return the body."""
    for argument in node.arguments:
        b.parameters.add(argument.variable)
        b.declare(argument.variable)
    if isinstance(node, LambdaExpr):
        b.how = "being returned"
        result = node.expr()
        held = b.value(result)
        if held is not None:
            b.emit(Escape(result, held, "returned from"))
    else:
        b.suite(node.body)
    return b.finish()


def closure_of(b: GraphBuilder, node: FuncItem) -> Closure:
    """Lower a nested function and return its summary. Its default values are evaluated here."""
    defaults: list[Slot] = []
    for argument in node.arguments:
        if argument.initializer is not None:
            b.how = "being made a default"
            if (held := b.value(argument.initializer)) is not None:
                defaults.append(held)
    b.module.in_work.add(node)
    checked = node.expanded[0] if isinstance(node, FuncDef) and node.expanded else node
    inner = b.nested(checked)
    body = lower_function(inner, checked)
    b.body.children.append(body)
    b.body.assigned_inside |= inner.foreign | body.assigned_inside
    b.module.in_work.discard(node)
    closure = summarise(node, body)
    closure.defaults, closure.home = tuple(defaults), b.body
    return closure


def bodies_of(module: ModuleFacts, function: FuncDef) -> list[Body]:
    """Return the bodies of a function: one, or one for each value of a type variable that is restricted to values.

    mypy checks one copy of the function for each of these values, and only the copies have types.
    """
    bodies = module.bodies.get(function)
    if bodies is None:
        module.in_work.add(function)
        copies = {id(copy): copy for copy in function.expanded or [function]}
        bodies = [lower_function(GraphBuilder(copy, module), copy) for copy in copies.values()]
        module.bodies[function] = bodies
        module.in_work.discard(function)
    return bodies


def is_pipeline(s: Decorator) -> bool:
    """Return True for a function decorated with `@pipeline`. Its arguments become part of the op that it returns."""
    for decorator in s.original_decorators:
        named = decorator.callee if isinstance(decorator, CallExpr) else decorator
        if isinstance(named, RefExpr) and named.fullname == names.PIPELINE_DECORATOR:
            return True
    return False


# ---- effects of a function on its parameters


def function_named(b: GraphBuilder, e: Expression) -> FuncDef | None:
    """Return the function that an expression names, or the `__init__` of a class; None for a decorated function."""
    node: SymbolNode | None = e.node if isinstance(e, RefExpr) else None
    if node is None and isinstance(e, MemberExpr | SuperExpr):
        bases = e.info.mro[1:] if isinstance(e, SuperExpr) and e.info else []
        info = _class_of(b, e.expr) if isinstance(e, MemberExpr) else None
        for base in info.mro if info is not None else bases:
            if (symbol := base.names.get(e.name)) is not None:
                node = symbol.node
                break
    if isinstance(node, TypeInfo):
        symbol = node.get("__init__")
        node = None if symbol is None else symbol.node
    if isinstance(node, Decorator):
        return None if node.decorators else node.func
    return node if isinstance(node, FuncDef) else None


def _class_of(b: GraphBuilder, e: Expression) -> TypeInfo | None:
    if isinstance(e, RefExpr) and isinstance(e.node, TypeInfo):
        return e.node
    t = get_proper_type(b.types.get(e))
    return t.type if isinstance(t, Instance) else None


def effect_of(b: GraphBuilder, function: FuncDef) -> Effect | None:
    """Return the effect of a function of this module, derived from its body; None where only its type is known.

    A function that only reads or lends a tensor leaves it with the caller, as at run time. The body of a function in
    another module is not used, because a module that comes from mypy's cache has no bodies.
    """
    if (closure := b.closures.get(function)) is not None:
        return _effect(b.module, closure.body)
    return effect_in(b.module, function)


def effect_in(module: ModuleFacts, function: FuncDef) -> Effect | None:
    """Return the effect of a top-level function or method; None where only its type is known."""
    if function in module.in_work:  # recursion: the other instructions of the body determine its effect
        return Effect(frozenset(), frozenset(argument.variable.name for argument in function.arguments), frozenset())
    if function not in module.own or function.is_overload or is_trivial_body(function.body):
        return None
    if module.effects is not None:
        return module.effects.get(function.fullname)
    return _effect(module, bodies_of(module, function)[0])


def _effect(module: ModuleFacts, body: Body) -> Effect:
    node = body.node
    assert isinstance(node, FuncItem)
    named = {body.slots[argument.variable]: argument.variable.name for argument in node.arguments}
    takes = {
        argument.variable.name
        for argument in node.arguments
        if argument.kind.is_star() or not module.kinds.kind_of(argument.variable.type) & MOVES
    }
    moves = list(derived_moves(body))
    takes.update(named[m.place.slot] for m in moves if not m.place.path and m.place.slot in named)
    runs: set[str] = set()
    made_of: dict[Slot, set[str]] = {slot: {name} for slot, name in named.items()}
    for block in body.blocks:
        for i in block.instructions:
            match i:
                case Move():
                    moves.append(i)
                    if not i.place.path and i.place.slot in named:
                        takes.add(named[i.place.slot])
                case Read() if i.into is not None:
                    made_of[i.into] = made_of.get(i.place.slot, set())
                case Build() if i.into is not None and i.keeps & SPENDABLE:
                    made_of[i.into] = set().union(*(made_of.get(part, ()) for part in i.parts))
                case Store() if not i.place.path and i.part is not None:
                    made_of[i.place.slot] = made_of.get(i.part, set())
                case Run():
                    runs |= made_of.get(i.part, set())
                case _:
                    pass
    empties = {named[m.place.slot] for m in moves if m.place.path and m.place.slot in named}
    parts = _moved_parts(body, named) if empties else ()
    return Effect(frozenset(takes), frozenset(named.values()) - takes, frozenset(runs), frozenset(empties), parts)


def _moved_parts(body: Body, named: dict[Slot, str]) -> tuple[tuple[str, Path, str], ...]:
    """Return the attributes of parameters that have moved where a body ends, and not only to another name."""
    parts = {
        (root.name, path, how)
        for (root, path), how, binds in moved_at_end(body)
        if path and body.slots.get(root) in named and not binds and not how.startswith(_STAYS)
        if all(step[0] == "." for step in path)
    }
    return tuple(sorted(parts))
