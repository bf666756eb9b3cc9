"""Lowers statements: definitions, branches, loops, `try`, `with`, `match`, and those that leave a block."""

from mypy.nodes import (
    AssertStmt,
    Block,
    BreakStmt,
    CallExpr,
    ClassDef,
    ContinueStmt,
    Decorator,
    Expression,
    ExpressionStmt,
    ForStmt,
    FuncDef,
    GlobalDecl,
    IfStmt,
    IndexExpr,
    MatchStmt,
    MemberExpr,
    MypyFile,
    NameExpr,
    NonlocalDecl,
    OpExpr,
    OverloadedFuncDef,
    RaiseStmt,
    ReturnStmt,
    TryStmt,
    TypeInfo,
    UnaryExpr,
    Var,
    WhileStmt,
    WithStmt,
)
from mypy.patterns import AsPattern, ClassPattern, OrPattern, Pattern, SingletonPattern, ValuePattern
from mypy.typeops import try_expanding_sum_type_to_union
from mypy.types import CallableType, Instance, LiteralType, NoneType, ProperType, UnionType, get_proper_type

from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.analysis import module_facts
from dagpu.mypy_plugin.analysis.assignments import assign, declare, drops_op
from dagpu.mypy_plugin.analysis.builder import GraphBuilder, statement
from dagpu.mypy_plugin.analysis.callees import callee_of, closure_of, is_pipeline, method_effect
from dagpu.mypy_plugin.analysis.containers import element_of, places_in
from dagpu.mypy_plugin.analysis.expressions import ask_feed
from dagpu.mypy_plugin.analysis.graph import (
    FEED,
    AskFeed,
    BasicBlock,
    BlockLoan,
    EndLoan,
    Escape,
    Evaluate,
    Finally,
    LoanBlock,
    Loop,
    Meet,
    Move,
    OpenFeed,
    Place,
    Read,
    Slot,
    Test,
)
from dagpu.mypy_plugin.analysis.operands import Arguments, lower_condition, lower_iteration, lower_operator
from dagpu.mypy_plugin.analysis.origins import Known, origin_of, remember, share, share_captures, share_element
from dagpu.mypy_plugin.analysis.places import place_of
from dagpu.mypy_plugin.syntax import captures, is_always_false, is_always_true
from dagpu.mypy_plugin.typing.type_facts import CONTAINS_OPS, FLOW, MOVES, OP, class_name, literal_of


@statement(ExpressionStmt)
def _expression(b: GraphBuilder, s: ExpressionStmt) -> None:
    if drops_op(b, s.expr):
        is_op = bool(b.kind(s.expr) & (OP | CONTAINS_OPS))
        b.refuse(s.expr, messages.UNUSED_OP, messages.unused(is_op))
    b.discarded = s.expr
    b.read(s.expr)


@statement(ReturnStmt)
def _return(b: GraphBuilder, s: ReturnStmt) -> None:
    if s.expr is not None:
        b.how = "being returned"
        _record_result(b, s.expr)
        held = b.value(s.expr)
        if held is not None:
            b.emit(Escape(s.expr, held, "returned from"))
    b.leave(None)


def _record_result(b: GraphBuilder, e: Expression) -> None:
    """Record the place of the result, and of the items that it goes over if it is an iterator."""
    if isinstance(e, NameExpr | MemberExpr | IndexExpr):
        if not is_always_false(e):  # None
            b.body.returned.add(place_of(b, e))
        return
    b.body.returned.add(None)
    if isinstance(e, CallExpr) and isinstance(e.callee, NameExpr) and e.callee.fullname == "builtins.iter":
        b.body.yielded |= places_in(element_of(b, e))


@statement(RaiseStmt)
def _raise(b: GraphBuilder, s: RaiseStmt) -> None:
    for e in (s.expr, s.from_expr):
        if e is not None:
            b.read(e)
    b.throw()


@statement(AssertStmt)
def _assert(b: GraphBuilder, s: AssertStmt) -> None:
    lower_condition(b, s.expr)
    b.may_raise()
    if is_always_false(s.expr):
        if s.msg is not None and s.msg in b.types:
            b.read(s.msg)
        b.throw()
    elif s.msg is not None and s.msg in b.types:
        here = b.current
        b.split()
        b.read(s.msg)
        b.throw()
        b.current = b.block()
        here.next.append(b.current)


@statement(GlobalDecl, NonlocalDecl)
def _foreign(b: GraphBuilder, s: GlobalDecl | NonlocalDecl) -> None:
    b.foreign.update(s.names)


@statement(Block)
def _block(b: GraphBuilder, s: Block) -> None:
    b.suite(s)


