"""Lowers assignments and deletions: targets are variables, attributes, items, and tuples or lists of these."""

from collections.abc import Sequence

from mypy.nodes import (
    AssignmentStmt,
    AwaitExpr,
    CallExpr,
    ComparisonExpr,
    ConditionalExpr,
    Context,
    DelStmt,
    DictExpr,
    Expression,
    IndexExpr,
    LambdaExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    NameExpr,
    OperatorAssignmentStmt,
    OpExpr,
    RefExpr,
    SetExpr,
    StarExpr,
    TempNode,
    TupleExpr,
    UnaryExpr,
    Var,
)
from mypy.operators import op_methods
from mypy.types import Instance, get_proper_type

from dagpu.mypy_plugin.analysis.builder import GraphBuilder, statement
from dagpu.mypy_plugin.analysis.callees import closure_of, is_partial, method_effect, method_of
from dagpu.mypy_plugin.analysis.containers import items_of_value
from dagpu.mypy_plugin.analysis.graph import EVERYTHING, Build, Change, Escape, Forget, Place, Rearrange, Slot, Store
from dagpu.mypy_plugin.analysis.operands import is_own_container, lower_iteration, lower_operator, share_added
from dagpu.mypy_plugin.analysis.origins import Known, Relation, origin_of, origin_of_target, share, share_place
from dagpu.mypy_plugin.analysis.places import place_of
from dagpu.mypy_plugin.syntax import targets
from dagpu.mypy_plugin.typing.type_facts import (
    CONTAINS_FLOWS,
    CONTAINS_OPS,
    FLOW,
    HANDLE,
    MOVES,
    OP,
    class_name,
    method_name,
)


def declare(b: GraphBuilder, target: Expression, *, element: bool = False) -> None:
    """Make the assigned variables local to this body, unless they are declared `global` or `nonlocal`."""
    for single in targets(target):
        if isinstance(single, NameExpr) and isinstance(single.node, Var) and single.name not in b.foreign:
            b.declare(single.node, element=element)


def assign(
    b: GraphBuilder, target: Expression, held: Slot | None, node: Context, value: Expression | None = None
) -> None:
    """Assign a value to a target; each single target of a tuple or list gets all facts of the value.

    `value` is the expression of a value that is in no other place.
    """
    built = None if value is None else built_in(b, value)
    for single in targets(target):
        match single:
            case NameExpr():
                _assign_name(b, single, held, built)
            case MemberExpr():
                _assign_attribute(b, single, held)
            case IndexExpr():
                _assign_item(b, single, held, node)
            case _:
                pass


def _assign_name(b: GraphBuilder, target: NameExpr, held: Slot | None, built: Expression | None) -> None:
    root = target.node
    if not isinstance(root, Var):
        return
    if target.name not in b.foreign:
        b.declare(root)
    b.closures.pop(root, None)
    if b.partials:
        b.partials = {v: made for v, made in b.partials.items() if v is not root and not _mentions(made, root)}
    if b.bound:
        b.bound = {
            v: method
            for v, method in b.bound.items()
            if v is not root and getattr(method.expr, "node", None) is not root
        }
    kind = b.kind(target) or b.kinds.kind_of(root.type)
    place = place_of(b, target)
    known = kind or held is not None or root in b.module.adopted or b.kinds.may_own(root.type)
    if place is None or not (known or place.slot in b.body.elements):
        b.emit(Forget(target, place, whole=False)) if place is not None else None
        return
    b.emit(Store(target, place, held, kind & EVERYTHING, built))
    if held is not None and target.name in b.foreign:
        b.emit(Escape(target, held, "assigned to a variable that outlives"))


def _mentions(made: CallExpr, root: Var) -> bool:
    return any(isinstance(bound, NameExpr) and bound.node is root for bound in made.args)


def _assign_attribute(b: GraphBuilder, target: MemberExpr, held: Slot | None) -> None:
    b.read(target.expr)
    place = place_of(b, target)
    if place is None:
        return
    b.emit(Store(target, place, None, 0))
    if held is not None:
        b.add_to_container(target, place.slot, [(target, held)], "stored in an attribute that outlives")


