"""Lowers functions to bodies, summarises nested functions as closures, and finds the functions that calls name."""

from mypy.nodes import (
    CallExpr,
    Decorator,
    Expression,
    FuncDef,
    FuncItem,
    LambdaExpr,
    MemberExpr,
    OverloadedFuncDef,
    RefExpr,
    SuperExpr,
    SymbolNode,
    TypeInfo,
)
from mypy.semanal import is_trivial_body
from mypy.types import Instance, TupleType, Type, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import Body, Escape, Path, Slot
from dagpu.mypy_plugin.ownership.effects import derive_effect, summarise
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.module_facts import Closure, Effect, ModuleFacts


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
        bodies = _lower_copies(module, function)
        assumed = module.recursive.get(function)
        if assumed is not None and (effect := derive_effect(module, bodies[0])) != assumed:
            module.recursive[function] = effect
            bodies = _lower_copies(module, function)
        module.bodies[function] = bodies
        module.in_work.discard(function)
    return bodies


def _lower_copies(module: ModuleFacts, function: FuncDef) -> list[Body]:
    copies = {id(copy): copy for copy in function.expanded or [function]}
    return [lower_function(GraphBuilder(copy, module), copy) for copy in copies.values()]


def is_pipeline(s: Decorator) -> bool:
    """Return True for a function decorated with `@pipeline`. Its arguments become part of the op that it returns."""
    for decorator in s.original_decorators:
        named = decorator.callee if isinstance(decorator, CallExpr) else decorator
        if isinstance(named, RefExpr) and named.fullname == names.PIPELINE_DECORATOR:
            return True
    return False


# ---- the functions that calls name, and their effects


def function_named(b: GraphBuilder, e: Expression) -> FuncDef | None:
    """Return the function that an expression names, or the method by which a class makes an object; None for a
    decorated function.
    """
    node: SymbolNode | None = e.node if isinstance(e, RefExpr) else None
    if node is None and isinstance(e, MemberExpr | SuperExpr):
        bases = e.info.mro[1:] if isinstance(e, SuperExpr) and e.info else []
        info = _class_of(b, e.expr) if isinstance(e, MemberExpr) else None
        for base in info.mro if info is not None else bases:
            if (symbol := base.names.get(e.name)) is not None:
                node = symbol.node
                break
    if isinstance(node, TypeInfo):
        symbol = node.get("__post_init__" if "dataclass" in node.metadata else "__init__")
        node = None if symbol is None else symbol.node
    if isinstance(node, Decorator):
        return node.func if all(map(_passes_arguments, node.decorators)) else None
    return node if isinstance(node, FuncDef) else None


def _passes_arguments(decorator: Expression) -> bool:
    return isinstance(decorator, RefExpr) and decorator.fullname in names.MAKES_MANAGER


def method_of(b: GraphBuilder, t: Type | None, name: str) -> FuncDef | None:
    """Return the method of this name of a class of this module, for a value of this type; None for any other."""
    proper = get_proper_type(t)
    if isinstance(proper, TupleType):  # a named tuple
        proper = proper.partial_fallback
    if not isinstance(proper, Instance) or proper.type.module_name != b.module.name:
        return None
    symbol = proper.type.get(name)
    node = None if symbol is None else symbol.node
    if isinstance(node, OverloadedFuncDef):
        node = node.items[0]  # the getter of a property with a setter
    if isinstance(node, Decorator):
        node = None if node.decorators or remembers(node) else node.func
    return node if isinstance(node, FuncDef) and node in b.module.own else None


def method_effect(b: GraphBuilder, t: Type | None, name: str) -> tuple[str, Effect] | None:
    """Return the name of the parameter of a method that is the object itself, and the effect of the method."""
    method = method_of(b, t, name)
    effect = None if method is None or not method.arguments else effect_in(b.module, method)
    if method is None or effect is None:
        return None
    return method.arguments[0].variable.name, effect


def property_effect(b: GraphBuilder, e: MemberExpr) -> tuple[str, Effect] | None:
    """Return the effect of the property that an attribute is, as `method_effect` does; None for another attribute."""
    t = b.types.get(e.expr)
    method = method_of(b, t, e.name)
    return method_effect(b, t, e.name) if method is not None and method.is_property else None


def property_place(b: GraphBuilder, e: MemberExpr) -> Path | None:
    """Return the path from an object to what a property of it returns: an attribute, or the value that it remembers.

    Return None for any other attribute.
    """
    info = _class_of(b, e.expr)
    symbol = None if info is None else info.get(e.name)
    if symbol is not None and isinstance(symbol.node, Decorator) and remembers(symbol.node):
        return (f".{e.name}",)
    found = property_effect(b, e)
    return found[1].gives.path if found is not None and found[1].gives is not None else None


def remembers(decorated: Decorator) -> bool:
    """Return True for a function that gives the same object each time: one under `cache` or `cached_property`."""
    for decorator in decorated.original_decorators:
        named = decorator.callee if isinstance(decorator, CallExpr) else decorator
        if isinstance(named, RefExpr) and named.fullname in names.REMEMBERS_RESULT:
            return True
    return False


def _class_of(b: GraphBuilder, e: Expression) -> TypeInfo | None:
    if isinstance(e, RefExpr) and isinstance(e.node, TypeInfo):
        return e.node
    t = get_proper_type(b.types.get(e))
    if isinstance(t, TupleType):  # a named tuple
        t = t.partial_fallback
    return t.type if isinstance(t, Instance) else None


def effect_of(b: GraphBuilder, function: FuncDef) -> Effect | None:
    """Return the effect of a function of this module, derived from its body; None where only its type is known.

    A function that only reads or lends a tensor leaves it with the caller, as at run time. The body of a function in
    another module is not used, because a module that comes from mypy's cache has no bodies.
    """
    if (closure := b.closures.get(function)) is not None:
        return derive_effect(b.module, closure.body)
    return effect_in(b.module, function)


def effect_in(module: ModuleFacts, function: FuncDef) -> Effect | None:
    """Return the effect of a top-level function or method; None where only its type is known."""
    if function in module.in_work:  # recursion: at first, the other instructions of the body determine its effect
        assumed = Effect(frozenset(), frozenset(argument.variable.name for argument in function.arguments))
        return module.recursive.setdefault(function, assumed)
    if function not in module.own or is_trivial_body(function.body):
        return None
    if function.is_overload and not function.is_property:
        return None
    if module.effects is not None:
        return module.effects.get(function.fullname)
    return derive_effect(module, bodies_of(module, function)[0])
