"""Lowers comprehensions and generator expressions in place, as loops."""

from mypy.nodes import (
    DictionaryComprehension,
    Expression,
    GeneratorExpr,
    ListComprehension,
    NameExpr,
    SetComprehension,
    Var,
)

from dagpu.mypy_plugin.ownership.control_flow import EVERYTHING, LOANS, BasicBlock, Build, Slot
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, expression
from dagpu.mypy_plugin.ownership.lower.calls.operator_calls import lower_condition, lower_iteration
from dagpu.mypy_plugin.ownership.lower.lower_expressions import build_alternative
from dagpu.mypy_plugin.ownership.lower.lower_names import ask_feed
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import assign, declare
from dagpu.mypy_plugin.ownership.lower.values.iteration import element_of
from dagpu.mypy_plugin.ownership.lower.values.origin_kinds import Known
from dagpu.mypy_plugin.ownership.lower.values.shared_places import remember, share_element


@expression(ListComprehension)
def _list_comprehension(b: GraphBuilder, e: ListComprehension, by_value: bool) -> Slot | None:
    return _comprehension(b, e.generator, [e.generator.left_expr])


@expression(SetComprehension)
def _set_comprehension(b: GraphBuilder, e: SetComprehension, by_value: bool) -> Slot | None:
    return _comprehension(b, e.generator, [e.generator.left_expr])


@expression(GeneratorExpr)
def _generator(b: GraphBuilder, e: GeneratorExpr, by_value: bool) -> Slot | None:
    """Lower a generator expression. It reads when it is asked, so until then it holds what it reads."""
    outer, read = b.read_by_generator, list[Slot]()
    b.read_by_generator = read
    held = _comprehension(b, e, [e.left_expr])
    b.read_by_generator = outer
    if not read or not b.kind(e) & LOANS:
        return held
    if outer is not None:
        outer += read
    into = b.temporary()
    b.emit(Build(e, into, tuple(read) if held is None else (held, *read), EVERYTHING))
    return into


@expression(DictionaryComprehension)
def _dict_comprehension(b: GraphBuilder, e: DictionaryComprehension, by_value: bool) -> Slot | None:
    return _comprehension(b, e, [part for part in (e.key, e.value) if part is not None])


def _comprehension(
    b: GraphBuilder, e: GeneratorExpr | DictionaryComprehension, results: list[Expression]
) -> Slot | None:
    into = b.temporary()
    b.emit(Build(e, into, (), EVERYTHING))
    heads: list[BasicBlock] = []
    ends: list[BasicBlock] = []
    for index, sequence, conditions in zip(e.indices, e.sequences, e.condlists, strict=True):
        found = lower_iteration(b, sequence)
        held = ask_feed(b, sequence) if found is False else found
        origin = element_of(b, sequence)
        before = remember(b, e, origin)
        b.split()
        head, end = b.current, b.block()
        heads.append(head)
        ends.append(end)
        b.jump(end)
        b.split()
        declare(b, index, element=True)
        if isinstance(origin, Known) and isinstance(index, NameExpr) and isinstance(index.node, Var):
            b.body.items[b.slot(index.node)] = origin.place
        assign(b, index, held, e)
        share_element(b, index, origin, before)
        for condition in conditions:
            lower_condition(b, condition)
            b.jump(head)
            b.split()
    holds = False
    for result in results:
        b.how = "being put into a container"
        holds = build_alternative(b, e, into, b.value(result), (into,)) or holds
    b.jump(heads[-1])
    for outer in range(len(ends) - 1, -1, -1):
        b.current = ends[outer]
        if outer:
            b.jump(heads[outer - 1])
    return into if holds else None