def _assign_item(b: GraphBuilder, target: IndexExpr, held: Slot | None, node: Context) -> None:
    b.read(target.base)
    b.read(target.index)
    base = place_of(b, target.base)
    if base is None:
        return
    place = place_of(b, target)
    if place is not None:
        b.emit(Store(target, place, None, 0))
    else:
        b.emit(Forget(target, base, whole=False))
        b.emit(Rearrange(target, base, Change.REMOVES))
    if held is not None:
        b.add_to_container(target, base.slot, [(target, held)], "put where it outlives")


@statement(AssignmentStmt)
def _assignment(b: GraphBuilder, s: AssignmentStmt) -> None:
    for target in s.lvalues:
        declare(b, target)
    if isinstance(s.rvalue, TempNode):  # a declaration: `x: int`
        return
    first = s.lvalues[0]
    if len(s.lvalues) == 1 and isinstance(first, NameExpr) and isinstance(s.rvalue, LambdaExpr):
        if isinstance(first.node, Var):
            b.closures[first.node] = closure_of(b, s.rvalue)
        return
    if len(s.lvalues) == 1 and isinstance(first, TupleExpr | ListExpr) and _assign_items(b, s, first):
        return
    if len(s.lvalues) == 1 and isinstance(first, IndexExpr) and _set_item(b, s, first):
        return
    if isinstance(first, TupleExpr | ListExpr) and isinstance(s.rvalue, NameExpr | MemberExpr):
        lower_iteration(b, s.rvalue)
    b.how = _describe_target(first)
    kept = _kept_by_own(b, first, s.rvalue) if len(s.lvalues) == 1 else ()
    stays = bool(kept) or (len(s.lvalues) == 1 and isinstance(s.rvalue, NameExpr) and _is_part_of_own(b, first))
    held = b.evaluate(s.rvalue, not stays)
    kept_elsewhere = _is_kept_elsewhere(b, s.rvalue)
    origin = origin_of(b, s.rvalue, moves=not stays)
    for target in s.lvalues:
        if kept_elsewhere or (not isinstance(target, NameExpr) and place_of(b, s.rvalue) is not None):
            declare(b, target, element=True)
        assign(b, target, held, s, s.rvalue)
        share(b, target, origin, s)
        share_added(b, s, kept, target, last=False)
        if isinstance(s.rvalue, MemberExpr) and isinstance(target, NameExpr) and isinstance(target.node, Var):
            _bind_method(b, target.node, s.rvalue)
        if isinstance(target, NameExpr) and isinstance(target.node, Var) and is_partial(s.rvalue):
            b.partials[target.node] = s.rvalue
        if len(s.lvalues) > 1:
            origin = origin_of_target(b, target, b.types.get(s.rvalue))


def _is_part_of_own(b: GraphBuilder, target: Expression) -> bool:
    """Return True for an item or an attribute of an object of this function alone."""
    match target:
        case IndexExpr():
            return is_own_container(b, target.base)
        case MemberExpr():
            return is_own_container(b, target.expr)
        case _:
            return False


def _kept_by_own(b: GraphBuilder, target: Expression, e: Expression) -> list[NameExpr]:
    """Return the named handles in a display that one variable of this function alone names: they may still be used by
    their names. Return none if one is in it twice: it would move twice."""
    if not isinstance(e, DictExpr | ListExpr | SetExpr | TupleExpr):
        return []
    items = [item for pair in e.items for item in pair] if isinstance(e, DictExpr) else e.items
    named = [item for item in items if isinstance(item, NameExpr) and b.kind(item) & MOVES]
    alone = len({item.node for item in named}) == len(named) and is_own_container(b, target, returned=False)
    return named if named and alone else []


