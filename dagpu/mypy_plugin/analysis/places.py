"""Finds the place that an expression names, and the objects that one variable of a function alone refers to.

Such an object ends with the function, and so does what it owns. Its variable is assigned once, a display or an instance
of a class whose text is known, made of values that lie nowhere else. Each of its other uses is one of those listed
here, which give the object to nobody.
"""

from collections.abc import Iterator
from typing import Final

from mypy.nodes import (
    AssignmentStmt,
    AwaitExpr,
    CallExpr,
    ComparisonExpr,
    DictExpr,
    DictionaryComprehension,
    Expression,
    ForStmt,
    FuncDef,
    GeneratorExpr,
    IndexExpr,
    IntExpr,
    ListComprehension,
    ListExpr,
    MemberExpr,
    MypyFile,
    NameExpr,
    OperatorAssignmentStmt,
    RefExpr,
    ReturnStmt,
    SetComprehension,
    SetExpr,
    StarExpr,
    StrExpr,
    TupleExpr,
    TypeInfo,
    UnaryExpr,
    Var,
)
from mypy.operators import unary_op_methods
from mypy.types import Instance, TupleType, Type, TypedDictType, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.builder import GraphBuilder
from dagpu.mypy_plugin.analysis.callees import property_place
from dagpu.mypy_plugin.analysis.graph import Body, Path, Place
from dagpu.mypy_plugin.analysis.module_facts import ModuleFacts, Uses
from dagpu.mypy_plugin.syntax import statements_in, targets
from dagpu.mypy_plugin.typing.type_facts import (
    attribute_type,
    class_name,
    class_variable,
    is_stored,
    literal_of,
    member_of,
    method_name,
)

BINDS = ("being assigned", "being put into", "being made a default", "being yielded")
"""The words of moves after which the handle is as it was, under another name or in a container."""


def place_of(b: GraphBuilder, e: Expression) -> Place | None:
    """Return the place that an expression names: a variable, or a path of attributes and constant indices into one.

    A result that is a part of an object has a place, too, once it has been evaluated.
    """
    match e:
        case NameExpr():
            return Place(b.slot(e.node)) if isinstance(e.node, Var) else None
        case MemberExpr():
            if isinstance(e.expr, RefExpr) and isinstance(e.expr.node, MypyFile):
                return Place(b.slot(e.node)) if isinstance(e.node, Var) else None
            if (variable := class_variable(b.types.get(e.expr), e.name)) is not None:
                return Place(b.slot(variable))
            if is_stored(b.types.get(e.expr), e.name):
                return _extend_place(b, e.expr, (f".{e.name}",))
            path = property_place(b, e) if b.kind(e) else None
            return None if path is None else _extend_place(b, e.expr, path)
        case IndexExpr():
            return item_place(b, e.base, e.index) or b.taken.get(e)
        case _:
            return b.taken.get(e)


def item_place(b: GraphBuilder, base: Expression, index: Expression) -> Place | None:
    """Return the place of the item at a literal index or key. One at an index that the run computes has none."""
    step = step_of(b, index, b.types.get(base)) if has_stable_items(b, base) else None
    return None if step is None else _extend_place(b, base, (step,))


def _extend_place(b: GraphBuilder, e: Expression, path: Path) -> Place | None:
    base = place_of(b, e)
    return None if base is None else base.inside(path)


def step_of(b: GraphBuilder, index: Expression, base: Type | None) -> str | None:
    """Return the step of a path for a constant index; None for one that is not known.

    A component of a tuple has one step, whether it is counted from the front, from the end, or named.
    """
    if isinstance(index, StrExpr):
        return f"[{index.value!r}]"
    number = integer_of(b, index)
    if number is None:
        return None
    proper = get_proper_type(base)
    if isinstance(proper, TupleType) and -len(proper.items) <= number < len(proper.items):
        return item_step(proper, number % len(proper.items))
    return f"[{number}]"


