"""The checks that run after mypy has typed a module: the flow rules, and those of literal shapes and parts."""

from typing import TypeAlias

from mypy.nodes import FuncDef, MypyFile

from dagpu.mypy_plugin.ownership.analysis import Analysis
from dagpu.mypy_plugin.ownership.module_facts import Effect, Types
from dagpu.mypy_plugin.ownership.reporting import Finding
from dagpu.mypy_plugin.shapes import shape_checks
from dagpu.mypy_plugin.shapes.shape_flow import constants_of

Target: TypeAlias = FuncDef | MypyFile
"""The unit that mypy checks separately: a function or method with its nested functions, or a module's top level."""


class Checks:
    """The checks of one module, target by target."""

    def __init__(self, tree: MypyFile, types: Types, effects: dict[str, Effect] | None = None) -> None:
        self._types = types
        self._constants = constants_of(tree, types)
        self._analysis = Analysis(tree, types, effects)
        self.functions = self._analysis.functions
        """The module's functions and methods, each with its class."""

    def derive_effect(self, function: FuncDef) -> Effect | None:
        """Derive a function's effect on its parameters from its current body."""
        return self._analysis.derive_effect(function)

    def findings_in(self, target: Target) -> list[Finding]:
        """Return the findings in a function, or at the top level, without deliberate mistakes."""
        if isinstance(target, FuncDef):
            found = self._analysis.check_function(target)
        else:
            found = self._analysis.check_top_level(target)
        shape_checks.check(
            target,
            self._types,
            self._constants,
            lambda message, node, code: found.append(Finding(node, code, message)),
        )
        deliberate = self._analysis.module.deliberate
        exact = {(finding.node.line, finding.code) for finding in found}
        return [
            finding
            for finding in found
            if (finding.node.line, finding.unless) not in exact
            and not deliberate.covers(finding.node.line, finding.code)
        ]
