"""Lowers expressions other than calls: names, attributes and items, displays, operators, lambdas, comprehensions."""

from typing import Final

from mypy.nodes import (
    AssignmentExpr,
    ComparisonExpr,
    ConditionalExpr,
    DictExpr,
    DictionaryComprehension,
    Expression,
    GeneratorExpr,
    IndexExpr,
    IntExpr,
    LambdaExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    OpExpr,
    RevealExpr,
    SetComprehension,
    SetExpr,
    SliceExpr,
    TupleExpr,
    UnaryExpr,
    Var,
    YieldExpr,
    YieldFromExpr,
)
from mypy.operators import unary_op_methods

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.assignments import assign, declare
from dagpu.mypy_plugin.analysis.builder import GraphBuilder, expression
from dagpu.mypy_plugin.analysis.callees import closure_of, function_of, property_effect
from dagpu.mypy_plugin.analysis.containers import element_of, places_in
from dagpu.mypy_plugin.analysis.effects import use_closure
from dagpu.mypy_plugin.analysis.graph import (
    EVERYTHING,
    FEED,
    LOANS,
    AskFeed,
    BasicBlock,
    Build,
    Escape,
    Move,
    Place,
    Read,
    Slot,
    Yield,
)
from dagpu.mypy_plugin.analysis.handle_operators import lower_arithmetic, lower_part
from dagpu.mypy_plugin.analysis.module_facts import Closure, Effect
from dagpu.mypy_plugin.analysis.operands import (
    Arguments,
    Operands,
    lower_binary,
    lower_condition,
    lower_iteration,
    lower_operator,
    lower_truth,
)
from dagpu.mypy_plugin.analysis.origins import Known, origin_of, remember, share, share_element
from dagpu.mypy_plugin.analysis.places import BINDS, place_of
from dagpu.mypy_plugin.typing.type_facts import HANDLE, MOVES, OP, method_name

# ---- names, attributes and items


def move_or_read(b: GraphBuilder, e: Expression, place: Place, kind: int, by_value: bool) -> Slot | None:
    """Move the handle out of a place, or read it, and return the slot with its facts."""
    if by_value and kind & MOVES:
        into = b.temporary()
        b.emit(Move(e, place, into, b.how, binds=b.how.startswith(BINDS)))
        return into
    keeps = kind & EVERYTHING
    looked = b.temporary() if keeps else None
    b.emit(Read(e, place, looked, keeps))
    if looked is not None and b.read_by_generator is not None:
        b.read_by_generator.append(looked)
    return looked


@expression(NameExpr)
def _name(b: GraphBuilder, e: NameExpr, by_value: bool) -> Slot | None:
    root = e.node
    if isinstance(root, Var):
        if (closure := b.closures.get(root)) is not None:
            return _closure(b, closure, e, by_value)
        kind = b.kind(e)
        if kind or root in b.module.adopted:
            return move_or_read(b, e, Place(b.slot(root)), kind, by_value)
        b.body.unfollowed.add(root)
        return None
    function = function_of(root)
    if function is not None and (closure := b.closures.get(function)) is not None:
        return _closure(b, closure, e, by_value)
    return None


def _closure(b: GraphBuilder, closure: Closure, e: NameExpr, by_value: bool) -> Slot | None:
    """Lower the name of a closure: it is passed on, or to something of a type that says nothing about it."""
    if by_value:
        return use_closure(b, closure, e, later=True)
    b.body.opaque.update(root for root, _ in closure.uses)
    return None


@expression(MemberExpr)
def _member(b: GraphBuilder, e: MemberExpr, by_value: bool) -> Slot | None:
    kind = b.kind(e)
    if b.kind(e.expr) == FEED and method_name(b.types.get(e.expr), e.name) in names.OUTLASTS_FEED:
        if place_of(b, e.expr) is None:
            b.read(e.expr)
        return None
    if (found := property_effect(b, e)) is not None:
        return _property(b, e, *found, by_value)
    if kind:
        place = place_of(b, e)
        if place is not None:
            return move_or_read(b, e, place, kind, by_value)
        if b.kind(e.expr) & HANDLE and (how := names.MOVES_SELF.get(method_name(b.types.get(e.expr), e.name) or "")):
            b.how = how  # `f = t.share` counts as a move at the binding, because the call comes later
            moved, into = b.value(e.expr), b.temporary()
            b.emit(Build(e, into, () if moved is None else (moved,), EVERYTHING, owner=True, function=True))
            return into
    return build_part(b, e, b.read(e.expr), kind)


