"""What a value of a type can do: move, hold loans, be an op. Read off types alone.

Types are what mypy keeps in its cache; syntax trees of other modules are gone when those come from it.
"""

from collections.abc import Iterable
from typing import Final

from mypy.nodes import FuncBase, TypeInfo, Var
from mypy.typeops import bind_self, get_type_vars
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    Overloaded,
    ProperType,
    TupleType,
    Type,
    TypeVarType,
    UnionType,
    UnpackType,
    get_proper_type,
)

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.flow.graph import EVERYTHING, EXCLUSIVE, LOANS, SHARED

MOVES: Final = 8
"""Passing it on by value moves it."""
OP: Final = 16
"""It is an op."""
HANDLE: Final = 32
"""It is a handle of any sort."""
CONTAINS_OPS: Final = 64
"""It is a tuple or list of ops."""
FREE: Final = 128
"""It is an op whose type says that it holds no loans: only what a closure in it captures."""

_HANDLES: Final = {
    names.TENSOR: HANDLE | MOVES,
    names.SHARED_TENSOR: HANDLE,
    names.TENSOR_REF: HANDLE | SHARED,
    names.TENSOR_MUT: HANDLE | MOVES | EXCLUSIVE,
}


class Kinds:
    """The kinds of types, remembered for as long as one module is looked at."""

    def __init__(self) -> None:
        self._known: dict[Type, int] = {}
        self._classes: dict[TypeInfo, int] = {}

    def of(self, t: Type | None) -> int:
        """The bits of a type; 0 for None and for all that has nothing to do with handles."""
        if t is None:
            return 0
        kind = self._known.get(t)
        if kind is None:
            self._known[t] = 0  # for a type that contains itself
            kind = self._known[t] = self._kind(get_proper_type(t))
        return kind

    def _kind(self, t: ProperType) -> int:
        match t:
            case Instance():
                return self._instance(t)
            case TupleType():
                return self._contents(t.items)
            case UnionType():
                return self._union(t.items)
            case TypeVarType():
                return self.of(t.upper_bound)
            case FunctionLike():
                return LOANS
            case _:
                return 0

    def _union(self, types: Iterable[Type]) -> int:
        """Of something that is one of these."""
        kind, free = 0, FREE
        for t in types:
            one = self.of(t)
            kind |= one & ~FREE
            if one & OP:
                free &= one
        return kind | free if kind & OP else kind

    def _contents(self, types: Iterable[Type]) -> int:
        """Of something that contains these: passing a container on does not move what is in it."""
        kind = 0
        for t in types:
            inner = self.of(t)
            kind |= CONTAINS_OPS if inner & (OP | CONTAINS_OPS) else 0
            kind |= 0 if inner & FREE else inner & LOANS
        return kind

    def _instance(self, t: Instance) -> int:
        info = t.type
        name = info.fullname
        if (handle := _HANDLES.get(name)) is not None:
            return handle
        if name == names.PARTITION:
            return HANDLE | MOVES | (self.of(t.args[0]) & LOANS if t.args else 0)
        if name == names.DEVICE_OP or info.has_base(names.DEVICE_OP):
            return self._op(t)
        if name in (names.CUDA_GRAPH, names.SCOPE):
            return 0  # each launch takes the locks anew; between launches nothing is lent
        kind = self._contents(t.args) if t.args else 0
        if name in names.SUSPENDED:
            return kind | LOANS
        return kind if info.module_name in names.PLAIN_MODULES else kind | self._class(info)

    def _op(self, t: Instance) -> int:
        if len(t.args) == 3 and not self.of(t.args[0]) & LOANS:
            free = get_proper_type(t.args[1])
            if isinstance(free, Instance) and free.type.fullname == names.STATIC:
                return OP | EVERYTHING | FREE
        return OP | EVERYTHING

    def _class(self, info: TypeInfo) -> int:
        """Does an object of a class of the user's keep loans in its attributes?"""
        known = self._classes.get(info)
        if known is None:
            known = self._classes[info] = 0  # for a class that refers to itself
            for base in info.mro:
                if base.module_name in names.PLAIN_MODULES:
                    continue
                for symbol in base.names.values():
                    if isinstance(symbol.node, Var):
                        known |= self.of(symbol.node.type) & LOANS
            self._classes[info] = known
        return known

    # ---- calls

    def takes(self, formal: Type, argument: int, result: Type) -> bool:
        """Does a parameter of this type take an argument of this kind by value?

        One of a type variable does if the result may hold it: `value(x: T) -> DeviceOp[T]`, not `log(x: T) -> None`.
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
                return not argument & MOVES or bool(self.of(t) & MOVES)


def method_name(t: Type | None, name: str) -> str | None:
    """The full name of a method, after the class that defines it."""
    proper = get_proper_type(t) if t is not None else None
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
        case _:
            return None


def is_stored(t: Type | None, name: str) -> bool:
    """Is an attribute of this type a plain variable, not computed by a property or by `__getattr__`?"""
    proper = get_proper_type(t) if t is not None else None
    match proper:
        case Instance():
            symbol = proper.type.get(name)
            if symbol is None or not isinstance(symbol.node, Var):
                return False
            return proper.type.is_named_tuple or not symbol.node.is_property
        case TupleType():
            return is_stored(proper.partial_fallback, name)
        case TypeVarType():
            return is_stored(proper.upper_bound, name)
        case UnionType():
            return all(is_stored(item, name) for item in proper.items)
        case _:
            return False


def signatures(t: Type | None) -> list[CallableType]:
    """The ways of calling a value of this type."""
    proper = get_proper_type(t) if t is not None else None
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


__all__ = ["CONTAINS_OPS", "FREE", "HANDLE", "MOVES", "OP", "Kinds", "is_stored", "method_name", "signatures"]
