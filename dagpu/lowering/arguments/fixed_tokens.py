"""Tokens of arguments that have no place for inputs: ranges, slices, sets, frozen dataclasses, functions and classes.

Equal tokens mean that no trace can tell the values apart, so there is a plan for each such value. What is not immutable
by its type is read each time. Of a function that is what its code names: variables, defaults, and attributes of modules
and classes. Of a class it is all of its attributes, since any function may read them; the class of a member of an
enumeration, or of a dataclass, is read too. A value that holds anything else (a handle, an array, an object of the
user's, a module of the program) has none.
"""

import dis
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, EnumMeta
from functools import cached_property, lru_cache, partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final, TypeAlias, final

import numpy as np

from dagpu.common.pickling import PickledByName
from dagpu.lowering.arguments.exact_tokens import DEEPEST, PLAIN, exact_token, is_foreign, is_named, is_tuple
from dagpu.lowering.arguments.stateless_functions import is_found_by_name

Identity: TypeAlias = Callable[[object], int]
"""Returns the token of an object that does not change, which is equal to that of the same object alone."""

_IMMUTABLE: Final = (np.ufunc, PickledByName)
"""The classes of objects that are compared by identity: kernels, expressions and pipelines among them."""

_DESCRIPTORS: Final = (
    GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType,
)  # fmt: skip
"""The classes of attributes of classes that are written in C."""

_NAMESPACES: Final = frozenset(("globals", "locals", "vars", "eval", "exec", "__import__", "__builtins__"))
"""Functions that find variables whose names no code shows."""


def fixed_token(value: object, identity: Identity) -> Hashable:
    """Return the token of a value; None if it has none."""
    tokens = _Tokens(identity)
    try:
        return tokens.of(value), tokens.of_attributes()
    except _NoTokenError:
        return None


class _NoTokenError(Exception):
    """Raised for a value without a token."""


@final
class _Tokens:
    """The walk over one value."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._functions: dict[int, int] = {}
        """The number of each function so far, by its id: a function may refer to itself."""
        self._open: dict[int, ModuleType | type[Any]] = {}
        """The modules and classes so far, by their ids: the functions may read their attributes."""
        self._attributes: dict[str, None] = {}
        """The names of attributes that the functions may read, in order."""
        self._namespaces: set[int] = set()
        """The ids of the global variables of the functions."""
        self._classes: set[int] = set()
        """The ids of the classes whose attributes have been read."""
        self._inside = 0
        """In how many functions the walk is: they name the attributes that they read."""

    def of(self, value: Any, depth: int = 0) -> Hashable:
        kind = type(value)
        if kind in PLAIN:
            return exact_token(value)
        if isinstance(value, _IMMUTABLE) or is_named(value):
            return kind, self._identity(value)
        if isinstance(value, (ModuleType, type, Enum)):
            return self._named(value)
        if depth == DEEPEST:
            raise _NoTokenError
        if kind is range or kind is slice:
            return kind, self._all((value.start, value.stop, value.step), depth)
        if kind is frozenset or kind is set or kind is list or is_tuple(value):  # a trace may see the order of a set
            return kind, self._identity(kind), self._all(tuple(value), depth)
        if kind is dict:
            return dict, self._all(tuple(value), depth), self._all(tuple(value.values()), depth)
        if kind is FunctionType:
            return self._function(value, depth)
        if kind is MethodType:
            return kind, self.of(value.__func__, depth + 1), self.of(value.__self__, depth + 1)
        if kind is BuiltinFunctionType and is_found_by_name(value):
            return kind, self._identity(value)
        if kind is partial and not value.__dict__:
            names = tuple(value.keywords)
            return kind, self._all((value.func, *value.args), depth), names, self._all(value.keywords.values(), depth)
        return kind, self._identity(kind), self._record(value, depth), self._class(kind)

    def _all(self, values: Iterable[object], depth: int) -> tuple[Hashable, ...]:
        return tuple([self.of(each, depth + 1) for each in values])

    def _record(self, value: Any, depth: int) -> Hashable:
        """Return the token of the fields of a frozen dataclass that has no other state."""
        kind = type(value)
        if not is_dataclass(value) or not kind.__dataclass_params__.frozen:
            raise _NoTokenError
        names = [field.name for field in fields(value)]
        state = {name for base in kind.__mro__ for name in _slots_of(base)} - {"__dict__", "__weakref__"}
        state |= {
            name for name in getattr(value, "__dict__", ()) if type(getattr(kind, name, None)) is not cached_property
        }
        if not state <= set(names) or not all(hasattr(value, name) for name in names):
            raise _NoTokenError
        return self._all((getattr(value, name) for name in names), depth)

    def _named(self, value: ModuleType | type[Any] | Enum) -> Hashable:
        """Return the token of an object that has a name in the program, and attributes that may be set."""
        if isinstance(value, type):
            return type, self._identity(value), self._class(value)
        if isinstance(value, Enum):
            return Enum, self._identity(value), self._class(type(value)), self._member(value)
        if not (self._inside or is_foreign(value)):
            raise _NoTokenError
        self._open[id(value)] = value
        return ModuleType, self._identity(value)

    def _class(self, owner: type[Any]) -> Hashable:
        """Return the token of the attributes of a class: of those alone that they name, if functions read it."""
        if self._inside:
            self._open[id(owner)] = owner
        if self._inside or id(owner) in self._classes:
            return None
        self._classes.add(id(owner))
        found: list[Hashable] = []
        for base in owner.__mro__:
            if is_foreign(base):
                continue
            self._namespaces.add(id(vars(sys.modules.get(base.__module__, sys))))
            members: Mapping[str, Any] = getattr(base, "__members__", {}) if isinstance(base, EnumMeta) else {}
            for name, each in members.items():
                found.append((name, self._identity(each), self._member(each)))
            for name, each in tuple(vars(base).items()):
                if type(each) in PLAIN:
                    found.append((name, exact_token(each)))
                elif name not in members and not _is_made_by_python(base, name, each):
                    found.append((name, self._attribute(each)))
        return tuple(found)

    def _member(self, member: Enum) -> Hashable:
        """Return the token of what a member of an enumeration holds."""
        state = vars(member)
        if len(state) <= len(_OF_MEMBERS) and _OF_MEMBERS.issuperset(state):
            return self.of(member._value_, 1)
        return tuple([(name, self.of(each, 1)) for name, each in state.items() if name != "__objclass__"])

    def _function(self, f: FunctionType, depth: int) -> Hashable:
        """Return the token of a function: its code, and all that it reads and that may be another thing next time."""
        if id(f) in self._functions:
            return "function", self._functions[id(f)]
        self._functions[id(f)] = len(self._functions)
        self._inside += 1
        try:
            return self._read_by(f, depth)
        finally:
            self._inside -= 1

    def _read_by(self, f: FunctionType, depth: int) -> Hashable:
        try:
            closed_over = [cell.cell_contents for cell in f.__closure__ or ()]
        except ValueError:  # a variable that is not assigned yet
            raise _NoTokenError from None
        names, attributes, imported = names_of(f.__code__)
        if not _NAMESPACES.isdisjoint(names):
            raise _NoTokenError
        self._attributes |= dict.fromkeys(attributes)
        self._namespaces.add(id(f.__globals__))
        self._open |= {id(each): each for name in imported if (each := sys.modules.get(name)) is not None}
        read = [f.__globals__[name] for name in names if name in f.__globals__]
        found = tuple([name in f.__globals__ for name in names])
        named = tuple((f.__kwdefaults__ or {}).items())
        return (
            FunctionType, self._identity(f.__code__), found, self._identity(f.__globals__),
            f.__name__, f.__qualname__, f.__doc__, tuple([self._read(each, depth) for each in read]),
            self._all((closed_over, f.__defaults__ or (), named, f.__dict__), depth),
        )  # fmt: skip

    def _read(self, value: Any, depth: int) -> Hashable:
        """Return the token of a global variable or an attribute that a function reads. A function of another module
        counts by its identity, and so does what is written in C: what that reads is not of this program's making."""
        kind = type(value)
        foreign = kind is FunctionType and id(value.__globals__) not in self._namespaces
        if foreign or (kind is not FunctionType and not isinstance(value, type) and is_found_by_name(value)):
            return "named", self._identity(value)
        return self.of(value, depth + 1)

    def of_attributes(self) -> Hashable:
        """Return the tokens of the attributes of modules and classes that the functions may read: `settings.gain`, by
        whatever way they come to `settings`. What these refer to is looked at too."""
        found: dict[tuple[int, str], Hashable] = {}
        while todo := [
            (key, each)
            for place, owner in list(self._open.items())
            for name in self._attributes
            if (key := (place, name)) not in found and (each := _find(owner, name)) is not _ABSENT
        ]:
            for key, each in todo:
                found[key] = None
                found[key] = self._attribute(each)
        return tuple(found.items())

    def _attribute(self, value: Any) -> Hashable:
        if isinstance(value, (classmethod, staticmethod)):
            return type(value), self._read(value.__func__, 0)
        if type(value) is property:
            return property, self._all((value.fget, value.fset, value.fdel), 0)
        if type(value) is cached_property:
            return cached_property, self.of(value.func)
        if isinstance(value, _DESCRIPTORS):
            return "named", self._identity(value)
        return self._read(value, 0)