# ---- definitions


@statement(FuncDef)
def _function(b: GraphBuilder, s: FuncDef) -> None:
    if not isinstance(b.body.node, MypyFile):
        b.closures[s] = closure_of(b, s)


@statement(Decorator)
def _decorated(b: GraphBuilder, s: Decorator) -> None:
    for decorator in s.decorators:
        b.read(decorator)
    if is_pipeline(s):
        b.module.continuations.add(s.func)
    _function(b, s.func)
    if s.decorators and (closure := b.closures.get(s.func)) is not None:
        b.body.opaque.update(root for root, _ in closure.uses)


@statement(OverloadedFuncDef)
def _overloaded(b: GraphBuilder, s: OverloadedFuncDef) -> None:
    if s.impl is not None:
        b.statement(s.impl)


@statement(ClassDef)
def _class(b: GraphBuilder, s: ClassDef) -> None:
    """Lower a class body in place. Its methods are separate bodies without captures: their closures are dropped."""
    closures = dict(b.closures)
    for symbol in s.info.names.values():
        if isinstance(symbol.node, Var):
            b.declare(symbol.node)
    b.suite(s.defs)
    for root in b.closures.keys() - closures.keys():
        b.body.opaque.update(used for used, _ in b.closures[root].uses)
    b.closures = closures


# ---- branches and loops


def _branch(b: GraphBuilder, e: Expression, then: BasicBlock, otherwise: BasicBlock) -> None:
    """Evaluate a condition and go to one of two blocks: behind both sides of an `and` to `then`, else to the other."""
    match e:
        case OpExpr() if e.op in ("and", "or") and not e.right_unreachable:
            right = b.block()
            _branch(b, e.left, *((right, otherwise) if e.op == "and" else (then, right)))
            b.current = right
            _branch(b, e.right, then, otherwise)
        case UnaryExpr() if e.op == "not":
            _branch(b, e.expr, otherwise, then)
        case _:
            lower_condition(b, e)
            b.jump(then)
            b.jump(otherwise)


@statement(IfStmt)
def _if(b: GraphBuilder, s: IfStmt) -> None:
    end, ends = b.block(), list[BasicBlock]()
    test = Test(s, tuple(s.expr), [*s.body, *([] if s.else_body is None else [s.else_body])])
    b.evaluates(test)
    for condition, suite in zip(s.expr, s.body, strict=True):
        then, otherwise = b.block(), b.block()
        _branch(b, condition, then, otherwise)
        b.current = then
        b.suite(suite)
        ends.append(b.current)
        b.jump(end)
        b.current = otherwise
    b.suite(s.else_body)
    ends.append(b.current)
    b.fall_into(end)
    b.evaluates(Meet(s, [test], ends))


@statement(WhileStmt)
def _while(b: GraphBuilder, s: WhileStmt) -> None:
    head, end = b.split(), b.block()
    then, otherwise = b.block(), b.block()
    head.behind = otherwise
    b.evaluates(Test(s, (s.expr,), [s.body]))
    if is_always_true(s.expr):
        b.read(s.expr)
        b.jump(then)
    else:
        _branch(b, s.expr, then, otherwise)
    b.current = then
    with b.inside(Loop(end, head)):
        b.suite(s.body)
    b.jump(head)
    b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(ForStmt)
def _for(b: GraphBuilder, s: ForStmt) -> None:
    found = lower_iteration(b, s.expr, is_async=s.is_async)
    held = ask_feed(b, s.expr) if found is False else found
    origin = element_of(b, s.expr)
    if isinstance(origin, Known) and isinstance(s.index, NameExpr) and isinstance(s.index.node, Var):
        b.iterated[s.index.node] = origin.place
    before = remember(b, s, origin)
    head, end, otherwise = b.split(), b.block(), b.block()
    head.behind = otherwise
    b.may_raise()
    b.jump(otherwise)
    b.split()
    declare(b, s.index, element=True)
    assign(b, s.index, held, s)
    share_element(b, s.index, origin, before)
    with b.inside(Loop(end, head)):
        b.suite(s.body)
    b.jump(head)
    b.current = otherwise
    b.suite(s.else_body)
    b.fall_into(end)


@statement(BreakStmt, ContinueStmt)
def _leave(b: GraphBuilder, s: BreakStmt | ContinueStmt) -> None:
    b.leave(Loop, continued=isinstance(s, ContinueStmt))


# ---- `try`


