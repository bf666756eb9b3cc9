"""Tables of the hooks that mypy calls while it infers types, by the full name of a function or method.

Each module of the typing rules has tables of its own. Hooks of several modules for one name run in the order of
`RULES`, and each gets the type that the previous one inferred.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from mypy.plugin import FunctionContext, MethodContext, MethodSigContext
from mypy.types import FunctionLike, Type

from dagpu.mypy_plugin.shapes import handle_shapes, output_partition
from dagpu.mypy_plugin.typing import argument_checks, kernel_calls, op_parameters

FunctionHook: TypeAlias = Callable[[FunctionContext], Type]
MethodHook: TypeAlias = Callable[[MethodContext], Type]
SignatureHook: TypeAlias = Callable[[MethodSigContext], FunctionLike]

RULES = (kernel_calls, handle_shapes, op_parameters, output_partition, argument_checks)
"""The modules of the typing rules: first those that infer the result, then those that narrow it or check the call."""


def _functions(hooks: Iterable[FunctionHook]) -> FunctionHook:
    first, *others = hooks
    if not others:
        return first

    def ask(context: FunctionContext) -> Type:
        for hook in (first, *others):
            context = context._replace(default_return_type=hook(context))
        return context.default_return_type

    return ask


def _methods(hooks: Iterable[MethodHook]) -> MethodHook:
    first, *others = hooks
    if not others:
        return first

    def ask(context: MethodContext) -> Type:
        for hook in (first, *others):
            context = context._replace(default_return_type=hook(context))
        return context.default_return_type

    return ask


FUNCTION_HOOKS: dict[str, FunctionHook] = {
    name: _functions(rule.FUNCTION_HOOKS[name] for rule in RULES if name in rule.FUNCTION_HOOKS)
    for name in {name for rule in RULES for name in rule.FUNCTION_HOOKS}
}
ARRAY_FUNCTION_HOOK: FunctionHook = op_parameters.type_new_output
"""The hook for the functions of `dagpu.array`."""
METHOD_HOOKS: dict[str, MethodHook] = {
    name: _methods(rule.METHOD_HOOKS[name] for rule in RULES if name in rule.METHOD_HOOKS)
    for name in {name for rule in RULES for name in rule.METHOD_HOOKS}
}
FUNCTION_SIGNATURE_HOOKS = argument_checks.FUNCTION_SIGNATURE_HOOKS
"""Hooks for the signatures of functions."""
SIGNATURE_HOOKS: dict[str, SignatureHook] = {
    name: hook for rule in RULES for name, hook in rule.SIGNATURE_HOOKS.items()
}
"""Hooks for the signatures of methods; each method has at most one."""