_ABSENT: Final = object()


def _find(owner: "ModuleType | type[Any]", name: str) -> object:
    """Return what a module or class has under this name, without a call of a descriptor."""
    if isinstance(owner, EnumMeta):
        return owner.__members__.get(name, _ABSENT)
    places = owner.__mro__ if isinstance(owner, type) else (owner,)
    return next((vars(each)[name] for each in places if name in vars(each)), _ABSENT)


_OF_MEMBERS: Final = frozenset(("_value_", "_name_", "__objclass__", "_sort_order_"))
"""The attributes that each member of an enumeration has."""


_METHODS: Final = frozenset((FunctionType, classmethod, staticmethod, property))


def _is_made_by_python(owner: type[Any], name: str, value: object) -> bool:
    """Return true for an attribute of a class that the statement `class`, a dataclass or an enumeration has made."""
    if name[:1] != "_" or name[-1:] != "_":
        return False
    if type(value) is FunctionType:
        return value.__code__.co_filename == "<string>" and (is_dataclass(owner) or issubclass(owner, tuple))
    return type(value) not in _METHODS


def describe_unreadable(value: object) -> str:
    """Return a description of a value that no key can have, for a warning."""
    kind = type(value).__name__
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, (type, Enum)):
        return f"{value!r}, which has attributes that are not all numbers, texts and functions"
    return f"a value of type {kind}{' whose keys are not all numbers and texts' if type(value) is dict else ''}"


def _slots_of(base: type[Any]) -> Iterable[str]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


_READS: Final = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))


@lru_cache(maxsize=1024)
def names_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of the global variables that a function reads, of the attributes that it may read, `getattr`
    with a text included, and of the modules that it imports, and of the functions nested in it."""
    variables = dict.fromkeys(each.argval for each in dis.get_instructions(code) if each.opname in _READS)
    imported = dict.fromkeys(each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
    attributes = dict.fromkeys(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, str):
            attributes[inner] = None
        elif isinstance(inner, CodeType):
            for known, found in zip((variables, attributes, imported), names_of(inner), strict=True):
                known.update(dict.fromkeys(found))
    return tuple(variables), tuple(attributes), tuple(imported)
