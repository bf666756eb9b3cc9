"""Lowers functions to bodies, finds the function that a call names, and the arguments that it takes by value."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, TypeGuard

from mypy.argmap import map_actuals_to_formals
from mypy.nodes import (
    ARG_STAR,
    ARG_STAR2,
    CallExpr,
    Decorator,
    Expression,
    FloatExpr,
    FuncDef,
    FuncItem,
    IntExpr,
    LambdaExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    OverloadedFuncDef,
    RefExpr,
    StrExpr,
    SuperExpr,
    SymbolNode,
    TupleExpr,
    TypeInfo,
    Var,
)
from mypy.semanal import is_trivial_body
from mypy.typeops import get_type_vars
from mypy.types import AnyType, CallableType, Instance, Type, TypeOfAny, TypeVarType, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.effects import derive_effect, summarise
from dagpu.mypy_plugin.analysis.graph import Body, Escape, Path, Slot
from dagpu.mypy_plugin.analysis.module_facts import Closure, Effect, ModuleFacts
from dagpu.mypy_plugin.messages import ANY_FORM
from dagpu.mypy_plugin.syntax import arguments_of
from dagpu.mypy_plugin.typing import op_types
from dagpu.mypy_plugin.typing.type_facts import MOVES, class_name, instance_of, member_of, method_name, signatures


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
    return _has_decorator(s, (names.PIPELINE_DECORATOR,))


def remembers(s: Decorator) -> bool:
    """Return True for a function that gives the same object each time: one under `cache` or `cached_property`."""
    return _has_decorator(s, names.REMEMBERS_RESULT)


def _has_decorator(s: Decorator, wanted: Container[str]) -> bool:
    named = (one.callee if isinstance(one, CallExpr) else one for one in s.original_decorators)
    return any(isinstance(one, RefExpr) and one.fullname in wanted for one in named)


# ---- the functions that calls name, and their effects


def function_of(node: SymbolNode | None) -> FuncDef | None:
    """Return the function that a name refers to, without its decorators; None for any other node."""
    if isinstance(node, Decorator):
        return node.func
    return node if isinstance(node, FuncDef) else None


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
        node = member_of(node, "__post_init__" if "dataclass" in node.metadata else "__init__")
    if isinstance(node, Decorator):
        return node.func if all(map(_passes_arguments, node.decorators)) else None
    return node if isinstance(node, FuncDef) else None


def _passes_arguments(decorator: Expression) -> bool:
    return isinstance(decorator, RefExpr) and decorator.fullname in names.MAKES_MANAGER


def method_of(b: GraphBuilder, t: Type | None, name: str) -> FuncDef | None:
    """Return the method of this name of a class of this module, for a value of this type; None for any other."""
    instance = instance_of(t)
    if instance is None or instance.type.module_name != b.module.name:
        return None
    node = member_of(instance.type, name)
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
    node = member_of(_class_of(b, e.expr), e.name)
    if isinstance(node, Decorator) and remembers(node):
        return (f".{e.name}",)
    found = property_effect(b, e)
    return found[1].gives.path if found is not None and found[1].gives is not None else None


def _class_of(b: GraphBuilder, e: Expression) -> TypeInfo | None:
    if isinstance(e, RefExpr) and isinstance(e.node, TypeInfo):
        return e.node
    instance = instance_of(b.types.get(e))
    return None if instance is None else instance.type


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


@dataclass(eq=False, repr=False, slots=True)
class Passed:
    """What a call does with one of its arguments."""

    value: Expression
    taken: bool = False
    """True for an argument that is taken by value."""
    accepts: int = ANY_FORM
    """What the parameter accepts; see `Move.accepts`."""
    runs: bool = False
    """True for an op that the callee runs."""
    repeats: bool = False
    """True for a function that the callee may call more than once."""
    borrowed: bool = False
    """True if the callee only reads it, but later: it is a generator, or it runs in a task."""
    held: Slot | None = None
    """The slot with the facts of its value, once that has been evaluated."""


@dataclass(eq=False, repr=False, slots=True)
class Callee:
    """The callee of a call."""

    name: str
    """Full name; empty if unknown."""
    receiver: Expression | None
    """The object whose method is called; None for a call that is not of a method."""
    named: Expression
    """The expression that names the function, or the method that a variable is bound to."""
    closure: Closure | None = None
    effect: Effect | None = None
    """The effect of a function whose body is known."""
    given: dict[str, Expression] = field(default_factory=dict)
    """The expressions that are passed for its parameters, by name."""
    made: str = ""
    """The parameter for the object that a call of a class makes."""
    inherited: str = ""
    """The parameter for the object of the calling method, in a call of `super()`."""
    bound: CallableType | None = None
    """What is left of the signature of a function that `partial` has bound arguments to."""
    partial: CallExpr | None = None
    """The call of `partial` that has bound the first arguments of the function."""
    is_ours: bool = field(init=False)
    """True for a function of dagpu."""
    leaves_unmoved: bool = field(init=False)
    """True for a function that has moved none of its arguments if it raises."""

    def __post_init__(self) -> None:
        self.is_ours = self.name.startswith("dagpu.")
        self.leaves_unmoved = self.is_ours or self.name.startswith("numpy.")


def callee_of(b: GraphBuilder, e: CallExpr) -> Callee:
    """Resolve the callee of a call."""
    callee = e.callee
    if isinstance(callee, MemberExpr):
        inner = callee.expr
        if isinstance(inner, RefExpr) and isinstance(inner.node, MypyFile):
            return Callee(_function_name(b, callee), None, callee)
        return Callee(method_name(b.types.get(inner), callee.name) or "", inner, callee)
    if isinstance(callee, NameExpr):
        node = callee.node
        root = node if isinstance(node, Var) else function_of(node)
        if root is not None and (closure := b.closures.get(root)) is not None:
            return Callee("", None, callee, closure)
        if isinstance(node, Var) and (bound := b.bound.get(node)) is not None:
            return Callee(method_name(b.types.get(bound.expr), bound.name) or "", bound.expr, bound)
        if isinstance(node, Var) and (made := b.partials.get(node)) is not None:
            return _partial(b, made)
        if isinstance(node, Var) and method_of(b, b.types.get(callee), "__call__") is not None:
            return Callee(_function_name(b, callee), callee, callee)
    if isinstance(callee, LambdaExpr):
        closure = b.lambdas[callee] = closure_of(b, callee)
        return Callee("", None, callee, closure)
    if isinstance(callee, CallExpr) and is_partial(callee):
        return _partial(b, callee)
    return Callee(_function_name(b, callee), None, callee)


def is_partial(e: Expression) -> TypeGuard[CallExpr]:
    """Return True for a call of `partial` with a function."""
    named = e.callee if isinstance(e, CallExpr) and e.args else None
    return isinstance(named, RefExpr) and named.fullname == names.PARTIAL


def _partial(b: GraphBuilder, made: CallExpr) -> Callee:
    """Resolve the call of a function that `partial` has bound arguments to: mypy keeps what its signature lacks."""
    name = _function_name(b, made.args[0])
    found = Callee("" if name.startswith("dagpu.") else name, None, made.args[0])
    t = get_proper_type(b.types.get(made))
    left = t.extra_attrs.attrs.get("__mypy_partial") if isinstance(t, Instance) and t.extra_attrs is not None else None
    bound = get_proper_type(left)
    found.bound = bound if isinstance(bound, CallableType) else None
    found.partial = made
    return found


def _function_name(b: GraphBuilder, e: Expression) -> str:
    """Return the full name of a function or class, or of the `__call__` of another object; empty if unknown."""
    if isinstance(e, RefExpr) and isinstance(e.node, FuncDef | OverloadedFuncDef | TypeInfo):
        return e.fullname
    t = get_proper_type(b.types.get(e))
    if isinstance(t, Instance):
        return method_name(t, "__call__") or ""
    return e.fullname if isinstance(e, RefExpr) and isinstance(e.node, Decorator) else ""


def describe_call(callee: Callee) -> str:
    """Name the cause of a move of the arguments, in the words of the run-time error."""
    if (how := names.TAKES_ALL.get(callee.name)) is not None:
        return how
    if callee.name in names.CONTAINERS:
        return "being put into a container"
    called = callee.name.rpartition(".")[2] or (callee.closure.node.name if callee.closure else "")
    return f"{called}()" if called and called != "<lambda>" else "a call"


def pass_arguments(b: GraphBuilder, e: CallExpr, callee: Callee) -> list[Passed]:
    """Return what a call does with each of its arguments. Record in `callee` its effect on attributes."""
    passed = [Passed(argument) for argument in e.args]
    if _pass_by_name(b, e, callee, passed):
        return passed
    function = function_called(b, e, callee)
    starred = ARG_STAR in e.arg_kinds or ARG_STAR2 in e.arg_kinds
    plain = not (starred or any(map(_may_hold_facts, repeat(b), e.args)))
    if plain and function not in b.module.own:
        return passed
    given = e.args if callee.receiver is None else [callee.receiver, *e.args]
    plain = plain and not any(b.kinds.may_own(b.types.get(one)) for one in given) and not _has_own_object(b, e)
    effect = None if function is None else effect_of(b, function)
    if function is None and callee.closure is not None:
        effect = derive_effect(b.module, callee.closure.body)  # of a lambda
    if function is not None and effect is not None and (not plain or callee.partial or effect.concerns_globals):
        _record_effect(e, callee, function, effect)
    if plain:
        return passed
    for signature in signatures(b.types.get(e.callee)) if callee.bound is None else [callee.bound]:
        _pass_to(b, e, passed, function, effect, signature)
    return passed


def _pass_to(
    b: GraphBuilder,
    e: CallExpr,
    passed: list[Passed],
    function: FuncDef | None,
    effect: Effect | None,
    signature: CallableType,
) -> None:
    """Pass the arguments to the parameters of a signature."""
    known = effect or _NO_EFFECT
    formals, result = _declared(function, signature)
    actuals = map_actuals_to_formals(
        e.arg_kinds,
        e.arg_names,
        signature.arg_kinds,
        signature.arg_names,
        lambda i: b.types.get(e.args[i]) or AnyType(TypeOfAny.special_form),
    )
    for name, formal, form, indices in zip(signature.arg_names, formals, signature.arg_kinds, actuals, strict=True):
        spared, moves = name in known.spares, name in known.moves
        for i in indices:
            one, starred = passed[i], e.arg_kinds[i].is_star()
            if effect is not None and form.is_star() and starred:
                one.taken |= name in effect.empties
                continue
            one.runs |= name in known.runs
            one.repeats |= name in known.repeats
            kind = b.kind(one.value)
            if starred and b.kinds.may_own(b.types.get(one.value)):
                kind |= MOVES  # the items are passed one by one
            if kind & MOVES:
                one.accepts = b.kinds.accepted(formal)
                one.borrowed |= spared and function is not None and _runs_later(function)
                one.taken |= moves or (not spared and b.kinds.takes(formal, kind, result))
                continue
            if (moves or (not spared and b.kinds.kind_of(formal) & MOVES)) and is_untyped(b, one.value):
                give_away(b, one.value)
            one.taken |= b.kinds.takes(formal, kind, result)


_NO_EFFECT: Final = Effect(frozenset(), frozenset())


def is_untyped(b: GraphBuilder, e: Expression) -> bool:
    """Return True for a parameter of this function whose type says nothing of moves."""
    if not isinstance(e, NameExpr) or e.node not in b.parameters:
        return False
    t = get_proper_type(b.types.get(e))
    return isinstance(t, AnyType | TypeVarType) or class_name(t) == "builtins.object"


def give_away(b: GraphBuilder, e: Expression) -> None:
    """Record that a parameter's value is passed on to what moves a handle."""
    if isinstance(e, NameExpr) and isinstance(e.node, Var):
        b.body.given_away.add(e.node)