def _property(b: GraphBuilder, e: MemberExpr, itself: str, effect: Effect, by_value: bool) -> Slot | None:
    """Lower a property, whose function has an effect on the object: it uses, moves, lends or returns attributes."""
    kind, held, place = b.kind(e), b.read(e.expr), place_of(b, e.expr)
    parts = [] if held is None else [held]
    if place is not None:
        whole = Arguments(b, e, effect, {}, {itself: place})
        whole.use_parts()
        parts += whole.move_parts()
        given = None if effect.gives is None else whole.place(effect.gives)
        if given is not None and kind:
            return move_or_read(b, e, given, kind, by_value)
    return b.build(e, parts, kind & EVERYTHING)


@expression(IndexExpr)
def _index(b: GraphBuilder, e: IndexExpr, by_value: bool) -> Slot | None:
    if e.analyzed is not None:
        return None  # a type application: `trio.open_memory_channel[int]`
    found = lower_operator(b, e, e.base, "__getitem__", [e.index])
    if found is False:
        found = lower_part(b, e)
    if found is not False:
        return found
    kind = b.kind(e)
    if kind:
        place = place_of(b, e)
        if place is not None:
            return move_or_read(b, e, place, kind, by_value)
    base = b.read(e.base)
    b.read(e.index)
    b.may_raise()
    return build_part(b, e, base, kind)


def build_part(b: GraphBuilder, e: Expression, base: Slot | None, kind: int) -> Slot | None:
    """Build a part of a value. It holds the facts of the value that the part's type can hold."""
    return None if base is None else b.build(e, (base,), kind & EVERYTHING)


def ask_feed(b: GraphBuilder, e: Expression) -> Slot | None:
    """Read an expression, and ask it for values if it is a feed. Return the slot with the facts of its values."""
    held = b.read(e)
    if b.kind(e) != FEED:
        return held
    if held is not None:
        b.emit(AskFeed(e, Place(held)))
    return None


# ---- displays, operators, lambdas


@expression(TupleExpr, ListExpr, SetExpr, DictExpr)
def _display(b: GraphBuilder, e: TupleExpr | ListExpr | SetExpr | DictExpr, by_value: bool) -> Slot | None:
    how, operands, parts = b.how, Operands(b), list[Slot | None]()
    items = [part for pair in e.items for part in pair if part is not None] if isinstance(e, DictExpr) else e.items
    for item in items:
        b.how = how
        parts.append(operands.evaluate(item, by_value))
    operands.emit_moves()
    return None if parts.count(None) == len(parts) else b.build(e, parts, owner=operands.owns)


@expression(UnaryExpr)
def _unary(b: GraphBuilder, e: UnaryExpr, by_value: bool) -> Slot | None:
    if e.op == "not":
        lower_condition(b, e.expr)
        return None
    found = lower_operator(b, e, e.expr, unary_op_methods.get(e.op, ""))
    if found is False and (found := lower_arithmetic(b, e, [e.expr])) is False:
        b.read(e.expr)
    return found or None


_COMPARES: Final = ("<", "<=", ">", ">=", "==", "!=")


@expression(ComparisonExpr)
def _comparison(b: GraphBuilder, e: ComparisonExpr, by_value: bool) -> Slot | None:
    if len(e.operators) == 1 or all(isinstance(one, NameExpr | MemberExpr | IntExpr) for one in e.operands):
        pairs = zip(e.operands, e.operators, e.operands[1:], strict=False)
        found = [one for pair in pairs if (one := lower_binary(b, e, *pair)) is not False]
        if found:
            return b.build(e, found, b.kind(e) & EVERYTHING)
    if len(e.operators) == 1 and e.operators[0] in _COMPARES and b.kind(e) & OP:
        return lower_arithmetic(b, e, e.operands) or None
    by_identity = all(operator in ("is", "is not") for operator in e.operators)
    for operand in e.operands:
        if not (by_identity and isinstance(operand, NameExpr) and b.kind(operand) & HANDLE):  # it asks the variable
            b.read(operand)
    return None


@expression(SliceExpr)
def _slice(b: GraphBuilder, e: SliceExpr, by_value: bool) -> Slot | None:
    for part in (e.begin_index, e.end_index, e.stride):
        if part is not None:
            b.read(part)
    return None


@expression(RevealExpr)
def _reveal(b: GraphBuilder, e: RevealExpr, by_value: bool) -> Slot | None:
    return None if e.expr is None else b.evaluate(e.expr, by_value)


