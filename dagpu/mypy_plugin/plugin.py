"""The plugin: what mypy calls, and when the flow rules run.

Typing rules are hooks (`hooks.py`): mypy calls them while it infers types, once or twenty times for an expression, and
for some functions never. The flow rules need all types of a function, so they run once per module, when mypy has
checked it and asks for further dependencies: the types are complete then, and errors are not yet flushed, so that
`type: ignore`, per-module options and the cache treat ours as their own.

The daemon checks single functions again without asking; see `daemon`.
"""

from __future__ import annotations  # the rules are imported late, and their types never

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mypy import checker_state
from mypy.checker import TypeChecker
from mypy.nodes import Context, FuncDef, MypyFile, TypeInfo
from mypy.options import Options
from mypy.plugin import FunctionContext, MethodContext, MethodSigContext, Plugin, ReportConfigContext
from mypy.types import FunctionLike, Instance, Type

from dagpu.mypy_plugin import codes as codes  # configurations may name them before anything is checked
from dagpu.mypy_plugin import messages
from dagpu.mypy_plugin.daemon import Daemon, checks_of
from dagpu.mypy_plugin.sources import fingerprint

if TYPE_CHECKING:
    from dagpu.mypy_plugin.checks import Checks, Target
    from dagpu.mypy_plugin.flow.judge import Finding

_Context = TypeVar("_Context", FunctionContext, MethodContext)


class DagpuPlugin(Plugin):
    """What mypy has of dagpu."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._functions: dict[str, Callable[[FunctionContext], Type]] = {}
        self._methods: dict[str, Callable[[MethodContext], Type]] = {}
        self._signatures: dict[str, Callable[[MethodSigContext], FunctionLike]] = {}
        self._checker: TypeChecker | None = None
        """Whose hooks were asked for last."""
        self._checkers: dict[str, TypeChecker] = {}
        """By module that is being checked: its checker, which `get_additional_indirect_deps` is not told."""
        self._crashes: dict[str, Exception] = {}
        """By module that is being checked: the first defect of ours that it met."""
        self._named = False
        """Does the module of `_checker` name dagpu?"""
        self._daemon = Daemon() if options.fine_grained_incremental else None

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        """mypy's own snapshot has the entry file alone; a change in any other must void the cache as well."""
        return {"dagpu": fingerprint()}

    # ---- typing

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        self._notice()
        return self._functions.get(fullname)

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        self._notice()
        return self._methods.get(fullname)

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        self._notice()
        return self._signatures.get(fullname)

    def get_attribute_hook(self, fullname: str) -> None:
        self._notice()

    def _load(self) -> None:
        """The rules are imported when there is something to check: a run from the cache does without."""
        from dagpu.mypy_plugin import hooks

        self._functions = {name: self._guarded(hook) for name, hook in hooks.FUNCTION_HOOKS.items()}
        self._methods = {name: self._guarded(hook) for name, hook in hooks.METHOD_HOOKS.items()}
        self._signatures = {name: self._guarded_signature(hook) for name, hook in hooks.SIGNATURE_HOOKS.items()}

    def _guarded(self, hook: Callable[[_Context], Type]) -> Callable[[_Context], Type]:
        def guarded(context: _Context) -> Type:
            try:
                return hook(context)
            except Exception as error:
                self._crashed(error)
                return context.default_return_type

        return guarded

    def _guarded_signature(
        self, hook: Callable[[MethodSigContext], FunctionLike]
    ) -> Callable[[MethodSigContext], FunctionLike]:
        def guarded(context: MethodSigContext) -> FunctionLike:
            try:
                return hook(context)
            except Exception as error:
                self._crashed(error)
                return context.default_signature

        return guarded

    # ---- who is being checked

    def _notice(self) -> None:
        """Every hook is asked for while some checker is at work. This is called thousands of times: it is short."""
        checker = checker_state.checker_state.type_checker
        if checker is not self._checker and isinstance(checker, TypeChecker):
            self._checker = checker
            self._checkers[checker.tree.fullname] = checker
            if not self._functions and "dagpu" in checker.modules:
                self._load()
            self._named = _names_us(checker)
        if self._daemon is not None and self._named and isinstance(checker, TypeChecker):
            self._daemon.visit(checker, self._analyse_target)

    # ---- the flow rules

    def get_additional_indirect_deps(self, file: MypyFile) -> set[str]:
        """mypy has checked a module, and asks what else it depends on: on nothing, but this is the time to look."""
        checker = self._checkers.pop(file.fullname, None)
        if checker is self._checker:
            self._checker = None
        if checker is not None and _concerns_us(checker) and not checker.can_skip_diagnostics:
            errors = checker.errors
            errors.set_file(checker.path, file.fullname, options=checker.options, scope=checker.tscope)
            with checker.tscope.module_scope(file.fullname):
                self._analyse_module(checker)
            errors.set_file(checker.path, file.fullname, options=checker.options)
        return set()

    def _analyse_module(self, checker: TypeChecker) -> None:
        """All of a module; in the daemon as well, where most of it has been said by now and is not said twice."""
        tree = checker.tree
        if tree.fullname not in self._crashes:
            try:
                checks = checks_of(checker)
                found = [(info, function, checks.of(function)) for function, info in checks.functions]
                top = checks.of(tree)
                if self._daemon is not None:
                    self._daemon.checked(checker, checks, {function: findings for _, function, findings in found})
            except Exception as error:
                self._crashed(error, tree)
            else:
                for info, function, findings in found:
                    heard = self._daemon is None or self._daemon.hears_of(tree, function)
                    with _scope(checker, info, function if heard else None):
                        _report(checker, findings)
                _report(checker, top)
                return
        checker.msg.note(messages.crashed(self._crashes.pop(tree.fullname)), Context(1, 0))

    def _analyse_target(self, checker: TypeChecker, checks: Checks, target: Target) -> None:
        """In the daemon: one function that is checked again, or the top level with those that we do not hear of."""
        tree = checker.tree
        assert self._daemon is not None
        try:
            findings = checks.of(target)
            if target is tree:
                findings += self._daemon.unheard(checks, tree)
        except Exception as error:
            self._crashed(error, tree)
            checker.msg.note(messages.crashed(self._crashes.pop(tree.fullname)), Context(1, 0))
            return
        _report(checker, findings)

    # ---- when all fails

    def _crashed(self, error: Exception, tree: MypyFile | None = None) -> None:
        """A defect of ours is said once for a module, when that has been checked, and does not end mypy's run."""
        if self.options.show_traceback:
            traceback.print_exception(error, file=sys.stderr)
        checker = checker_state.checker_state.type_checker
        tree = tree or (checker.tree if isinstance(checker, TypeChecker) else None)
        if tree is not None:
            self._crashes.setdefault(tree.fullname, error)


