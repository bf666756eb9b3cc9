"""Tokens of values, which are equal exactly where no program can distinguish the values.

First those of plain values. Then those of arguments that have no place for inputs: ranges, slices, sets, frozen
dataclasses, functions and classes. Last the test for functions that a plan may call in every run.
"""

import dis
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, EnumMeta
from functools import cached_property, lru_cache, partial
from operator import attrgetter, itemgetter, methodcaller
from struct import Struct
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    EllipsisType,
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

from dagpu.common.layout import SUPPORTED
from dagpu.common.pickling import PickledByName
from dagpu.handles.device_handles import Device
from dagpu.handles.symbolic import SymbolicNumber

PLAIN: Final = frozenset(
    {bool, int, float, complex, str, bytes, type(None), EllipsisType}
    | {np.dtype(element).type for element in SUPPORTED}
)
"""The types of immutable values that refer to no other objects."""

COMPARABLE: Final = frozenset((bool, int, str, bytes, type(None)))
"""The types among these of which no program can distinguish equal values of one type. The float 0.0 equals -0.0."""

_NAMED: Final = (Device, np.dtype)
"""The classes of objects that are in a key by their identity."""

_FIXED: Final = frozenset(("dagpu", "numpy"))

_FIXED_TYPE: Final = 1 << 8
"""The flag of a class whose attributes cannot be set (`Py_TPFLAGS_IMMUTABLETYPE`)."""

_INT: Final = frozenset((int,))

DEEPEST: Final = 20
"""The depth to which nested tuples, lists and dicts are inspected."""

_bits: Final = Struct("d").pack
"""Packs a float into its bytes. `float.hex` would call each NaN 'nan'."""


def is_fixed(value: Any, depth: int = 0) -> bool:
    """Return true for a value that cannot be changed in place, as far as it is inspected."""
    if is_tuple(value):
        return depth < DEEPEST and all(is_fixed(item, depth + 1) for item in value)
    return type(value) in PLAIN


def is_named(value: object) -> bool:
    """Return true for a value that is in a key by its identity: it never changes. A class of the program is none, since
    its attributes may be set."""
    return isinstance(value, _NAMED) or (isinstance(value, type) and is_foreign(value))


def is_foreign(owner: "type[Any] | ModuleType") -> bool:
    """Return true for a class or a module of Python, of dagpu or of an installed package, to which a program does
    nothing."""
    if isinstance(owner, type):
        return bool(owner.__flags__ & _FIXED_TYPE) or _is_installed(owner.__module__)
    return _is_installed(owner.__name__)


@lru_cache(maxsize=1024)
def _is_installed(module: str) -> bool:
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or root in _FIXED:
        return True
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def _is_fixed(module: object) -> bool:
    """Return true for the name of a module of dagpu or of NumPy: what its functions read is the same in each run."""
    return type(module) is str and module.partition(".")[0] in _FIXED


def is_tuple(value: Any) -> bool:
    """Return true for a plain tuple, and for a named tuple that has no attributes except its fields."""
    return type(value) is tuple or (
        isinstance(value, tuple) and hasattr(value, "_fields") and not _has_attributes(value)
    )


def _has_attributes(value: object) -> bool:
    """Return true for an object that has attributes in a `__dict__`."""
    return bool(getattr(value, "__dict__", None))


def exact_token(value: Any) -> Hashable:
    """Return the token of a plain value. Equal tokens mean the same type and bits: 0.0 and -0.0 differ, True and 1
    differ, and two NaNs are equal only with the same sign and payload."""
    kind = type(value)
    if kind is float:
        return float, _bits(value)
    if kind is complex:
        return complex, _bits(value.real), _bits(value.imag)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    return kind, value


def field_token(value: Any) -> Hashable:
    """Return the token of a plain value, or of a tuple of plain values; None for any other value. Equal tokens mean the
    same types and bits."""
    if type(value) in PLAIN:
        return exact_token(value)
    if type(value) is not tuple or not PLAIN.issuperset(map(type, value)):
        return None
    return value if _INT.issuperset(map(type, value)) else tuple(map(exact_token, value))


# ---- fixed tokens
#
# Tokens of arguments that have no place for inputs: ranges, slices, sets, frozen dataclasses, functions and classes.
#
# Equal tokens mean that no trace can tell the values apart, so there is a plan for each such value. What is not
# immutable by its type is read each time. Of a function that is what its code names: variables, defaults, and
# attributes of modules and classes. Of a class it is all of its attributes, since any function may read them; the
# class of a member of an enumeration, or of a dataclass, is read too. A value that holds anything else (a handle, an
# array, an object of the user's, a module of the program) has none.

