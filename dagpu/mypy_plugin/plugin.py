"""The plugin class: the entry points that mypy calls, and the time at which the flow rules run.

Typing rules are hooks (`typing/`): mypy calls them while it infers types, once or twenty times for an expression, and
for some functions never. The flow rules need all types of a function. They run once per module, after mypy has checked
it, when mypy asks the plugin for further dependencies. The types are complete then, and the errors are not yet
flushed. So `type: ignore`, per-module options and the cache treat the plugin's errors as mypy's own.

mypy's daemon checks single functions again without asking for dependencies; see `daemon`.
"""

from __future__ import annotations  # the rules are imported late, their types only for type checking

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mypy import checker_state
from mypy.checker import TypeChecker
from mypy.nodes import Context, FuncDef, MypyFile, TypeInfo
from mypy.options import Options
from mypy.plugin import (
    FunctionContext,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
    Plugin,
    ReportConfigContext,
)
from mypy.types import FunctionLike, Instance, Type

from dagpu.common import facts
from dagpu.mypy_plugin import messages, names
from dagpu.mypy_plugin.daemon import Daemon, create_checks

if TYPE_CHECKING:
    from dagpu.mypy_plugin.checks import Checks, Target
    from dagpu.mypy_plugin.messages import Finding

ROOT: Final = Path(__file__).resolve().parent
_STATE = checker_state.checker_state
"""mypy's holder of the active checker. Each request for a hook looks there: there are several for each expression."""
_Context = TypeVar("_Context", FunctionContext, MethodContext)
_SigContext = TypeVar("_SigContext", FunctionSigContext, MethodSigContext)


