"""Derives from a type what its values can do: move, hold loans, be an op.

Only types are used, because mypy keeps types in its cache. A module that comes from the cache has no syntax tree.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeGuard

from mypy.nodes import FuncBase, SymbolNode, TypeInfo, Var
from mypy.typeops import bind_self, get_type_vars
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    LiteralType,
    NoneType,
    Overloaded,
    ProperType,
    TupleType,
    Type,
    TypedDictType,
    TypeType,
    TypeVarType,
    UnionType,
    UnpackType,
    get_proper_type,
)

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis.graph import EVERYTHING, EXCLUSIVE, FEED, LOANS, SHARED, SPENDABLE
from dagpu.mypy_plugin.messages import ANY_FORM, LOAN, SHARES

MOVES: Final = 8
"""Passing the value on moves it."""
OP: Final = 16
"""The value is an op."""
HANDLE: Final = 32
"""The value is a handle of any sort."""
CONTAINS_OPS: Final = 64
"""The value is a container of ops, for example a tuple or a list."""
FREE: Final = 128
"""The value is an op whose type says that it holds no loans, other than those that a closure in it captures."""

FLOW: Final = 256
"""The value is a flow."""
CONTAINS_FLOWS: Final = 512
"""The value is a container of flows."""

_HELD_BY_OPS: Final = EVERYTHING & ~FEED
"""An op is computed without asking a feed."""

_HANDLES: Final = {
    names.TENSOR: HANDLE | MOVES,
    names.SHARED_TENSOR: HANDLE,
    names.TENSOR_REF: HANDLE | SHARED,
    names.TENSOR_MUT: HANDLE | MOVES | EXCLUSIVE,
    names.SHARDED: HANDLE | MOVES,
    names.SHARDED_REF: HANDLE | SHARED,
    names.PARTIALS: HANDLE | MOVES,
}


class TypeFacts:
    """The kind bits of types, cached for the analysis of one module."""

    def __init__(self) -> None:
        self._known: dict[Type, int] = {}
        self._classes: dict[TypeInfo, int] = {}
        self._owning: dict[Type, bool] = {}

    def kind_of(self, t: Type | None) -> int:
        """Return the kind bits of a type; 0 for None and for types unrelated to handles."""
        if t is None:
            return 0
        if isinstance(t, FunctionLike):  # its hash takes longer
            return LOANS | SPENDABLE
        kind = self._known.get(t)
        if kind is None:
            self._known[t] = 0  # for a type that contains itself
            kind = self._known[t] = self._compute_kind(get_proper_type(t))
        return kind

    def _compute_kind(self, t: ProperType) -> int:
        match t:
            case Instance():
                return self._kind_of_instance(t)
            case TupleType():
                return self._kind_of_container(t.items)
            case TypedDictType():
                return self._kind_of_container(t.items.values())
            case UnionType():
                return self._kind_of_union(t.items)
            case TypeVarType():
                return self.kind_of(t.upper_bound)
            case _:
                return 0

    def _kind_of_union(self, types: Iterable[Type]) -> int:
        """Return the kind of a union of these types."""
        kind, free = 0, FREE
        for t in types:
            bits = self.kind_of(t)
            kind |= bits & ~FREE
            if bits & OP:
                free &= bits
        return kind | free if kind & OP else kind

    def _kind_of_container(self, types: Iterable[Type]) -> int:
        """Return the kind of a container of these types. Passing a container on does not move its items."""
        kind = 0
        for t in types:
            inner = self.kind_of(t)
            kind |= CONTAINS_OPS if inner & (OP | CONTAINS_OPS) else 0
            kind |= CONTAINS_FLOWS if inner & (FLOW | CONTAINS_FLOWS) else 0
            kind |= 0 if inner & FREE else inner & LOANS
        return kind

    def _kind_of_instance(self, t: Instance) -> int:
        info = t.type
        name = info.fullname
        if (handle := _HANDLES.get(name)) is not None:
            return handle
        if name == names.PARTITION:
            return HANDLE | MOVES | (self.kind_of(t.args[0]) & LOANS if t.args else 0)
        if name == names.DEVICE_OP or info.has_base(names.DEVICE_OP):
            return self._kind_of_op(t)
        if name == names.FLOW:
            return FLOW
        if name == names.FEED:
            return FEED
        if name in (names.CUDA_GRAPH, names.SCOPE):
            return 0  # each launch takes the locks again; between launches nothing is lent
        kind = self._kind_of_container(t.args) if t.args else 0
        if name == names.PARTIAL:
            return kind | LOANS | SPENDABLE
        if name in names.SUSPENDED:
            return kind | LOANS
        return kind if info.module_name in names.PLAIN_MODULES else kind | self._loans_in_attributes(info)

    def _kind_of_op(self, t: Instance) -> int:
        if len(t.args) == 3 and not self.kind_of(t.args[0]) & LOANS:
            free = get_proper_type(t.args[1])
            if isinstance(free, Instance) and free.type.fullname == names.STATIC:
                return OP | _HELD_BY_OPS | FREE
        return OP | _HELD_BY_OPS

    def may_own(self, t: Type | None) -> bool:
        """Return True if a value of this type is, or may hold, a handle that moves when it is passed on."""
        if t is None:
            return False
        owns = self._owning.get(t)
        if owns is None:
            self._owning[t] = False  # for a type that contains itself
            owns = self._owning[t] = self._compute_may_own(get_proper_type(t))
        return owns

    def _compute_may_own(self, t: ProperType) -> bool:
        match t:
            case Instance():
                if self.kind_of(t) & MOVES or any(map(self.may_own, t.args)):
                    return True
                if t.type.fullname in _HANDLES or t.type.module_name in names.PLAIN_MODULES:
                    return False
                return not t.type.module_name.startswith("dagpu.") and any(map(self.may_own, _attribute_types(t.type)))
            case TupleType() | UnionType():
                return any(map(self.may_own, t.items))
            case TypedDictType():
                return any(map(self.may_own, t.items.values()))
            case TypeVarType():
                return self.may_own(t.upper_bound)
            case _:
                return False

    def _loans_in_attributes(self, info: TypeInfo) -> int:
        """Return the loans that an object of a user-defined class may keep in its attributes."""
        known = self._classes.get(info)
        if known is None:
            known = self._classes[info] = 0  # for a class that refers to itself
            for t in _attribute_types(info):
                known |= self.kind_of(t) & LOANS
            self._classes[info] = known
        return known

    # ---- calls

    def takes(self, formal: Type, argument: int, result: Type) -> bool:
        """Return True if a parameter of this type takes an argument of this kind by value.

        A parameter of a type variable does if the result may hold the argument: `value(x: T) -> DeviceOp[T]` does,
        `log(x: T) -> None` does not.
        """
        t = get_proper_type(formal)
        match t:
            case TypeVarType():
                return not argument & MOVES or any(t.id == other.id for other in get_type_vars(result))
            case UnpackType():
                return True
            case AnyType():
                return False
            case UnionType():
                return any(self.takes(item, argument, result) for item in t.items)
            case Instance() if t.type.fullname == "builtins.object":
                return False
            case _:
                return not argument & MOVES or bool(self.kind_of(t) & MOVES)

    def accepted(self, formal: Type) -> int:
        """Return what a parameter of this type accepts beside an owned handle: see `Move.accepts`."""
        t = get_proper_type(formal)
        if isinstance(t, UnionType):
            found = 0
            for item in t.items:
                found |= self.accepted(item)
            return found
        if isinstance(t, NoneType) or not isinstance(t, Instance) or t.type.fullname == "builtins.object":
            return 0 if isinstance(t, NoneType) else ANY_FORM
        return {names.TENSOR_REF: LOAN, names.SHARED_TENSOR: SHARES, names.SHARDED_REF: LOAN}.get(t.type.fullname, 0)


def _attribute_types(info: TypeInfo) -> Iterator[Type | None]:
    """Iterate over the types of the attributes of a class and its bases, without those of plain modules."""
    for base in info.mro:
        if base.module_name not in names.PLAIN_MODULES:
            for symbol in base.names.values():
                if isinstance(symbol.node, Var):
                    yield symbol.node.type


# ---- classes, literals and members


def instance_of(t: Type | None) -> Instance | None:
    """Return a type of a class, or of the class that a tuple falls back to: that of a named tuple; else None."""
    proper = get_proper_type(t)
    if isinstance(proper, TupleType):
        return proper.partial_fallback
    return proper if isinstance(proper, Instance) else None


def class_name(t: Type | None) -> str:
    """Return the full name of the class of a type; empty for a type that is none of a class."""
    proper = get_proper_type(t)
    return proper.type.fullname if isinstance(proper, Instance) else ""


def literal_of(t: Type | None) -> LiteralType | None:
    """Return the literal that the values of a type are: of a literal type, or of a `Final`; else None."""
    proper = get_proper_type(t)
    if isinstance(proper, Instance):
        proper = proper.last_known_value
    return proper if isinstance(proper, LiteralType) else None


def member_of(info: TypeInfo | None, name: str) -> SymbolNode | None:
    """Return what a name stands for in a class or a base of it; None if it has no such name."""
    symbol = None if info is None else info.get(name)
    return None if symbol is None else symbol.node


def method_name(t: Type | None, name: str) -> str | None:
    """Return the full name of a method, qualified by the class that defines it; None if there is none."""
    proper = get_proper_type(t)
    match proper:
        case Instance():
            info = proper.type.get_containing_type_info(name)
            return None if info is None else f"{info.fullname}.{name}"
        case UnionType():
            found = (method_name(item, name) for item in proper.items)
            return next((full for full in found if full is not None), None)
        case TypeVarType():
            return method_name(proper.upper_bound, name)
        case TupleType():
            return method_name(proper.partial_fallback, name)
        case TypeType():
            return method_name(proper.item, name)
        case FunctionLike() if proper.is_type_obj():
            info = proper.type_object().get_containing_type_info(name)
            return None if info is None else f"{info.fullname}.{name}"
        case _:
            return None


def attribute_type(t: Type | None, name: str) -> Type | None:
    """Return the declared type of an attribute; None if it is not a variable."""
    instance = instance_of(t)
    node = None if instance is None else member_of(instance.type, name)
    return node.type if isinstance(node, Var) else None


def _is_variable(node: SymbolNode | None) -> TypeGuard[Var]:
    """Return True for a variable, and False for a descriptor: what its `__get__` returns is computed at each access.

    A field of a frozen class is a variable too, although mypy marks it as a property: it cannot be assigned.
    """
    if not isinstance(node, Var):
        return False
    t = get_proper_type(node.type)
    return not (isinstance(t, Instance) and t.type.has_readable_member("__get__"))


def class_variable(t: Type | None, name: str) -> Var | None:
    """Return the variable of a class that an attribute names: `Model.table`, or `self.table` for a `ClassVar`.

    Return None for a variable of the instance, and for an attribute that is computed.
    """
    proper = get_proper_type(t)
    of_class = True
    match proper:
        case TypeType():
            proper = get_proper_type(proper.item)
        case CallableType() | Overloaded() if proper.is_type_obj():
            node = member_of(proper.type_object(), name)
            return node if _is_variable(node) else None
        case _:
            of_class = False
    if isinstance(proper, TypeVarType):
        proper = get_proper_type(proper.upper_bound)
    if not isinstance(proper, Instance):
        return None
    node = member_of(proper.type, name)
    return node if _is_variable(node) and (of_class or node.is_classvar) else None


def is_stored(t: Type | None, name: str) -> bool:
    """Return True if an attribute of this type is a plain variable, not one computed by a property, a descriptor or
    `__getattr__`."""
    proper = get_proper_type(t)
    match proper:
        case Instance():
            return _is_variable(member_of(proper.type, name))
        case TupleType():
            return is_stored(proper.partial_fallback, name)
        case TypeVarType():
            return is_stored(proper.upper_bound, name)
        case UnionType():
            return all(is_stored(item, name) for item in proper.items)
        case _:
            return False


def signatures(t: Type | None) -> list[CallableType]:
    """Return the call signatures of a value of this type."""
    proper = get_proper_type(t)
    match proper:
        case CallableType():
            return [proper]
        case Overloaded():
            return list(proper.items)
        case UnionType():
            return [signature for item in proper.items for signature in signatures(item)]
        case Instance():
            method = proper.type.get_method("__call__")
            if isinstance(method, FuncBase) and isinstance(method.type, FunctionLike):
                return signatures(bind_self(method.type, proper))
            return []
        case _:
            return []