@expression(AssignmentExpr)
def _walrus(b: GraphBuilder, e: AssignmentExpr, by_value: bool) -> Slot | None:
    how, b.how = b.how, f'being assigned to "{e.target.name}"'
    held = b.value(e.value)
    origin = origin_of(b, e.value, moves=True)
    assign(b, e.target, held, e, e.value)
    share(b, e.target, origin, e)
    b.how = how
    return None if e is b.discarded else b.evaluate(e.target, by_value)


@expression(YieldExpr)
def _yield(b: GraphBuilder, e: YieldExpr, by_value: bool) -> Slot | None:
    if e.expr is not None:
        b.how = "being yielded"
        variable = e.expr.node if isinstance(e.expr, NameExpr) else None
        place = b.iterated.get(variable) if isinstance(variable, Var) else None
        if isinstance(e.expr, MemberExpr | IndexExpr):
            place = place_of(b, e.expr)
        if place is not None:
            b.body.yielded.add(place)
        held = b.value(e.expr)
        if held is not None and not getattr(b.body.node, "is_decorated", False):  # @asynccontextmanager, a fixture
            b.emit(Escape(e.expr, held, "yielded from", feeds_only=True))
    b.emit(Yield(e))
    b.may_raise()
    return None


@expression(YieldFromExpr)
def _yield_from(b: GraphBuilder, e: YieldFromExpr, by_value: bool) -> Slot | None:
    b.how = "being yielded"
    b.body.yielded |= places_in(element_of(b, e.expr))
    b.value(e.expr)
    b.emit(Yield(e))
    b.may_raise()
    return None


@expression(LambdaExpr)
def _lambda(b: GraphBuilder, e: LambdaExpr, by_value: bool) -> Slot | None:
    closure = b.lambdas[e] = closure_of(b, e)
    return use_closure(b, closure, e, later=True)


# ---- expressions that branch


def build_alternative(
    b: GraphBuilder, e: Expression, into: Slot, held: Slot | None, others: tuple[Slot, ...] = ()
) -> bool:
    """Build one of the possible values of `into`. Return True if it holds any facts."""
    if held is not None:
        b.emit(Build(e, into, (held, *others), EVERYTHING))
    return held is not None


@expression(OpExpr)
def _operator(b: GraphBuilder, e: OpExpr, by_value: bool) -> Slot | None:
    if e.op not in ("and", "or"):
        found = lower_binary(b, e, e.left, e.op, e.right)
        if found is False and b.kind(e) & OP:
            found = lower_arithmetic(b, e, [e.left, e.right])
        if found is not False:
            return found
        how = b.how
        by_value = by_value and b.kinds.may_own(b.types.get(e))  # the sum of two lists holds the items of both
        left = b.evaluate(e.left, by_value)
        b.how = how
        right = b.evaluate(e.right, by_value)
        return None if left is None and right is None else b.build(e, (left, right), b.kind(e) & LOANS)
    how, into = b.how, b.temporary()
    if b.kind(e.left) & (HANDLE | OP) or isinstance(e.left, NameExpr | MemberExpr):
        lower_truth(b, e.left)
    left = b.evaluate(e.left, by_value and b.kind(e) & MOVES != 0)
    holds = build_alternative(b, e, into, left)
    right_side, end = b.block(), b.block()
    b.jump(right_side)
    b.jump(end)
    b.current, b.how = right_side, how
    if not e.right_unreachable:
        right = b.evaluate(e.right, by_value)
        holds = build_alternative(b, e, into, right) or holds
        b.jump(end)
    b.current = end
    return into if holds else None


@expression(ConditionalExpr)
def _conditional(b: GraphBuilder, e: ConditionalExpr, by_value: bool) -> Slot | None:
    how, into, holds = b.how, b.temporary(), False
    lower_condition(b, e.cond)
    yes, no, end = b.block(), b.block(), b.block()
    b.jump(yes)
    b.jump(no)
    for branch, value in ((yes, e.if_expr), (no, e.else_expr)):
        b.current, b.how = branch, how
        if value not in b.types and e in b.types:
            continue  # mypy did not check it: the condition never selects it
        holds = build_alternative(b, e, into, b.evaluate(value, by_value)) or holds
        b.jump(end)
    b.current = end
    return into if holds else None


# ---- comprehensions, which are loops


@expression(ListComprehension, SetComprehension)
def _list_or_set(b: GraphBuilder, e: ListComprehension | SetComprehension, by_value: bool) -> Slot | None:
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
    return b.build(e, (held, *read))


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
    for index, sequence, conditions, is_async in zip(e.indices, e.sequences, e.condlists, e.is_async, strict=True):
        found = lower_iteration(b, sequence, is_async=is_async)
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