@statement(TryStmt)
def _try(b: GraphBuilder, s: TryStmt) -> None:
    b.module.deliberate.record_try(s.types, s.body)
    outer, end = b.handler, b.block()
    inner = outer
    if s.finally_body is not None:
        inner = b.block()
        here, b.current = b.current, inner
        b.suite(s.finally_body)
        b.throw()
        b.current = here
        frame = Finally(s.finally_body, outer)
        b.frames.append(frame)
    handlers = b.block()
    with b.handled_by(handlers if s.handlers else inner):
        b.split()
        b.suite(s.body)
    with b.handled_by(inner):
        b.suite(s.else_body)
        b.jump(end)
        ended: list[BasicBlock] = []
        for caught, variable, suite in zip(s.types, s.vars, s.handlers, strict=True):
            b.current = handlers
            begin = b.split()
            for block in ended if s.is_star else ():  # an exception group may have come to that handler, too
                block.next.append(begin)
            if caught is not None:
                b.read(caught)
            if variable is not None:
                b.evaluates(Evaluate(s, (None,), (variable,)))
                declare(b, variable)
            b.suite(suite)
            ended.append(b.current)
            b.jump(end)
    if inner is not None:
        handlers.next.append(inner)
    b.current = end
    if s.finally_body is not None:
        b.frames.pop()
        b.suite(s.finally_body)


# ---- `with`


@statement(WithStmt)
def _with(b: GraphBuilder, s: WithStmt) -> None:
    b.module.deliberate.record_with(s.expr, s.body)
    outer, after = b.handler, b.block()
    swallows = any(_swallows(b, e, s.is_async) for e in s.expr)
    exits: list[Read | EndLoan | AskFeed | Move] = []
    for e, target in zip(s.expr, s.target, strict=True):
        b.evaluates(Evaluate(s, (e, None), () if target is None else (target,)))
        b.how = "being entered"
        held = _enter(b, s, e, exits)
        given = b.taken.pop(s, None)
        if target is not None:
            if s.is_async and (b.kind(e) & FLOW or _gives_feed(b, e, target)):
                held = _lend_for_block(b, OpenFeed, target, False, exits)
            if given is not None:
                declare(b, target, element=True)
            assign(b, target, held, s)
            share(b, target, None if given is None else Known(given, b.types.get(target)), s)
            place = place_of(b, target)
            if place is not None and not b.kind(target) & MOVES and b.kind(target) != FEED:
                exits.append(Read(s, place, None, 0))
                if class_name(b.types.get(target)) == names.NURSERY:
                    exits.append(AskFeed(s, place))
    block = LoanBlock([leaving for leaving in exits if isinstance(leaving, EndLoan)])
    handler = outer
    if swallows or (block.ends and outer is not None):
        handler = b.block()
        handler.instructions += block.ends
        if swallows:
            handler.next.append(after)
        if outer is not None:
            handler.next.append(outer)
        b.split()
    with b.handled_by(handler), b.inside(block):
        b.suite(s.body)
        if any(map(module_facts.requires_error, s.expr)):
            b.unreachable()  # only the expected exception leaves the suite
    for leaving in reversed(exits):
        b.emit(leaving)
    b.fall_into(after)


def _enter(b: GraphBuilder, s: WithStmt, e: Expression, exits: list[Read | EndLoan | AskFeed | Move]) -> Slot | None:
    """Evaluate a context manager and enter it. What it lends it lends until the end of the block."""
    held = b.value(e)
    exits += b.at_exit.pop(e, [])
    lent: list[Slot] = []
    enter, leave = ("__aenter__", "__aexit__") if s.is_async else ("__enter__", "__exit__")
    entered = lower_operator(b, e, e, enter, evaluated=True, result=s)
    if entered is not False and entered is not None:
        lent.append(entered)
    place, found = place_of(b, e), method_effect(b, b.types.get(e), leave)
    if found is not None and place is not None:
        exits += Arguments(b, e, found[1], {}, {found[0]: place}).moves()
    if isinstance(e, CallExpr) and (exclusive := names.LENDS_FOR_BLOCK.get(callee_of(b, e).name)) is not None:
        lent.append(_lend_for_block(b, BlockLoan, e, exclusive, exits))
    if lent:
        held = b.build(e, (held, *lent))
    if held is not None:
        exits.append(Read(e, Place(held), None, 0))
    return held


def _lend_for_block(
    b: GraphBuilder,
    lend: type[BlockLoan],
    node: Expression,
    exclusive: bool,
    exits: list[Read | EndLoan | AskFeed | Move],
) -> Slot:
    """Lend until the end of a block, and return the slot that holds the loan."""
    place, into = Place(b.temporary()), b.temporary()
    loan, left = (lend(node, place, into, exclusive, reads_only=True, closed=closed) for closed in (False, True))
    b.emit(loan)
    exits.append(EndLoan(node, loan, left))
    return into