Identity: TypeAlias = Callable[[object], int]
"""Returns the token of an object that does not change, which is equal to that of the same object alone."""

_BY_IDENTITY: Final = (np.ufunc, PickledByName, CodeType)
"""The classes of objects that are compared by identity: kernels, expressions and pipelines among them."""

_GETTERS: Final = frozenset((itemgetter, attrgetter, methodcaller))
"""The classes of functions that Python's `operator` makes: what they hold does not change."""

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
        if isinstance(value, _BY_IDENTITY) or is_named(value):
            return kind, self._unchanging(value, depth)
        if isinstance(value, (ModuleType, type, Enum)):
            return self._named(value)
        if depth == DEEPEST:
            raise _NoTokenError
        if _is_fixed(getattr(value, "__module__", None)) and is_found_by_name(value):
            return kind, self._identity(value)
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
        if kind in _GETTERS:
            return kind, self._all(value.__reduce__(), depth)
        return kind, self._identity(kind), self._record(value, depth), self._class(kind)

    def _unchanging(self, value: object, depth: int) -> Hashable:
        """Return the identity of an object that does not change; of one that a method makes anew in each call, what it
        is made of."""
        made_of = value.made_of if isinstance(value, PickledByName) else None
        return self._identity(value) if made_of is None else self.of(made_of, depth + 1)

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
        if _is_fixed(f.__globals__.get("__name__")):
            return FunctionType, self._identity(f.__code__), self._all((closed_over, f.__defaults__ or ()), depth)
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


# ---- stateless functions
#
# The test for functions of the user's that a plan may call in every run, although one trace received them.
#
# Without a plan, a pipeline's function is called for each run, and each call makes a new function for `host_map`. With
# a plan, one function serves all runs. So a call of it must leave no state behind that the next call can see.

_MAY_CLOSE_OVER: Final = frozenset({bool, int, float, complex, str, bytes, type(None), SymbolicNumber})
"""The types of values that a stateless function may close over. A number among the pipeline's arguments is allowed: the
caller records it as read, so it is the same in all runs of the plan."""


def is_stateless(f: object) -> bool:
    """Return true if calling this function in each run has the same effect as calling a new copy of it in each run.

    A function that its module has under its own name passes: each trace would find that same object. Any other function
    must meet four conditions. Its closure and its defaults hold only numbers, texts, modules, and functions and classes
    that have such names. It assigns to none of its enclosing variables (`nonlocal`). It has no attributes; since it
    cannot reach itself, it gets none later. Its globals are those of a module, because `eval` and `exec` may make
    globals that differ in each run.
    """
    if is_found_by_name(f) or type(f) is itemgetter or type(f) is attrgetter:
        return True
    if type(f) is not FunctionType or f.__dict__ or not _are_module_globals(f.__globals__):
        return False
    captured = _captured(f)
    if captured is None or not all(
        type(item) in _MAY_CLOSE_OVER or _is_imported_module(item) or is_found_by_name(item) for item in captured
    ):
        return False
    return not f.__code__.co_freevars or not any(_assignments(f.__code__, frozenset(f.__code__.co_freevars)))


def closed_over_numbers(f: object) -> list[SymbolicNumber]:
    """Return the numbers among a pipeline's arguments over which a stateless function closes."""
    found = (_captured(f) if type(f) is FunctionType else None) or ()
    return [item for item in found if type(item) is SymbolicNumber]


def _captured(f: FunctionType) -> list[Any] | None:
    """Return the values in the closure and the defaults of a function; None if a variable is not assigned yet."""
    try:
        captured = [cell.cell_contents for cell in f.__closure__ or ()]
    except ValueError:
        return None
    return [*captured, *(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]


def _is_imported_module(item: Any) -> bool:
    """Return true for a module that an import finds, and false for a module that a run has made for itself."""
    if type(item) is not ModuleType:
        return False
    name = item.__dict__.get("__name__")
    return type(name) is str and sys.modules.get(name) is item


def _are_module_globals(names: dict[str, Any]) -> bool:
    """Return true if these are the globals of a module that an import finds."""
    name = names.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return getattr(module, "__dict__", None) is names


def is_found_by_name(item: Any) -> bool:
    """Return true for a function or class that its module has under its own name."""
    if type(item) is BuiltinFunctionType:
        return item.__self__ is None or _is_imported_module(item.__self__)  # not a method of an object
    module, path = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    if type(module) is not str or type(path) is not str:
        return False
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is item


def _assignments(code: CodeType, names: frozenset[str]) -> Iterator[bool]:
    """Yield, for each instruction of a function and of the functions nested in it, true if it assigns to one of these
    variables."""
    for instruction in dis.get_instructions(code):
        yield instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _assignments(inner, names)