def _pass_by_name(b: GraphBuilder, e: CallExpr, callee: Callee, passed: list[Passed]) -> bool:
    """Pass the arguments to a function that the rules know by its name. Return False, with nothing done, for another
    one."""
    name = callee.name
    if name in names.TAKES_ALL:
        taken = [True] * len(passed)
    elif name in names.CALLS_LATER or name in names.STARTS_TASK:
        taken = _taken_later(b, e, passed)
    elif name.startswith("numpy."):
        taken = [name.endswith(f".{names.TAKES_MEMORY}")] * len(passed)
    elif name in names.READS_ONLY:
        taken = [False] * len(passed)
    elif name in names.CALLS_FIRST:  # the third argument of `reduce` is the first result
        taken = [i != 1 if name in names.REDUCES else i == 0 for i in range(len(passed))]
    elif name in names.ORDERS:
        taken = [one == "key" for one in e.arg_names]
    else:
        return False
    for one, by_value in zip(passed, taken, strict=True):
        one.taken = by_value
        if by_value and callee.is_ours and is_untyped(b, one.value):
            give_away(b, one.value)
    t = b.types.get(e.callee)
    pipeline = None if t is None else op_types.parameters_of(t, names.PIPELINE)
    if pipeline is not None:
        formals = dict(zip(pipeline.arg_names, pipeline.arg_types, strict=True))
        given = {value: formals.get(name) for name, value in arguments_of(e, pipeline.arg_names).items()}
        for one in passed:
            if (formal := given.get(one.value)) is not None:
                one.accepts = b.kinds.accepted(formal)
    return True


