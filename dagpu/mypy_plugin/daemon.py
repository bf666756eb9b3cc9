"""The daemon, which checks single functions again without asking for further dependencies.

There a function is deferred at the first hook that it asks for: mypy then checks it once more, and by the first hook
of that second visit the types of the first are complete. Of a function that asks for no hook we never hear that it is
checked again, so its errors belong to the module, and are said anew with those of the top level.

mypy knows which functions to check again from types and signatures alone. What a function does to its parameters is
neither: where that has changed, all of the module is deferred once more.
"""

from __future__ import annotations  # the rules are imported late, and their types never

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mypy.checker import FineGrainedDeferredNode, TypeChecker
from mypy.nodes import FuncDef, MypyFile

if TYPE_CHECKING:
    from dagpu.mypy_plugin.checks import Checks, Target
    from dagpu.mypy_plugin.flow.judge import Finding
    from dagpu.mypy_plugin.flow.module import Effect

    Analyse: TypeAlias = Callable[[TypeChecker, Checks, Target], None]

_DONE: Final = -1


class _Module:
    """What is remembered of one module from its last complete check, and of the check under way."""

    def __init__(self) -> None:
        self.effects: dict[str, Effect] = {}
        """What its functions do to their parameters, by full name."""
        self.asking: set[FuncDef] = set()
        """The functions that ask for hooks."""
        self.unheard: list[Finding] = []
        """What is wrong in the others. They call nothing, so only an edit of theirs changes that."""
        self.checker: TypeChecker | None = None
        """Who checks it; another after each edit."""
        self.whole = True
        """Does that one check all of it, and not single functions again?"""
        self.visits: dict[Target, int] = {}
        """In which pass of that one a target was deferred; _DONE once it has been analysed."""
        self.checks: tuple[int, Checks] | None = None
        """The analysis of one pass, which the targets in it share."""


class Daemon:
    """Has single functions analysed when the daemon checks them again."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._busy = False

    def hears_of(self, tree: MypyFile, function: FuncDef) -> bool:
        """Do we notice when a function is checked again?"""
        module = self._modules.get(tree.fullname)
        return module is not None and function in module.asking

    def unheard(self, checks: Checks, tree: MypyFile) -> list[Finding]:
        """What is wrong in the functions that we do not hear of; they have no types when the top level is checked."""
        module = self._modules[tree.fullname]
        if not module.whole:
            return module.unheard
        return [finding for f, _ in checks.functions if f not in module.asking for finding in checks.of(f)]

    def visit(self, checker: TypeChecker, analyse: Analyse) -> None:
        """Some hook is asked for: defer the function that is being checked, or analyse it on its second visit."""
        if self._busy:
            return
        tree, function = checker.tree, checker.scope.top_level_function()
        module = self._modules.setdefault(tree.fullname, _Module())
        if module.checker is not checker:
            module.checker, module.visits, module.checks = checker, {}, None
            module.whole = checker.pass_num == 0  # single functions come in a second pass at once
            if module.whole:
                module.asking.clear()  # a function of the same name as before is the same to mypy
        target: Target = tree
        if isinstance(function, FuncDef):
            target = function
            module.asking.add(function)
        asked = module.visits.get(target)
        if asked is None:
            module.visits[target] = checker.pass_num
            _defer(checker, target)
        elif asked != _DONE and checker.pass_num > asked:
            module.visits[target] = _DONE
            with self._alone(checker):
                self._second_visit(module, checker, target, analyse)

    def _second_visit(self, module: _Module, checker: TypeChecker, target: Target, analyse: Analyse) -> None:
        known = None if module.whole else module.effects
        if module.checks is None or module.checks[0] != checker.pass_num:
            module.checks = checker.pass_num, checks_of(checker, known)
        checks = module.checks[1]
        analyse(checker, checks, target)
        if known is None or not isinstance(target, FuncDef):
            return
        effect = checks.effect(target)
        if effect is not None and effect != known.get(target.fullname):
            known[target.fullname] = effect
            self._check_again(module, checker, checks, target)

    def _check_again(self, module: _Module, checker: TypeChecker, checks: Checks, but: FuncDef) -> None:
        """What calls a function sees it do something else than before."""
        others: list[Target] = [function for function, _ in checks.functions if function in module.asking]
        for other in (*others, checker.tree):
            if other is not but:
                checker.errors.clear_errors_in_targets(checker.path, {other.fullname})
                module.visits.pop(other, None)
                _defer(checker, other)

    def checked(self, checker: TypeChecker, checks: Checks, found: Mapping[FuncDef, list[Finding]]) -> None:
        """A module has been checked as a whole: remember what its functions do, and no more."""
        module = self._modules.setdefault(checker.tree.fullname, _Module())
        module.checker, module.visits, module.checks = None, {}, None
        module.asking &= {function for function, _ in checks.functions}
        module.unheard = [finding for f, findings in found.items() if f not in module.asking for finding in findings]
        effects = {function.fullname: checks.effect(function) for function, _ in checks.functions}
        module.effects = {name: effect for name, effect in effects.items() if effect is not None}

    @contextmanager
    def _alone(self, checker: TypeChecker) -> Iterator[None]:
        """Report as if nobody were inside a `filter_errors` of mypy's: hooks are asked for in the midst of one."""
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


def checks_of(checker: TypeChecker, effects: dict[str, Effect] | None = None) -> Checks:
    """What is wrong in the module of a checker. The rules are imported late: a run from the cache does without."""
    from dagpu.mypy_plugin.checks import Checks

    return Checks(checker.tree, checker._type_maps[0], effects)  # noqa: SLF001  # mypy has no public name for it
