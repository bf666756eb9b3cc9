"""Finds the parameters that a function in Python writes: a kernel of Numba or of cuTile, in its source.

An array comes from a parameter by a name, an index, an attribute, a call with it, or a choice between two. A write is
an assignment to an element of it, or a call that writes its first argument, such as an atomic operation. Calls of other
functions in Python are followed, where the function is named by a global name or one of an enclosing scope. A store
or atomic operation under another name is not found, nor one in a function that is defined inside or calls itself. The
order of statements is not looked at.
"""

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, final

WritesFirst: TypeAlias = Callable[[Sequence[str]], bool]
"""Tells from the names of a call, `["cuda", "atomic", "add"]`, whether it writes its first argument or its object."""

_DEPTH: Final = 16
"""The most calls within calls that are followed."""


def find_python_writes(function: Any, writes_first: WritesFirst) -> dict[str, str]:
    """Return the parameters that a function writes, each with the place of a write: `kernels.py:12`.

    A function without source text, as of `exec`, gives nothing: its library is the only one to check it.
    """
    return _Function(function, writes_first, frozenset()).written


@final
class _Function(ast.NodeVisitor):
    """Reads one function."""

    def __init__(self, function: Any, writes_first: WritesFirst, within: frozenset[object]) -> None:
        self.written: dict[str, str] = {}
        self._function = function
        self._writes_first = writes_first
        self._within = within | {function.__code__}
        self._origins: defaultdict[str, set[str]] = defaultdict(set)
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return
        self._file, self._first = function.__code__.co_filename, first
        defined = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), None)
        if defined is None:  # a lambda has no statements
            return
        self.params = [each.arg for each in (*defined.args.posonlyargs, *defined.args.args, *defined.args.kwonlyargs)]
        for name in self.params:
            self._origins[name].add(name)
        self._follow(defined)
        for statement in defined.body:
            self.visit(statement)

    def _follow(self, defined: ast.FunctionDef) -> None:
        """Find the parameters that each name may stand for, until nothing more is found."""
        bindings: list[tuple[ast.expr, ast.expr]] = []
        for node in ast.walk(defined):
            match node:
                case ast.Assign(targets=targets, value=value):
                    bindings += [(target, value) for target in targets]
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    bindings.append((target, value))
                case ast.NamedExpr(target=target, value=value):
                    bindings.append((target, value))
                case ast.For(target=target, iter=value):
                    bindings.append((target, value))
                case _:
                    pass
        before = -1
        while before != (before := sum(map(len, self._origins.values()))):
            for target, value in bindings:
                self._bind(target, value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), _:
                self._origins[name] |= self._of(value)
            case ((ast.Tuple(elts=parts) | ast.List(elts=parts)), (ast.Tuple(elts=values) | ast.List(elts=values))):
                for part, each in zip(parts, values, strict=False):
                    self._bind(part, each)
            case ((ast.Tuple(elts=parts) | ast.List(elts=parts)), _):
                for part in parts:
                    self._bind(part, value)
            case _:
                pass

    def _of(self, value: ast.expr) -> set[str]:
        """Return the parameters whose memory the value of an expression may be."""
        match value:
            case ast.Name(id=name):
                return set(self._origins.get(name, ()))
            case ast.Subscript(value=inner) | ast.Attribute(value=inner) | ast.Starred(value=inner):
                return self._of(inner)
            case ast.IfExp(body=one, orelse=other):
                return self._of(one) | self._of(other)
            case ast.NamedExpr(value=inner):
                return self._of(inner)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.BoolOp(values=parts):
                return set().union(*map(self._of, parts))
            case ast.Call(func=func, args=args, keywords=keywords):
                return set().union(self._of(func), *map(self._of, args), *[self._of(each.value) for each in keywords])
            case _:
                return set()

    # ---- writes
    def _write(self, value: ast.expr, node: ast.AST) -> None:
        line = self._first + getattr(node, "lineno", 1) - 1
        for name in self._of(value):
            self.written.setdefault(name, f"{self._file}:{line}")

    def _write_target(self, target: ast.expr) -> None:
        match target:
            case ast.Subscript(value=value):
                self._write(value, target)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._write_target(part)
            case _:
                pass

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._write_target(target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._write_target(node.target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._write_target(node.target)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._write_target(node.target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        names = _names(node.func)
        if names and self._writes_first(names):
            inner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if inner is not None and self._of(inner):
                self._write(inner, node)
            elif node.args:
                self._write(node.args[0], node)
            else:
                for keyword in node.keywords:
                    self._write(keyword.value, node)
        else:
            self._follow_call(node, names)
        self.generic_visit(node)

    def _follow_call(self, node: ast.Call, names: Sequence[str]) -> None:
        called = self._called(names)
        if called is None or called.__code__ in self._within or len(self._within) > _DEPTH:
            return
        inner = _Function(called, self._writes_first, self._within)
        for place, argument in enumerate(node.args):
            if place < len(inner.params) and inner.params[place] in inner.written:
                self._write(argument, node)
        for keyword in node.keywords:
            if keyword.arg in inner.written:
                self._write(keyword.value, node)

    params: Sequence[str] = ()

    def _called(self, names: Sequence[str]) -> Any:
        """Return the function in Python that a call calls; None if that is none."""
        if not names:
            return None
        scope = dict(self._function.__globals__)
        for name, cell in zip(self._function.__code__.co_freevars, self._function.__closure__ or (), strict=True):
            try:
                scope[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        found = scope.get(names[0])
        for name in names[1:]:
            found = getattr(found, name, None)
        return plain_function(found)


def plain_function(function: object) -> Any:
    """Return the function in Python that a library's object stands for, or the function itself; None if it is none."""
    for name in ("py_func", "_pyfunc"):
        function = getattr(function, name, function)
    return function if inspect.isfunction(function) else None


def _names(func: ast.expr) -> list[str]:
    """Return the names of a call: of `cuda.atomic.add(...)` cuda, atomic and add; of a method its own name alone."""
    found: list[str] = []
    while isinstance(func, ast.Attribute):
        found.append(func.attr)
        func = func.value
    found += [func.id] if isinstance(func, ast.Name) else []
    return found[::-1]
