"""Support for mypy's daemon, which checks single functions again without asking the plugin for dependencies.

In the daemon, a function is deferred at the first hook that it asks for: mypy then checks it once more, and by the
first hook of that second visit the types of the first visit are complete. A function that asks for no hook gives no
sign that it is checked again. So its errors belong to the module, and are reported with those of the top level.

mypy decides from types and signatures alone which functions to check again. A function's effect on its parameters is
neither. If that effect has changed, all functions of the module are deferred once more.
"""

from __future__ import annotations  # the rules are imported late, their types only for type checking

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mypy.checker import FineGrainedDeferredNode, TypeChecker
from mypy.nodes import FuncDef, MypyFile

if TYPE_CHECKING:
    from dagpu.mypy_plugin.analysis.module_facts import Effect
    from dagpu.mypy_plugin.checks import Checks, Target
    from dagpu.mypy_plugin.messages import Finding

    Analyse: TypeAlias = Callable[[TypeChecker, Checks, Target], None]

_DONE: Final = -1


class _CheckedModule:
    """Results for one module from its last complete check, and the state of the check in progress."""

    def __init__(self) -> None:
        self.effects: dict[str, Effect] = {}
        """Effects of the module's functions on their parameters, by full name."""
        self.asking: set[FuncDef] = set()
        """The functions that ask for hooks."""
        self.findings_without_hooks: list[Finding] = []
        """Findings in the functions that ask for no hook. They call nothing, so only their own edits change these."""
        self.checker: TypeChecker | None = None
        """The checker in use; mypy makes a new one after each edit."""
        self.whole = True
        """True if `checker` checks the whole module, False if it checks single functions again."""
        self.visits: dict[Target, int] = {}
        """The pass of `checker` in which each target was deferred; _DONE for a target that has been analysed."""
        self.checks: tuple[int, Checks] | None = None
        """The number of a pass, and the analysis that the targets of this pass share."""


class Daemon:
    """Analyses single functions when mypy's daemon checks them again."""

    def __init__(self) -> None:
        self._modules: dict[str, _CheckedModule] = {}
        self._busy = False

    def asks_for_hooks(self, tree: MypyFile, function: FuncDef) -> bool:
        """Return True if the function asks for hooks, so that `visit` is called when it is checked again."""
        module = self._modules.get(tree.fullname)
        return module is not None and function in module.asking

    def findings_without_hooks(self, checks: Checks, tree: MypyFile) -> list[Finding]:
        """Return the findings in functions that ask for no hook.

        After an edit these are the remembered ones: the functions have no types when the top level is checked again.
        """
        module = self._modules[tree.fullname]
        if not module.whole:
            return module.findings_without_hooks
        return [finding for f, _ in checks.functions if f not in module.asking for finding in checks.findings_in(f)]

    def visit(self, checker: TypeChecker, analyse: Analyse) -> None:
        """Handle a request for a hook: defer the function under check, or analyse it on its second visit."""
        if self._busy:
            return
        tree, function = checker.tree, checker.scope.top_level_function()
        module = self._modules.setdefault(tree.fullname, _CheckedModule())
        if module.checker is not checker:
            module.checker, module.visits, module.checks = checker, {}, None
            module.whole = checker.pass_num == 0  # single functions come in a second pass at once
            if module.whole:
                module.asking.clear()  # mypy identifies a function with the earlier one of the same name
        target: Target = tree
        if isinstance(function, FuncDef):
            target = function
            module.asking.add(function)
        deferred_in = module.visits.get(target)
        if deferred_in is None:
            module.visits[target] = checker.pass_num
            _defer(checker, target)
        elif deferred_in != _DONE and checker.pass_num > deferred_in:
            module.visits[target] = _DONE
            with self._without_watchers(checker):
                self._second_visit(module, checker, target, analyse)

    def _second_visit(self, module: _CheckedModule, checker: TypeChecker, target: Target, analyse: Analyse) -> None:
        known = None if module.whole else module.effects
        if module.checks is None or module.checks[0] != checker.pass_num:
            module.checks = checker.pass_num, create_checks(checker, known)
        checks = module.checks[1]
        analyse(checker, checks, target)
        if known is None or not isinstance(target, FuncDef):
            return
        effect = checks.derive_effect(target)
        if effect is not None and effect != known.get(target.fullname):
            known[target.fullname] = effect
            self._check_again(module, checker, checks, target)

    def _check_again(self, module: _CheckedModule, checker: TypeChecker, checks: Checks, changed: FuncDef) -> None:
        """Defer all targets of a module but one: that function's effect has changed, which may concern its callers."""
        others: list[Target] = [function for function, _ in checks.functions if function in module.asking]
        for other in (*others, checker.tree):
            if other is not changed:
                checker.errors.clear_errors_in_targets(checker.path, {other.fullname})
                module.visits.pop(other, None)
                _defer(checker, other)

    def record_check(self, checker: TypeChecker, checks: Checks, found: Mapping[FuncDef, list[Finding]]) -> None:
        """Record the effects and findings of a module that has been checked as a whole, and drop the check's state."""
        module = self._modules.setdefault(checker.tree.fullname, _CheckedModule())
        module.checker, module.visits, module.checks = None, {}, None
        module.asking &= {function for function, _ in checks.functions}
        module.findings_without_hooks = [
            finding for f, findings in found.items() if f not in module.asking for finding in findings
        ]
        effects = {function.fullname: checks.derive_effect(function) for function, _ in checks.functions}
        module.effects = {name: effect for name, effect in effects.items() if effect is not None}

    @contextmanager
    def _without_watchers(self, checker: TypeChecker) -> Iterator[None]:
        """Suspend mypy's error watchers. A hook may be requested inside a `filter_errors`, which would drop errors."""
        watchers = checker.errors._watchers  # noqa: SLF001  # mypy has no public name for it
        saved = watchers[:]
        watchers.clear()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            watchers.extend(saved)


def _defer(checker: TypeChecker, target: Target) -> None:
    if isinstance(target, FuncDef):
        checker.defer_node(target, target.info or None)
    else:
        deferred: list[Any] = checker.deferred_nodes  # declared to hold functions; mypy takes modules as well
        deferred.append(FineGrainedDeferredNode(target, None))


def create_checks(checker: TypeChecker, effects: dict[str, Effect] | None = None) -> Checks:
    """Return the checks of a checker's module. The late import spares a run from mypy's cache the rules."""
    from dagpu.mypy_plugin.checks import Checks

    return Checks(checker.tree, checker._type_maps[0], effects)  # noqa: SLF001  # mypy has no public name for it
