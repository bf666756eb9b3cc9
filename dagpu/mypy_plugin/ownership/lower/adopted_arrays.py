"""The variables whose arrays `adopt` takes: arrays of other libraries, which move there and nowhere else."""

from mypy.nodes import CallExpr, MypyFile, NameExpr, RefExpr, Var

from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.ownership.module_facts import Types

_IMPORTED = frozenset({"dagpu", names.INTEROP, names.ADOPT})


def adopted_variables(tree: MypyFile, types: Types) -> frozenset[Var]:
    """Return the variables that are the first argument of `adopt`, in a module that imports it or dagpu. `types` has
    every expression that mypy has checked."""
    if not any(symbol.fullname in _IMPORTED for symbol in tree.names.values()):
        return frozenset()
    calls = [e for e in types if isinstance(e, CallExpr) and isinstance(e.callee, RefExpr)]
    first = [e.args[0] for e in calls if isinstance(e.callee, RefExpr) and e.callee.fullname == names.ADOPT and e.args]
    return frozenset([e.node for e in first if isinstance(e, NameExpr) and isinstance(e.node, Var)])