def _has_own_object(b: GraphBuilder, e: CallExpr) -> bool:
    """Return True for a call whose object is no expression: of `super()`, or of a class of this module."""
    if isinstance(e.callee, SuperExpr):
        return True
    made = e.callee.node if isinstance(e.callee, RefExpr) else None
    return isinstance(made, TypeInfo) and made.module_name == b.module.name


def function_called(b: GraphBuilder, e: CallExpr, callee: Callee) -> FuncDef | None:
    """Return the function, the method, or the `__init__` of a class that a call runs, if it is one of this module."""
    if callee.receiver is e.callee:
        return method_of(b, b.types.get(e.callee), "__call__")
    return function_named(b, callee.named)


def _record_effect(e: CallExpr, callee: Callee, function: FuncDef, effect: Effect) -> None:
    """Record the effect of a function and what is passed for its parameters, unless a starred argument hides that."""
    parameters = [argument.variable.name for argument in function.arguments]
    given: dict[str, Expression] = {}
    if isinstance(e.callee, SuperExpr) and not function.is_static:
        callee.inherited = parameters.pop(0)
    elif isinstance(e.callee, RefExpr) and isinstance(e.callee.node, TypeInfo):
        callee.made = parameters.pop(0)
    elif (receiver := _receiver(callee)) is not None and not function.is_static and not _is_unbound(receiver, function):
        given[parameters.pop(0)] = receiver
    if function.name == "__post_init__":
        parameters.clear()  # those of the `__init__` are other ones
    if callee.partial is not None:
        bound = arguments_of(callee.partial, parameters, first=1)
        given |= {name: value for name, value in bound.items() if isinstance(value, NameExpr)}
        parameters = parameters[callee.partial.arg_names[1:].count(None) :]
    if not any(kind.is_star() for kind in e.arg_kinds):
        callee.effect, callee.given = effect, given | arguments_of(e, parameters)