def _set_item(b: GraphBuilder, s: AssignmentStmt, target: IndexExpr) -> bool:
    """Lower an assignment to an item of an object of the user's. Return False, with nothing lowered, for another."""
    return lower_operator(b, s, target.base, "__setitem__", [target.index, s.rvalue]) is not False


def _bind_method(b: GraphBuilder, variable: Var, e: MemberExpr) -> None:
    method = method_of(b, b.types.get(e.expr), e.name)
    if method is not None and not method.is_property:
        b.bound[variable] = e


def _is_kept_elsewhere(b: GraphBuilder, rvalue: Expression) -> bool:
    """Return True if an object, a container or an enclosing scope keeps the assigned value too."""
    if not b.kind(rvalue) and not b.kinds.may_own(b.types.get(rvalue)):
        return False  # None, before the tensor is made
    place = place_of(b, rvalue)
    if place is None:  # an item at an index that the run computes
        return isinstance(rvalue, IndexExpr) and place_of(b, rvalue.base) is not None
    return bool(place.path) or place.slot in b.body.elements or place.slot not in b.body.local


def _describe_target(target: Expression) -> str:
    match target:
        case NameExpr():
            return f'being assigned to "{target.name}"'
        case MemberExpr():
            return f'being assigned to ".{target.name}"'
        case _:
            return "being assigned"


def _assign_items(b: GraphBuilder, s: AssignmentStmt, target: TupleExpr | ListExpr) -> bool:
    """Lower `a, b = x, y` item by item, so that each target gets only the facts of its own item.

    Return False, with nothing lowered, if the two sides do not have this form.
    """
    if any(isinstance(item, StarExpr) for item in target.items):
        return False
    rvalue = s.rvalue
    if isinstance(rvalue, TupleExpr) and len(rvalue.items) == len(target.items):
        held = []
        for item, single in zip(rvalue.items, target.items, strict=True):
            b.how = _describe_target(single)
            held.append(b.value(item))
        origins = [origin_of(b, item, moves=True) for item in rvalue.items]
        for single, one, item in zip(target.items, held, rvalue.items, strict=True):
            assign(b, single, one, s, item)
        for single, origin in zip(target.items, origins, strict=True):
            share(b, single, origin, s)
        return True
    return False


@statement(OperatorAssignmentStmt)
def _augmented(b: GraphBuilder, s: OperatorAssignmentStmt) -> None:
    _operate_in_place(b, s)
    if isinstance(s.lvalue, IndexExpr):
        lower_operator(b, s, s.lvalue.base, "__setitem__", evaluated=True)


def _operate_in_place(b: GraphBuilder, s: OperatorAssignmentStmt) -> None:
    method = op_methods.get(s.op, "")
    for name in (method.replace("__", "__i", 1), method):
        effect = method_effect(b, b.types.get(s.lvalue), name)
        found = lower_operator(b, s, s.lvalue, name, [s.rvalue])
        if found is not False:
            given = b.taken.pop(s, None)
            itself = effect is not None and effect[1].gives == (effect[0], ())
            if isinstance(s.lvalue, NameExpr) and not itself and (name == method or given is not None):
                assign(b, s.lvalue, found, s)
                share(b, s.lvalue, None if given is None else Known(given, b.types.get(s.lvalue)), s)
            return
    b.how = "being put into a container"
    keeps = not _is_plain(b, s.lvalue)
    held = b.evaluate(s.rvalue, keeps)
    b.read(s.lvalue)
    place = place_of(b, s.lvalue)
    if place is None or not keeps:
        return
    is_list = s.op == "+" and _is_list(b, s.lvalue)
    b.emit(Rearrange(s, place, Change.BEHIND) if is_list else Forget(s, place, whole=False))
    if (is_list or s.op == "|") and b.kinds.may_own(b.types.get(s.rvalue)):
        share_place(b, place, items_of_value(b, s.rvalue, Relation.WITH_OTHERS if is_list else Relation.SAME), s)
    if held is not None:
        b.add_to_container(s, place.slot, [(s, held)], "put where it outlives")


