"""The checks of literal shapes, parts and declarations in one target: they need the values of variables."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias, final

from mypy.errorcodes import ErrorCode
from mypy.nodes import CallExpr, Context, Decorator, Expression, FuncDef, MemberExpr, MypyFile, SymbolNode
from mypy.types import Type

from dagpu.mypy_plugin import codes
from dagpu.mypy_plugin.shapes import declared_sights, shape_flow, written_parts
from dagpu.mypy_plugin.shapes.output_partition import OutputChecker
from dagpu.mypy_plugin.shapes.shape_values import Value

Report: TypeAlias = Callable[[str, Context, ErrorCode], None]


def check(
    target: FuncDef | MypyFile, types: Mapping[Expression, Type], constants: Mapping[SymbolNode, Value], report: Report
) -> None:
    """Report the mistakes in a function with its nested functions, or in a module outside its functions."""
    shape_flow.follow(target, types, _ShapeChecks(types, report), constants)


@final
class _ShapeChecks:
    """Passes each call and each declaration to the check that it is for."""

    def __init__(self, types: Mapping[Expression, Type], report: Report) -> None:
        self._types = types
        self._report = report
        outputs = OutputChecker(
            types, partial(_report_as, report, codes.OUTPUT_PARTITION), partial(_report_as, report, codes.INPUT_RANK)
        )
        self.check_partition = outputs.check_partition
        self.check_kernel = outputs.check_kernel
        self.check_new = outputs.check_new
        self.check_new_inputs = outputs.check_new_inputs

    def check_write(self, call: CallExpr, callee: MemberExpr, at: Value, data: Value) -> None:
        """Report a part that does not lie in its source, and data of another shape."""
        problem = written_parts.problem_of(callee, self._types.get(callee.expr), at, data)
        if problem:
            self._report(problem, call, codes.SOURCE_PART)

    def check_declaration(self, declared: Decorator, place: Expression, sees: Value) -> None:
        """Report the declarations of a kernel that do not fit its parameters."""
        for problem, where in declared_sights.problems_of(declared, place, self._types.get(place), sees):
            self._report(problem, where, codes.SEES)


def _report_as(report: Report, code: ErrorCode, message: str, node: Context) -> None:
    report(message, node, code)