def _receiver(callee: Callee) -> Expression | None:
    """Return the object whose method is called, also by way of `partial`."""
    bound = callee.named if callee.bound is not None else None
    if not isinstance(bound, MemberExpr) or (isinstance(bound.expr, RefExpr) and isinstance(bound.expr.node, MypyFile)):
        return callee.receiver
    return bound.expr


def _is_unbound(receiver: Expression, function: FuncDef) -> bool:
    """Return True for a method that is called through its class, with the object as an argument."""
    return isinstance(receiver, RefExpr) and isinstance(receiver.node, TypeInfo) and not function.is_class


def _runs_later(function: FuncDef) -> bool:
    return function.is_generator or function.is_coroutine or function.is_async_generator


def _may_hold_facts(b: GraphBuilder, e: Expression) -> bool:
    """Return True if evaluation by value may have another effect on this argument than a read."""
    if b.kind(e) or is_untyped(b, e):
        return True
    if isinstance(e, TupleExpr):
        return any(map(_may_hold_facts, repeat(b), e.items))
    return not isinstance(e, NameExpr | MemberExpr | IntExpr | StrExpr | FloatExpr | CallExpr)


def _declared(function: FuncDef | None, signature: CallableType) -> tuple[list[Type], Type]:
    """Return the types of the parameters and of the result, with the function's own type variables as declared.

    mypy has replaced them by the inferred types. After that, `value(x: T) -> DeviceOp[T]` and `log(x: T) -> None` look
    alike.
    """
    declared = None if function is None else get_proper_type(function.type)
    if not isinstance(declared, CallableType) or not declared.variables:
        return signature.arg_types, signature.ret_type
    bound = len(declared.arg_types) - len(signature.arg_types)
    if bound < 0:  # mypy has replaced a parameter specification by several parameters
        return signature.arg_types, signature.ret_type
    own = {variable.id for variable in declared.variables}
    return [
        formal if any(t.id in own for t in get_type_vars(formal)) else inferred
        for formal, inferred in zip(declared.arg_types[bound:], signature.arg_types, strict=True)
    ], declared.ret_type


