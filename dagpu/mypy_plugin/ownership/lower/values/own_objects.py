"""Finds the objects that one variable of a function alone refers to: they end with the function, and so does what they
own.

Such a variable is assigned once, a display or an instance of a class whose text is known, made of values that lie
nowhere else. Each of its other uses is one of those listed here, which give the object to nobody.
"""

from collections.abc import Iterator
from typing import Final

from mypy.nodes import (
    AssignmentStmt,
    AwaitExpr,
    CallExpr,
    DictExpr,
    Expression,
    FuncDef,
    GeneratorExpr,
    IndexExpr,
    ListExpr,
    MemberExpr,
    NameExpr,
    RefExpr,
    StarExpr,
    TupleExpr,
    TypeInfo,
    Var,
)

from dagpu.mypy_plugin.ownership.control_flow import Body
from dagpu.mypy_plugin.ownership.lower.statements.suites import statements_in
from dagpu.mypy_plugin.ownership.module_facts import ModuleFacts
from dagpu.mypy_plugin.typing.type_facts import is_stored, method_name

_READERS: Final = frozenset(f"builtins.{name}" for name in ("len", "print", "repr", "str", "id", "sum", "any", "all"))
"""Functions that do not keep their arguments."""
_CONTAINERS: Final = ("builtins.list.", "builtins.dict.", "typing.", "collections.")
"""The starts of the names of methods that do not keep their own object."""


def is_own_object(module: ModuleFacts, body: Body, variable: Var) -> bool:
    """Return True if an object is that of one local variable of a body alone."""
    node = body.node
    if not isinstance(node, FuncDef) or any(variable in child.slots for child in body.children):
        return False
    made = [s.rvalue for s in statements_in(node.body.body) if isinstance(s, AssignmentStmt) and _assigns(s, variable)]
    if len(made) != 1 or not all(_is_fresh(module, body, part) for part in _parts_of(module, made[0])):
        return False
    return _is_private(module, variable, assignments=1)


def _assigns(s: AssignmentStmt, variable: Var) -> bool:
    return any(isinstance(target, NameExpr) and target.node is variable for target in s.lvalues)


def _parts_of(module: ModuleFacts, e: Expression) -> Iterator[Expression | None]:
    """Iterate over the expressions of which a new object is made; over None for an object that is not new."""
    match e:
        case TupleExpr() | ListExpr():
            yield from e.items
        case DictExpr():
            for key, value in e.items:
                yield None if key is None else value
        case CallExpr() if isinstance(e.callee, RefExpr) and isinstance(e.callee.node, TypeInfo):
            if _keeps_itself_private(module, e.callee.node):
                yield from e.args
            else:
                yield None
        case _:
            yield None


def _keeps_itself_private(module: ModuleFacts, info: TypeInfo) -> bool:
    """Return True if an instance of a class gives itself to nobody while it is made."""
    if info.is_named_tuple or ("dataclass" in info.metadata and not info.has_readable_member("__post_init__")):
        return True
    symbol = info.get("__init__")
    method = None if symbol is None else symbol.node
    if not isinstance(method, FuncDef) or method not in module.own:
        return False
    return _is_private(module, method.arguments[0].variable, assignments=0)


def _is_fresh(module: ModuleFacts, body: Body, e: Expression | None) -> bool:
    """Return True for a value without handles, and for one that no other variable and no container keeps."""
    if e is None or isinstance(e, StarExpr):
        return False
    if not module.kinds.may_own(module.types.get(e)):
        return True
    match e:
        case NameExpr() if isinstance(e.node, Var):
            slot = body.slots.get(e.node)
            return slot in body.local and slot not in body.elements
        case CallExpr():
            return not isinstance(e.callee, MemberExpr) or _is_function_or_op(module, e.callee)
        case AwaitExpr():
            return True
        case _:
            return all(_is_fresh(module, body, part) for part in _parts_of(module, e))


def _is_function_or_op(module: ModuleFacts, callee: MemberExpr) -> bool:
    name = method_name(module.types.get(callee.expr), callee.name)
    return name is None or name.startswith("dagpu.")


def _is_private(module: ModuleFacts, variable: Var, assignments: int) -> bool:
    """Return True if all uses of a variable, but for so many assignments, give its object to nobody.

    mypy has a type for each name that it has checked, so the names among the expressions with a type are all uses.
    """
    harmless: set[Expression] = set()
    for e in module.types:
        match e:
            case MemberExpr() if _stays_private(module, e):
                harmless.add(e.expr)
            case IndexExpr():
                harmless.add(e.base)
            case GeneratorExpr():
                harmless.update(e.sequences)
            case CallExpr() if isinstance(e.callee, RefExpr) and e.callee.fullname in _READERS:
                harmless.update(e.args)
            case _:
                pass
    uses = [e for e in module.types if isinstance(e, NameExpr) and e.node is variable]
    return sum(e not in harmless for e in uses) <= assignments


def _stays_private(module: ModuleFacts, e: MemberExpr) -> bool:
    """Return True for an attribute that is stored, and for a method of a container."""
    t = module.types.get(e.expr)
    return is_stored(t, e.name) or (method_name(t, e.name) or "").startswith(_CONTAINERS)
