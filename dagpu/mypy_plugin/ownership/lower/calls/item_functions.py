"""Functions that call another one with the items of an iterable: `map(f, ts)`, `sorted(ts, key=f)`, `reduce(f, ts)`."""

from collections.abc import Iterator

from mypy.nodes import CallExpr, Expression, LambdaExpr, NameExpr, Var

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.effects import derive_effect
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.callee import Callee, describe_call
from dagpu.mypy_plugin.ownership.lower.lower_functions import effect_of, function_named
from dagpu.mypy_plugin.ownership.module_facts import Effect
from dagpu.mypy_plugin.typing.type_facts import MOVES, signatures


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