def _gives_feed(b: GraphBuilder, e: Expression, target: Expression) -> bool:
    """Return True for a context manager made of a generator that yields a feed of its own."""
    return b.kind(target) == FEED and class_name(b.types.get(e)) in names.ENDS_WITH_BLOCK


def _swallows(b: GraphBuilder, e: Expression, is_async: bool) -> bool:
    """Return True if a context manager may swallow an exception. mypy's rule: its `__exit__` returns a bool.

    A nursery is an exception to the rule: it swallows only its own cancellation.
    """
    t = get_proper_type(b.types.get(e))
    if not isinstance(t, Instance) or t.type.fullname in names.NURSERIES:
        return False
    method = t.type.get_method("__aexit__" if is_async else "__exit__")
    signature = get_proper_type(method.type) if method is not None else None
    if not isinstance(signature, CallableType):
        return False
    result = get_proper_type(signature.ret_type)
    if is_async and isinstance(result, Instance) and result.type.fullname == "typing.Coroutine":
        result = get_proper_type(result.args[2])
    return class_name(result) == names.BOOL


# ---- `match`


@statement(MatchStmt)
def _match(b: GraphBuilder, s: MatchStmt) -> None:
    held = b.read(s.subject)
    origin = origin_of(b, s.subject, moves=False)
    subject, end = place_of(b, s.subject), b.block()
    if subject is None and b.kind(s.subject) & MOVES:
        subject = Place(b.temporary())  # of the value of a call, which each case names anew
        origin = Known(subject, b.types.get(s.subject))
    left = _alternatives(b, s)
    tests, ends = [Test(s, (s.subject,), s.bodies)], list[BasicBlock]()
    b.evaluates(tests[0])
    for number, (pattern, guard, suite) in enumerate(zip(s.patterns, s.guards, s.bodies, strict=True)):
        if suite.is_unreachable:
            ends.append(b.block())
            continue
        arm, otherwise = b.block(), b.block()
        b.jump(arm)
        if guard is None:
            left = [t for t in left if not _covers(b, pattern, t)]
        if left:
            b.jump(otherwise)
        b.current = arm
        whole = pattern.name if isinstance(pattern, AsPattern) else None
        b.evaluates(Evaluate(s, (None,), tuple(captures(pattern))))
        for variable in captures(pattern):
            declare(b, variable, element=variable is not whole)
            assign(b, variable, held, s)
        if whole is None or guard is not None or not b.kind(whole) & MOVES:
            share_captures(b, pattern, origin)
        if guard is not None:
            tests.append(Test(s, (guard,), s.bodies[number:]))
            b.evaluates(tests[-1])
            lower_condition(b, guard)
            b.jump(otherwise)
            b.split()
        if subject is not None and whole is not None and b.kind(whole) & MOVES:
            how = f'being assigned to "{whole.name}"'
            b.emit(Move(whole, subject, b.temporary(), how, silent=guard is not None, binds=True))
        b.suite(suite)
        ends.append(b.current)
        b.jump(end)
        b.current = otherwise
    b.fall_into(end)
    b.evaluates(Meet(s, tests, ends))


# ---- exhaustive cases


def _alternatives(b: GraphBuilder, s: MatchStmt) -> list[ProperType]:
    """Return the alternatives of the subject's type: the items of a union, the members of an enumeration."""
    t = b.types.get(s.subject)
    if t is None:
        return [NoneType()]
    expanded = get_proper_type(try_expanding_sum_type_to_union(get_proper_type(t), None))
    items = expanded.items if isinstance(expanded, UnionType) else [expanded]
    return [get_proper_type(item) for item in items]


def _covers(b: GraphBuilder, pattern: Pattern, t: ProperType) -> bool:
    """Return True if a pattern is certain to match all values of a type."""
    match pattern:
        case AsPattern():
            return pattern.pattern is None or _covers(b, pattern.pattern, t)
        case OrPattern():
            return any(_covers(b, inner, t) for inner in pattern.patterns)
        case ClassPattern() if not (pattern.positionals or pattern.keyword_values):
            node = pattern.class_ref.node
            instance = t.fallback if isinstance(t, LiteralType) else t
            return (
                isinstance(node, TypeInfo) and isinstance(instance, Instance) and instance.type.has_base(node.fullname)
            )
        case SingletonPattern():
            if pattern.value is None:
                return isinstance(t, NoneType)
            return isinstance(t, LiteralType) and t.value is pattern.value
        case ValuePattern():
            return isinstance(t, LiteralType) and t == literal_of(b.types.get(pattern.expr))
        case _:
            return False
