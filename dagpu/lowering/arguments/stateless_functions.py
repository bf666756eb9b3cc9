"""The test for functions of the user's that a plan may call in every run, although one trace received them.

Without a plan, a pipeline's function is called for each run, and each call makes a new function for `host_map`. With a
plan, one function serves all runs. So a call of it must leave no state behind that the next call can see.
"""

import dis
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from dagpu.handles.symbolic import SymbolicNumber

_IMMUTABLE: Final = frozenset({bool, int, float, complex, str, bytes, type(None), SymbolicNumber})
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
    if is_found_by_name(f):
        return True
    if type(f) is not FunctionType or f.__dict__ or not _are_module_globals(f.__globals__):
        return False
    captured = _captured(f)
    if captured is None or not all(
        type(item) in _IMMUTABLE or _is_imported_module(item) or is_found_by_name(item) for item in captured
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
