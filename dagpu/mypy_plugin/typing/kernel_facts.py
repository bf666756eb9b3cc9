"""Ranks of a kernel's parameters, parsed from its CUDA source and stored in the kernel's type.

The ranks are extra attributes of the type, under names that a user cannot write. mypy keeps extra attributes in its
cache, so a module that imports a kernel has them without reading the declaring file again. mypy ignores them in subtype
checks: a parameter `k: Kernel[[Out[f32]]]` takes kernels of every rank.
"""

import re
from typing import TypeAlias

from mypy.nodes import AssignmentStmt, Decorator, Expression, MypyFile, NameExpr, RefExpr, StrExpr, Var
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import CallableType, Instance, LiteralType, Type, get_proper_type

from dagpu.mypy_plugin.typing import argument_forms

# ---- ranks in a CUDA text

Ranks: TypeAlias = tuple[int | None, ...]
"""The rank of each parameter in order; None for a scalar and for an unknown rank."""

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()#]*)\)\s*[{;]")
_TENSOR = re.compile(r"(?:const\s+)?(?:(?:::\s*)?dagpu\s*::\s*)?(?:Tile|View)\s*<[^<>]*,\s*([1-9]\d*)\s*>\s*\w*")


def kernel_ranks(source: str) -> dict[str, Ranks]:
    """Return the parameter ranks of each kernel by name. Kernels declared more than once are left out."""
    code = _SKIPPED.sub(" ", source)
    macros = frozenset(_MACRO.findall(code))
    found: list[tuple[str, str]] = _KERNEL.findall(code)
    kernels = [name for name, _ in found]
    return {
        name: tuple(map(_rank, _parameters(inside)))
        for name, inside in found
        if kernels.count(name) == 1 and macros.isdisjoint(re.findall(r"\w+", inside))
    }


def _parameters(inside: str) -> list[str]:
    """Split a parameter list at the commas outside `<...>`."""
    parts = [part.strip() for part in re.split(r",(?![^<>]*>)", inside)]
    return [] if parts in ([""], ["void"]) else parts


def _rank(parameter: str) -> int | None:
    whole = _TENSOR.fullmatch(parameter)
    return None if whole is None else int(whole[1])


_PREFIX = "CUDA ranks of "


def attach_ranks(context: FunctionContext) -> Type:
    """Type `kernel(cuda=...)`: the kernel that this decorator makes has the ranks of all kernels in the source.

    The decorated function, and with it the one kernel that is meant, is not known yet.
    """
    decorator = get_proper_type(context.default_return_type)
    source = _source(context)
    if source is None or not isinstance(decorator, CallableType):
        return context.default_return_type
    kernel = get_proper_type(decorator.ret_type)
    if not isinstance(kernel, Instance):
        return context.default_return_type
    text = context.api.named_generic_type("builtins.str", [])
    for name, ranks in kernel_ranks(source).items():
        shown = ",".join("" if rank is None else str(rank) for rank in ranks)
        kernel = kernel.copy_with_extra_attr(_PREFIX + name, LiteralType(shown, text))
    return decorator.copy_modified(ret_type=kernel)


def copy_ranks(context: MethodContext) -> Type:
    """Type `kernel.grid(...)` and similar methods: the result has the ranks of the kernel."""
    before, after = context.type, get_proper_type(context.default_return_type)
    if isinstance(before, Instance) and before.extra_attrs and isinstance(after, Instance):
        for name, fact in before.extra_attrs.attrs.items():
            after = after.copy_with_extra_attr(name, fact)
    return after


def ranks_of(callee: Expression, kernel: Type) -> Ranks:
    """Return the ranks that the CUDA source of a called kernel declares; empty if they are unknown.

    They are known only for a kernel that is called by the name of its `def`. A variable may hold different kernels at
    different times.
    """
    base = argument_forms.base_kernel(callee)
    node = base.node if isinstance(base, RefExpr) else None
    return ranks_named(node.name, kernel) if isinstance(node, Decorator) else ()


def ranks_named(name: str, kernel: Type) -> Ranks:
    """Return the ranks that the CUDA source declares for the kernel of this name; empty if they are unknown."""
    proper = get_proper_type(kernel)
    if not isinstance(proper, Instance) or not proper.extra_attrs:
        return ()
    fact = proper.extra_attrs.attrs.get(_PREFIX + name)
    if not isinstance(fact, LiteralType) or not isinstance(fact.value, str):
        return ()
    return tuple([int(rank) if rank else None for rank in fact.value.split(",")])


def _source(context: FunctionContext) -> str | None:
    """Return the CUDA source of a kernel that takes tiles and views, if it is a literal or a constant of this file."""
    given = {
        name: (types[0], places[0])
        for name, types, places in zip(context.callee_arg_names, context.arg_types, context.args, strict=True)
        if types and name is not None
    }
    if "abi" in given and _string_of(given["abi"][0]) != "views":
        return None
    if "cuda" not in given:
        return None
    type_, place = given["cuda"]
    text = _string_of(type_)
    if text is None and isinstance(place, NameExpr) and isinstance(place.node, Var):
        text = _string_of_constant(place.node, context)
    return text


def _string_of(type_: Type) -> str | None:
    """Return the string of a literal type or a `Final`; None for other types."""
    proper = get_proper_type(type_)
    if isinstance(proper, Instance) and proper.last_known_value is not None:
        proper = proper.last_known_value
    return proper.value if isinstance(proper, LiteralType) and isinstance(proper.value, str) else None


def _string_of_constant(variable: Var, context: FunctionContext) -> str | None:
    """Return the string of a variable that this file assigns exactly once, at its top level; None for others."""
    file = getattr(context.api, "tree", None)
    if not isinstance(file, MypyFile):
        return None
    values = [
        statement.rvalue
        for statement in file.defs
        if isinstance(statement, AssignmentStmt)
        for place in statement.lvalues
        if isinstance(place, NameExpr) and place.node is variable
    ]
    return values[0].value if len(values) == 1 and isinstance(values[0], StrExpr) else None