@cache
def fingerprint(root: Path = ROOT) -> str:
    """Return a hash of all sources of the plugin, of their file names, and of the facts that they read. mypy discards
    its cache when it changes."""
    digest = hashlib.sha256(Path(facts.__file__).read_bytes())
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class DagpuPlugin(Plugin):
    """The plugin object that mypy creates: it answers requests for hooks, and runs the flow rules."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._functions: dict[str, Callable[[FunctionContext], Type]] = {}
        self._array_function: Callable[[FunctionContext], Type] | None = None
        """The hook of all functions of `dagpu.array`."""
        self._methods: dict[str, Callable[[MethodContext], Type]] = {}
        self._function_signatures: dict[str, Callable[[FunctionSigContext], FunctionLike]] = {}
        self._signatures: dict[str, Callable[[MethodSigContext], FunctionLike]] = {}
        self._checker: TypeChecker | None = None
        """The checker that was active at the last request for a hook."""
        self._checkers: dict[str, TypeChecker] = {}
        """The checkers of the modules under check. mypy does not pass them to `get_additional_indirect_deps`."""
        self._crashes: dict[str, Exception] = {}
        """The first internal error of the plugin in each module under check."""
        self._imports_dagpu = False
        """True if the module of `_checker` imports dagpu."""
        self._daemon = Daemon() if options.fine_grained_incremental else None

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        """Add a hash of all files of the plugin to mypy's cache key. mypy itself includes only the entry file."""
        return {"dagpu": fingerprint()}

    # ---- typing

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        if _STATE.type_checker is not self._checker or self._daemon is not None:
            self._notice_checker()
        found = self._functions.get(fullname)
        return self._array_function if found is None and fullname.startswith(names.ARRAY_FUNCTIONS) else found

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        if _STATE.type_checker is not self._checker or self._daemon is not None:
            self._notice_checker()
        return self._function_signatures.get(fullname)

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        if _STATE.type_checker is not self._checker or self._daemon is not None:
            self._notice_checker()
        return self._methods.get(fullname)

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        if _STATE.type_checker is not self._checker or self._daemon is not None:
            self._notice_checker()
        return self._signatures.get(fullname)

    def get_attribute_hook(self, fullname: str) -> None:
        if _STATE.type_checker is not self._checker or self._daemon is not None:
            self._notice_checker()

    def _load_hooks(self) -> None:
        """Import the rules and take their hooks. A run that takes all modules from the cache does not import them.

        Hooks of several modules for one name run in the order of `rules`, and each gets the type that the previous one
        inferred.
        """
        from dagpu.mypy_plugin.typing import argument_checks, kernel_calls, literal_shapes, op_types

        self._array_function = self._guarded(op_types.type_new_output)
        rules = (kernel_calls, op_types, literal_shapes, argument_checks)
        for rule in rules:
            for name, hook in rule.FUNCTION_HOOKS.items():
                self._functions[name] = self._guarded(hook, self._functions.get(name))
            for name, method_hook in rule.METHOD_HOOKS.items():
                self._methods[name] = self._guarded(method_hook, self._methods.get(name))
        for rule in (kernel_calls, argument_checks):
            self._signatures |= {name: self._guarded_signature(hook) for name, hook in rule.SIGNATURE_HOOKS.items()}
        self._function_signatures = {
            name: self._guarded_signature(hook) for name, hook in argument_checks.FUNCTION_SIGNATURE_HOOKS.items()
        }

    def _guarded(
        self, hook: Callable[[_Context], Type], before: Callable[[_Context], Type] | None = None
    ) -> Callable[[_Context], Type]:
        """Return a hook that an internal error does not end, behind another hook for the same name."""

        def guarded(context: _Context) -> Type:
            if before is not None:
                context = context._replace(default_return_type=before(context))
            try:
                return hook(context)
            except Exception as error:
                self._record_crash(error)
                return context.default_return_type

        return guarded

    def _guarded_signature(self, hook: Callable[[_SigContext], FunctionLike]) -> Callable[[_SigContext], FunctionLike]:
        def guarded(context: _SigContext) -> FunctionLike:
            try:
                return hook(context)
            except Exception as error:
                self._record_crash(error)
                return context.default_signature

        return guarded

    # ---- the active checker

    def _notice_checker(self) -> None:
        """Notice a change of the active checker, and in the daemon each request for a hook."""
        checker = _STATE.type_checker
        if checker is not self._checker and isinstance(checker, TypeChecker):
            self._checker = checker
            self._checkers[checker.tree.fullname] = checker
            if not self._functions and "dagpu" in checker.modules:
                self._load_hooks()
            self._imports_dagpu = _names_us(checker)
        if self._daemon is not None and self._imports_dagpu and isinstance(checker, TypeChecker):
            self._daemon.visit(checker, self._analyse_target)

    # ---- the flow rules

    def get_additional_indirect_deps(self, file: MypyFile) -> set[str]:
        """Run the flow rules on a module that mypy has just checked. Return no dependencies."""
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
        """Analyse and report a whole module. mypy drops duplicates of errors that the daemon has already reported."""
        tree = checker.tree
        if tree.fullname not in self._crashes:
            try:
                checks = create_checks(checker)
                found = [(info, function, checks.findings_in(function)) for function, info in checks.functions]
                top = checks.findings_in(tree)
                if self._daemon is not None:
                    self._daemon.record_check(checker, checks, {function: findings for _, function, findings in found})
            except Exception as error:
                self._record_crash(error, tree)
            else:
                for info, function, findings in found:
                    own_scope = self._daemon is None or self._daemon.asks_for_hooks(tree, function)
                    with _scope(checker, info, function if own_scope else None):
                        _report(checker, findings)
                _report(checker, top)
                return
        checker.msg.note(messages.crashed(self._crashes.pop(tree.fullname)), Context(1, 0))

    def _analyse_target(self, checker: TypeChecker, checks: Checks, target: Target) -> None:
        """In the daemon: analyse one function, or the top level together with the functions that ask for no hook."""
        tree = checker.tree
        assert self._daemon is not None
        try:
            findings = checks.findings_in(target)
            if target is tree:
                findings += self._daemon.findings_without_hooks(checks, tree)
        except Exception as error:
            self._record_crash(error, tree)
            checker.msg.note(messages.crashed(self._crashes.pop(tree.fullname)), Context(1, 0))
            return
        _report(checker, findings)

    # ---- internal errors

    def _record_crash(self, error: Exception, tree: MypyFile | None = None) -> None:
        """Remember the first internal error in a module. It is reported after the check, and mypy's run goes on."""
        if self.options.show_traceback:
            traceback.print_exception(error, file=sys.stderr)
        checker = _STATE.type_checker
        tree = tree or (checker.tree if isinstance(checker, TypeChecker) else None)
        if tree is not None:
            self._crashes.setdefault(tree.fullname, error)


@contextmanager
def _scope(checker: TypeChecker, info: TypeInfo | None, function: FuncDef | None) -> Iterator[None]:
    """Attribute errors to a function, so that mypy's daemon replaces them when it checks that function again."""
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
    """Return True if there may be handles in a module. One without an import of dagpu may get them from another."""
    if _names_us(checker):
        return True
    if "dagpu" not in checker.modules or _is_ours(checker):
        return False
    return any(isinstance(t, Instance) and t.type.fullname.startswith("dagpu.") for t in checker._type_maps[0].values())  # noqa: SLF001  # mypy has no public name for it


def _names_us(checker: TypeChecker) -> bool:
    return "dagpu" in checker.modules and not _is_ours(checker) and _imports_us(checker.tree)


def _is_ours(checker: TypeChecker) -> bool:
    """Return True for stubs and for dagpu's own modules. These implement ownership, so its rules do not apply there."""
    return checker.is_stub or checker.tree.fullname.startswith("dagpu.")


def _imports_us(tree: MypyFile) -> bool:
    for statement in tree.imports:
        name = getattr(statement, "id", None)
        for module in [name] if name is not None else [module for module, _ in getattr(statement, "ids", ())]:
            if module == "dagpu" or module.startswith("dagpu."):
                return True
    return False