def _taken_later(b: GraphBuilder, e: CallExpr, passed: list[Passed]) -> list[bool]:
    """Return what `start_soon(f, t)` and `partial(f, t)` take by value: an argument that `f` takes."""
    taken = [True] * len(passed)
    function = function_named(b, e.args[0]) if e.args else None
    effect = None if function is None else effect_of(b, function)
    if function is None or effect is None:
        return taken
    bound = isinstance(e.args[0], MemberExpr) and bool(function.info) and not function.is_static
    for i, argument in enumerate(function.arguments[bound:], start=1):
        if i < len(passed) and b.kind(e.args[i]) & MOVES:
            taken[i] = argument.variable.name in effect.takes
            passed[i].borrowed = not taken[i]
    return taken


# ---- functions that call another one with the items of an iterable: `map(f, ts)`


def iterables_emptied(b: GraphBuilder, e: CallExpr, callee: Callee) -> Iterator[Expression]:
    """Iterate over the iterables whose items the called function passes on to one that takes them by value."""
    function, iterables = _function_and_iterables(e, callee)
    if function is None:
        return
    b.how = describe_call(callee)
    for iterable, parameters in iterables:
        into_result = callee.name in names.REDUCES
        takes = any(_takes(b, function, one, into_result=into_result) for one in parameters)
        if takes and b.kinds.may_own(b.types.get(iterable)):
            yield iterable


def picks_item(b: GraphBuilder, e: CallExpr) -> bool:
    """Return True for a call of `reduce` whose result is one of the items: the function returns one of its two."""
    return len(e.args) == 2 and not any(_takes(b, e.args[0], one, into_result=True) for one in (0, 1))


def _function_and_iterables(
    e: CallExpr, callee: Callee
) -> tuple[Expression | None, list[tuple[Expression, tuple[int, ...]]]]:
    """Return the function that is called with items, and each iterable with the numbers of its parameters."""
    positional = [argument for argument, name in zip(e.args, e.arg_names, strict=True) if name is None]
    named = {name: argument for argument, name in zip(e.args, e.arg_names, strict=True) if name is not None}
    first = positional[0] if positional else None
    if callee.name in names.MAPS:
        return first, [(iterable, (i,)) for i, iterable in enumerate(positional[1:])]
    if callee.name in names.TESTS:
        return first, [(iterable, (0,)) for iterable in positional[1:]]
    if callee.name in names.REDUCES:  # without a first result, that is the first item
        return first, [(iterable, (1,) if len(positional) > 2 else (0, 1)) for iterable in positional[1:2]]
    if callee.name == names.SORTS_SELF and callee.receiver is not None:
        return named.get("key"), [(callee.receiver, (0,))]
    return named.get("key"), [(iterable, (0,)) for iterable in positional[-1:]]


def _takes(b: GraphBuilder, function: Expression, parameter: int, *, into_result: bool) -> bool:
    """Return True if a function takes a parameter by value: its body shows that, or else its type. `into_result`: to
    return it does not count."""
    for signature in signatures(b.types.get(function))[:1]:
        if parameter >= len(signature.arg_types) or not b.kinds.kind_of(signature.arg_types[parameter]) & MOVES:
            return False
        effect = _effect_of_value(b, function)
        name = signature.arg_names[parameter]
        return effect is None or not (name in effect.spares or (into_result and name in effect.passes_on))
    return False


def _effect_of_value(b: GraphBuilder, e: Expression) -> Effect | None:
    """Return the effect of a function that is passed on, if its body is known."""
    if isinstance(e, LambdaExpr):
        return derive_effect(b.module, b.lambdas[e].body) if e in b.lambdas else None
    if isinstance(e, NameExpr) and isinstance(e.node, Var) and (closure := b.closures.get(e.node)) is not None:
        return derive_effect(b.module, closure.body)
    function = function_named(b, e)
    return None if function is None else effect_of(b, function)