@statement(DelStmt)
def _delete(b: GraphBuilder, s: DelStmt) -> None:
    for single in targets(s.expr):
        place = place_of(b, single)
        if place is not None:
            b.emit(Build(s, None, (place.slot,), 0))  # to hold an op until here is a use
            b.emit(Store(s, place, None, 0))
            if isinstance(single, IndexExpr) and _is_list(b, single.base):
                b.emit(Rearrange(s, Place(place.slot, place.path[:-1]), Change.REMOVES))
            continue
        if (
            isinstance(single, IndexExpr)
            and lower_operator(b, s, single.base, "__delitem__", [single.index]) is not False
        ):
            continue
        b.read(single)
        base = place_of(b, single.base) if isinstance(single, IndexExpr) else None
        if base is not None:
            b.emit(Forget(s, base, whole=False))
            b.emit(Rearrange(s, base, Change.REMOVES))


def _is_plain(b: GraphBuilder, e: Expression) -> bool:
    """Return True for text, a number and their like, which hold nothing."""
    t = get_proper_type(b.types.get(e))
    return isinstance(t, Instance) and t.type.module_name == "builtins" and not t.args and not b.kinds.may_own(t)


def _is_list(b: GraphBuilder, e: Expression) -> bool:
    return class_name(b.types.get(e)) == "builtins.list"


# ---- ops that are built and dropped


def drops_op(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an expression statement builds an op or a flow and drops it, so that it can never run."""
    if not b.kind(e) & (OP | CONTAINS_OPS | FLOW | CONTAINS_FLOWS):
        return False
    match e:
        case NameExpr() | MemberExpr() | IndexExpr():
            return bool(b.kind(e) & (OP | FLOW))
        case CallExpr() | AwaitExpr():
            return e in b.types and not _takes_out(b, e)
        case ConditionalExpr():
            return drops_op(b, e.if_expr) or drops_op(b, e.else_expr)
        case OpExpr() if e.op in ("and", "or"):
            return drops_op(b, e.right)
        case OpExpr():
            return _is_operator_of_ops(b, e, (e.left, e.right))
        case UnaryExpr():
            return _is_operator_of_ops(b, e, (e.expr,))
        case ComparisonExpr():
            return _is_operator_of_ops(b, e, e.operands)
        case ListComprehension():
            return drops_op(b, e.generator.left_expr)
        case TupleExpr() | ListExpr():
            return any(drops_op(b, item) for item in e.items)
        case DictExpr():
            return any(drops_op(b, value) for _, value in e.items)
        case _:
            return False


def _is_operator_of_ops(b: GraphBuilder, e: Expression, operands: Sequence[Expression]) -> bool:
    """Return True if an operator of ops or tensors builds an op. One of a user's class may keep what it returns."""
    if not b.kind(e) & OP:
        return False
    first = operands[0]
    return bool(b.kind(first) & (HANDLE | OP)) or class_name(b.types.get(first)).startswith(("builtins.", "numpy."))


def built_in(b: GraphBuilder, e: Expression) -> Expression | None:
    """Return an assigned expression if it builds an op or a flow, None if it only names one."""
    match e:
        case (
            CallExpr() | AwaitExpr() | ListComprehension() | TupleExpr() | ListExpr() | DictExpr() | ConditionalExpr()
            | OpExpr() | UnaryExpr() | ComparisonExpr()
        ):  # fmt: skip
            return e if drops_op(b, e) else None
        case _:
            return None


def _takes_out(b: GraphBuilder, e: Expression) -> bool:
    """Return True if a call takes an existing op out of a container: `ops.pop()`, `queue.get()`, `next(ops)`."""
    if not isinstance(e, CallExpr):
        return False
    callee = e.callee
    if isinstance(callee, MemberExpr) and callee.expr in b.types:
        full = method_name(b.types.get(callee.expr), callee.name) or ""
        return full.startswith(("builtins.", "typing.", "collections.", "queue.", "trio."))
    return isinstance(callee, RefExpr) and (callee.fullname or "").startswith(("builtins.", "typing."))
