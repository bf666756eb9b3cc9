"""What the type of a kernel remembers of its CUDA source: the ranks of its parameters.

They travel as extra attributes of the type, under names that no user can write. mypy keeps those in its cache, so they
are there where a kernel is imported and the file that declares it is not read again. And they play no part in whether
one type fits another: a parameter `k: Kernel[[Out[f32]]]` takes kernels of every rank.
"""

from mypy.nodes import AssignmentStmt, Decorator, Expression, MypyFile, NameExpr, RefExpr, StrExpr, Var
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import CallableType, Instance, LiteralType, Type, get_proper_type

from dagpu.mypy_plugin import forms
from dagpu.mypy_plugin.cuda_ranks import Ranks, kernel_ranks

_PREFIX = "CUDA ranks of "


def remember(context: FunctionContext) -> Type:
    """`kernel(cuda=...)`: the decorator, whose kernel remembers the ranks of all kernels in the source.

    Of all, for which function is decorated is not known yet.
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


def hand_on(context: MethodContext) -> Type:
    """`kernel.grid(...)` and the like: a copy that remembers the same."""
    before, after = context.type, get_proper_type(context.default_return_type)
    if isinstance(before, Instance) and before.extra_attrs and isinstance(after, Instance):
        for name, fact in before.extra_attrs.attrs.items():
            after = after.copy_with_extra_attr(name, fact)
    return after


def ranks_of(callee: Expression, kernel: Type) -> Ranks:
    """The ranks that the CUDA source of a called kernel declares; empty where they are not known.

    Only a kernel that is called under the name of its `def` has any: a variable may hold now one, now another.
    """
    base = forms.base_kernel(callee)
    node = base.node if isinstance(base, RefExpr) else None
    proper = get_proper_type(kernel)
    if not isinstance(node, Decorator) or not isinstance(proper, Instance) or not proper.extra_attrs:
        return ()
    fact = proper.extra_attrs.attrs.get(_PREFIX + node.name)
    if not isinstance(fact, LiteralType) or not isinstance(fact.value, str):
        return ()
    return tuple([int(rank) if rank else None for rank in fact.value.split(",")])


def _source(context: FunctionContext) -> str | None:
    """The CUDA source, if it is a literal here or in a constant of this file, and the kernel takes tiles and views."""
    given = {
        name: (types[0], places[0])
        for name, types, places in zip(context.callee_arg_names, context.arg_types, context.args, strict=True)
        if types and name is not None
    }
    if "abi" in given and _literal(given["abi"][0]) != "views":
        return None
    if "cuda" not in given:
        return None
    type_, place = given["cuda"]
    text = _literal(type_)
    if text is None and isinstance(place, NameExpr) and isinstance(place.node, Var):
        text = _constant(place.node, context)
    return text


def _literal(type_: Type) -> str | None:
    """The text that a type says it is: of a literal, or of a `Final`."""
    proper = get_proper_type(type_)
    if isinstance(proper, Instance) and proper.last_known_value is not None:
        proper = proper.last_known_value
    return proper.value if isinstance(proper, LiteralType) and isinstance(proper.value, str) else None


def _constant(variable: Var, context: FunctionContext) -> str | None:
    """The text of a variable that this file sets once, at its top."""
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