def integer_of(b: GraphBuilder, e: Expression) -> int | None:
    """Return the number of a literal, or of a variable with a literal type; None for any other expression."""
    match e:
        case IntExpr():
            return e.value
        case UnaryExpr() if e.op == "-" and isinstance(e.expr, IntExpr):
            return -e.expr.value
        case NameExpr() | MemberExpr():
            literal = literal_of(b.types.get(e))
            return literal.value if literal is not None and type(literal.value) is int else None
        case _:
            return None


def item_step(t: TupleType, index: int) -> str:
    """Return the step of a path to a component of a tuple: its name in a named tuple, its index in others."""
    if t.partial_fallback.type.is_named_tuple:
        named = match_arguments(t)
        if index < len(named):
            return f".{named[index]}"
    return f"[{index}]"


def match_arguments(t: Type | None) -> list[str]:
    """Return the names of the attributes that positional patterns of a class match, in their order."""
    declared = get_proper_type(attribute_type(t, "__match_args__"))
    literals = [literal_of(item) for item in declared.items] if isinstance(declared, TupleType) else []
    named = [one.value for one in literals if one is not None and isinstance(one.value, str)]
    return named if len(named) == len(literals) else []


def has_stable_items(b: GraphBuilder, e: Expression) -> bool:
    """Return True if an index gives the same object each time. It does in tuples, lists and dictionaries."""
    t = get_proper_type(b.types.get(e))
    stable = ("builtins.list", "builtins.dict", "builtins.tuple")
    return isinstance(t, TupleType | TypedDictType) or class_name(t) in stable


_READERS: Final = frozenset(
    f"builtins.{name}"
    for name in (
        *("len", "print", "repr", "str", "id", "sum", "any", "all"),
        *("enumerate", "zip", "reversed", "sorted", "min", "max", "list", "tuple"),
    )
)
"""Functions that do not keep their arguments. Some give the items of one, as a loop does."""
_MAKES_INIT: Final = {"dataclass": "__post_init__", "attrs": "__attrs_post_init__"}
"""The marks that mypy puts on classes whose `__init__` is written for them, each with the method that it calls."""
_CONTAINERS: Final = ("builtins.list.", "builtins.dict.", "builtins.set.", "typing.", "collections.")
"""The starts of the names of methods that do not keep their own object."""


def is_own_object(module: ModuleFacts, body: Body, variable: Var, *, returned: bool = False) -> bool:
    """Return True if an object is that of one local variable of a body alone. `returned`: also if the body returns it:
    until then it is."""
    node = body.node
    if not isinstance(node, FuncDef) or any(variable in child.slots for child in body.children):
        return False
    statements = module.statements.get(node)
    if statements is None:
        statements = module.statements[node] = list(statements_in(node.body.body))
    made = [s.rvalue for s in statements if isinstance(s, AssignmentStmt) and _assigns(s, variable)]
    if len(made) != 1 or not all(_is_fresh(module, body, part) for part in _parts_of(module, made[0])):
        return False
    ends = [s.expr for s in statements if (isinstance(s, ReturnStmt) and returned) or isinstance(s, ForStmt)]
    stored = [t for s in statements if isinstance(s, AssignmentStmt) for one in s.lvalues for t in targets(one)]
    ends += [s.lvalue for s in statements if isinstance(s, OperatorAssignmentStmt)]
    ends += [t.base for t in stored if isinstance(t, IndexExpr) and t not in module.types]  # mypy has no type for it
    given = sum(isinstance(e, NameExpr) and e.node is variable for e in ends)
    return _is_private(module, variable, assignments=1 + given)


def _assigns(s: AssignmentStmt, variable: Var) -> bool:
    return any(isinstance(target, NameExpr) and target.node is variable for target in s.lvalues)


def _parts_of(module: ModuleFacts, e: Expression) -> Iterator[Expression | None]:
    """Iterate over the expressions of which a new object is made; over None for an object that is not new."""
    match e:
        case TupleExpr() | ListExpr() | SetExpr():
            yield from e.items
        case DictExpr():
            for key, value in e.items:
                yield None if key is None else value
        case CallExpr() if (made := _class_called(e)) is not None:
            if made.fullname in names.CONTAINERS and not e.args:
                return
            if _keeps_itself_private(module, made):
                yield from e.args
            else:
                yield None
        case _:
            yield None