@contextmanager
def _scope(checker: TypeChecker, info: TypeInfo | None, function: FuncDef | None) -> Iterator[None]:
    """Report under the function that the daemon will check again when it changes."""
    if function is None:
        yield
    elif info is None:
        with checker.tscope.function_scope(function):
            yield
    else:
        with checker.tscope.class_scope(info), checker.tscope.function_scope(function):
            yield


def _report(checker: TypeChecker, findings: list[Finding]) -> None:
    for finding in findings:
        checker.msg.fail(finding.message, finding.node, code=finding.code)


def _concerns_us(checker: TypeChecker) -> bool:
    """Can there be handles in this module? One that does not name dagpu may be given them by one that does."""
    if _names_us(checker):
        return True
    if "dagpu" not in checker.modules or _is_ours(checker):
        return False
    return any(isinstance(t, Instance) and t.type.fullname.startswith("dagpu.") for t in checker._type_maps[0].values())  # noqa: SLF001  # mypy has no public name for it


def _names_us(checker: TypeChecker) -> bool:
    return "dagpu" in checker.modules and not _is_ours(checker) and _imports_us(checker.tree)


def _is_ours(checker: TypeChecker) -> bool:
    """dagpu's own modules are what ownership is made of: there, handles are objects as any other."""
    return checker.is_stub or checker.tree.fullname.startswith("dagpu.")


def _imports_us(tree: MypyFile) -> bool:
    for statement in tree.imports:
        name = getattr(statement, "id", None)
        for module in [name] if name is not None else [module for module, _ in getattr(statement, "ids", ())]:
            if module == "dagpu" or module.startswith("dagpu."):
                return True
    return False
