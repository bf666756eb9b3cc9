"""The result of a call: the facts that it holds, and the run of an op."""

from mypy.nodes import CallExpr, Expression, LambdaExpr, NameExpr
from mypy.types import UninhabitedType, get_proper_type

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.control_flow import EVERYTHING, FEED, LOANS, SPENDABLE, Build, Run, Slot
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder
from dagpu.mypy_plugin.ownership.lower.calls.callee import Callee
from dagpu.mypy_plugin.ownership.lower.places import function_of
from dagpu.mypy_plugin.typing.type_facts import FREE, MOVES, OP, signatures


def build_result(
    b: GraphBuilder, e: CallExpr, callee: Callee, parts: list[Slot], arguments: list[Slot | None], owns: bool
) -> Slot | None:
    t = b.types.get(e)
    kind = b.kinds.kind_of(t)
    if callee.name in names.RUNS and parts:
        b.emit(Run(e, parts[0]))
    for run in arguments[-1:] if callee.name == names.SPAWN else [arguments[i] for i in callee.runs]:
        if run is not None:
            b.emit(Run(e, run))
    for run in [arguments[i] for i in callee.repeats]:
        if run is not None:
            b.emit(Run(e, run, calls=True))
            b.emit(Run(e, run, calls=True))
    result: Slot | None = None
    keeps = kind & EVERYTHING
    captures = _has_captures(b, e, callee, arguments)
    if kind & FREE and not captures and callee.name not in (names.VALUE, names.PIPELINE_CALL):
        keeps &= ~LOANS
    if callee.name.startswith(f"{names.FEED}."):
        keeps &= ~FEED  # a value does not depend on the feed that gave it
    function = callee.name == names.PARTIAL and _takes_handle(b, e.args[0])
    builds = callee.is_ours or function
    if callee.name in names.RUN_AGAIN or not builds:
        keeps &= ~SPENDABLE
    owner = owns and builds and bool(keeps & SPENDABLE)
    followed = not captures or callee.name == names.THEN
    single = callee.is_ours and bool(kind & OP) and followed and callee.name not in names.USED_AGAIN
    if parts or owner or single:
        result = b.temporary() if keeps else None
        b.emit(Build(e, result, tuple(parts), keeps, owner, single, function))
    if never_returns(b, e):
        b.throw()
    return result


def _takes_handle(b: GraphBuilder, function: Expression) -> bool:
    """Return True if a parameter of a function is an owned handle: `object`, as of `print`, only looks at one."""
    return any(b.kinds.kind_of(t) & MOVES for one in signatures(b.types.get(function)) for t in one.arg_types)


def never_returns(b: GraphBuilder, e: Expression) -> bool:
    """Return True for a call, or an `await`, that mypy knows to end in an exception."""
    t = b.types.get(e)
    return t is not None and isinstance(get_proper_type(t), UninhabitedType)


def _has_captures(b: GraphBuilder, e: CallExpr, callee: Callee, arguments: list[Slot | None]) -> bool:
    """Return True if an argument is a closure with captures. The op then holds them, whatever its type says.

    Record the named functions that are passed to dagpu as continuations.
    """
    captures = False
    for argument, held in zip(e.args, arguments, strict=True):
        function = function_of(argument.node) if isinstance(argument, NameExpr) else None
        if function is not None and callee.is_ours:
            b.module.continuations.add(function)
        if isinstance(argument, LambdaExpr):
            b.module.continuations.add(argument)
        captures = captures or (held is not None and (function is not None or isinstance(argument, LambdaExpr)))
    return captures