def _class_called(e: CallExpr) -> TypeInfo | None:
    """Return the class of which a call makes an instance: `list()`, `list[int]()`; None for any other call."""
    callee = e.callee.base if isinstance(e.callee, IndexExpr) else e.callee
    return callee.node if isinstance(callee, RefExpr) and isinstance(callee.node, TypeInfo) else None


def _keeps_itself_private(module: ModuleFacts, info: TypeInfo) -> bool:
    """Return True if an instance of a class gives itself to nobody while it is made."""
    if info.is_named_tuple or any(
        made in info.metadata and not info.has_readable_member(after) for made, after in _MAKES_INIT.items()
    ):
        return True
    method = member_of(info, "__init__")
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


def _is_private(module: ModuleFacts, variable: Var, assignments: int, inside: frozenset[FuncDef] = frozenset()) -> bool:
    """Return True if all uses of a variable, but for so many assignments, give its object to nobody. `inside` are the
    methods in work, which call each other.

    mypy has a type for each name that it has checked, so the names among the expressions with a type are all uses.
    """
    uses = module.uses = module.uses or _uses_in(module)
    for e in uses.names.get(variable, ()):
        member = uses.members.get(e)
        operator = uses.operators.get(e)
        if operator is not None:
            private = _gives_itself_to_nobody(module, operator, inside)
        else:
            private = e in uses.harmless or (member is not None and _stays_private(module, member, inside))
        assignments -= not private
    return assignments >= 0


def _operator_method(module: ModuleFacts, e: Expression, name: str) -> FuncDef | None:
    """Return the method of a class of this module that an operator calls on a variable."""
    t = get_proper_type(module.types.get(e)) if isinstance(e, NameExpr) and isinstance(e.node, Var) else None
    own = isinstance(t, Instance) and t.type.module_name == module.name
    method = member_of(t.type, name) if own and isinstance(t, Instance) else None
    return method if isinstance(method, FuncDef) else None


def _uses_in(module: ModuleFacts) -> Uses:
    """Return the uses of the variables of a module."""
    uses = Uses({}, {}, set(), {})
    for e in module.types:
        match e:
            case NameExpr() if isinstance(e.node, Var):
                uses.names.setdefault(e.node, []).append(e)
            case MemberExpr():
                uses.members[e.expr] = e
            case IndexExpr():
                uses.harmless.add(e.base)
            case GeneratorExpr() | DictionaryComprehension():
                uses.harmless.update(e.sequences)
            case ListComprehension() | SetComprehension():
                uses.harmless.update(e.generator.sequences)
            case CallExpr() if isinstance(e.callee, RefExpr) and e.callee.fullname in _READERS:
                uses.harmless.update(e.args)
            case ComparisonExpr():
                uses.harmless.update(e.operands)
            case UnaryExpr() if (
                method := _operator_method(module, e.expr, unary_op_methods.get(e.op, ""))
            ) is not None:
                uses.operators[e.expr] = method
            case CallExpr() if (method := _operator_method(module, e.callee, "__call__")) is not None:
                uses.operators[e.callee] = method
            case _:
                pass
    return uses


def _stays_private(module: ModuleFacts, e: MemberExpr, inside: frozenset[FuncDef]) -> bool:
    """Return True for an attribute that is stored, for a method of a container, and for one of a class of this module
    that gives its object to nobody."""
    t = module.types.get(e.expr)
    if is_stored(t, e.name) or (method_name(t, e.name) or "").startswith(_CONTAINERS):
        return True
    proper = get_proper_type(t)
    method = member_of(proper.type, e.name) if isinstance(proper, Instance) else None
    return isinstance(method, FuncDef) and _gives_itself_to_nobody(module, method, inside)


def _gives_itself_to_nobody(module: ModuleFacts, method: FuncDef, inside: frozenset[FuncDef]) -> bool:
    if method not in module.own or method.is_static or not method.arguments:
        return False
    return method in inside or _is_private(module, method.arguments[0].variable, 0, inside | {method})
