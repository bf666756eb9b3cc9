"""Functions of the user's that a plan may call in every run, though they were given in one trace.

Without a plan a pipeline's function is called for each run, and makes each time a new function for `host_map`. With a
plan one function serves all runs: so nothing that a call of it leaves behind may be seen by the next.
"""

import dis
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from dagpu.handles.symbolic import SymbolicNumber

_UNCHANGING: Final = frozenset({bool, int, float, complex, str, bytes, type(None), SymbolicNumber})
"""The types of values that a function may close over. A number among the pipeline's arguments is the same in all runs
of a plan that has it; the caller notes it as read."""


def is_stateless(f: object) -> bool:
    """Does it make no difference whether one function is called in each run, or a new one like it?

    It makes none where each run of the trace would have come by this very function: by its name in a module. Of any
    other, what it closes over and its defaults must be numbers, texts, modules, and things with such names; it must
    assign to none of its variables from outside (`nonlocal`), and have no attributes. It cannot reach itself then, so
    it gets none later. Its globals must be those of a module: `eval` and `exec` may have made it others for each run.
    """
    if _has_its_name(f):
        return True
    if type(f) is not FunctionType or f.__dict__ or not _are_of_a_module(f.__globals__):
        return False
    try:
        held = [cell.cell_contents for cell in f.__closure__ or ()]
    except ValueError:  # a cell that is still empty
        return False
    held += [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
    if not all(type(item) in _UNCHANGING or _is_module(item) or _has_its_name(item) for item in held):
        return False
    return not f.__code__.co_freevars or not any(_assigned(f.__code__, frozenset(f.__code__.co_freevars)))


def _is_module(item: Any) -> bool:
    """True for a module that an import finds, and false for one that a run has made for itself."""
    if type(item) is not ModuleType:
        return False
    name = item.__dict__.get("__name__")
    return type(name) is str and sys.modules.get(name) is item


def _are_of_a_module(names: dict[str, Any]) -> bool:
    """True if these are the globals of a module that an import finds."""
    name = names.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return getattr(module, "__dict__", None) is names


def _has_its_name(item: Any) -> bool:
    """True for a function or class that its module has under its own name."""
    if type(item) is BuiltinFunctionType:
        return item.__self__ is None or _is_module(item.__self__)  # and no method of some object
    module, path = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
    if type(module) is not str or type(path) is not str:
        return False
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is item


def _assigned(code: CodeType, names: frozenset[str]) -> Iterator[bool]:
    """For each instruction of a function and of those within it: does it assign to one of these variables?"""
    for instruction in dis.get_instructions(code):
        yield instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _assigned(inner, names)
