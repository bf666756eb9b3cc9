"""Kernels in Python for other compilers: their declaration, and the parameters that they write."""

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast, final

import numpy as np

from dagpu.common.errors import CompileError, KernelArgumentError
from dagpu.common.layout import Shape
from dagpu.common.places import describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.kernels.annotations import Annotation, PySignature, declaration_error, declared_at, read_signature
from dagpu.kernels.declaration import check_defaults, declared_param
from dagpu.kernels.decorator import DECLARED, Kernel
from dagpu.ops.kernel_spec import HostBody, KernelSpec, PythonKernel

_P = ParamSpec("_P")
_T = TypeVar("_T")

Constants: TypeAlias = Mapping[str, object] | Callable[[Shape], Mapping[str, object]]
"""The parameters of a kernel that are fixed when it is compiled: their values, or a function that gives them for a
tile."""
FixedValues: TypeAlias = tuple[tuple[str, type, object], ...]
"""Name, type and value of each of them: 1, 1.0 and True are different constants."""

WORDS: Final = {"int": np.dtype(np.int32), "float": np.dtype(np.float32), "bool": np.dtype(np.bool_)}
"""The types of parameters that are annotated with types of Python, for a library that counts in 32 bits."""


@final
@dataclass(frozen=True, slots=True)
class PythonDeclaration:
    """A function that names and types the parameters of a kernel."""

    function: Callable[..., object]
    signature: PySignature
    decorator: str
    """The name of the decorator, for messages."""

    @property
    def name(self) -> str:
        return self.function.__name__

    def compile_error(self, what: str) -> CompileError:
        """Return the error for a kernel that its library refuses."""
        return CompileError(f"kernel {self.name!r}, declared at {declared_at(self.function)}: {what}")

    @property
    def params(self) -> list[tuple[str, Annotation]]:
        """The parameters in order."""
        return list(zip(self.signature.names, self.signature.annotations, strict=True))

    @property
    def tensors(self) -> list[tuple[str, Annotation]]:
        """Those that are tensors."""
        return [(name, annotation) for name, annotation in self.params if annotation.form.is_tensor]

    def in_order(self, tensors: Iterable[_T], numbers: Iterable[_T]) -> list[_T]:
        """Return what is given for the tensors and for the numbers, each in order, in the order of the parameters."""
        for_tensors, for_numbers = iter(tensors), iter(numbers)
        return [next(for_tensors if annotation.form.is_tensor else for_numbers) for _, annotation in self.params]

    def error(self, what: str, cure: str) -> KernelArgumentError:
        """Return the error for a wrong declaration. `cure` is a sentence without its full stop."""
        return declaration_error(self.name, declared_at(self.function), what, cure)

    def match(self, theirs: Sequence[str], whose: str) -> list[str]:
        """Return the names of the library's parameters that are passed, one for each parameter of the declaration.

        Raises:
            KernelArgumentError: their numbers differ, or a name has another place.
        """
        ours = self.signature.names
        moved = [name for place, name in enumerate(ours) if name in theirs and theirs.index(name) != place]
        if len(ours) != len(theirs) or moved:
            what = f"it takes ({', '.join(ours)}), but {whose} is passed ({', '.join(theirs)})"
            cure = "Declare its parameters in their order, without the constants; the names may differ"
            raise self.error(what, cure)
        return list(theirs)

    def scalar_types(self, words: "Mapping[str, np.dtype[Any]]") -> "dict[str, np.dtype[Any]]":
        """Return the types of the scalars; `words` are those of Python's types."""
        return {
            name: annotation.dtype or words[annotation.scalar]
            for name, annotation in self.params
            if annotation.scalar is not None
        }

    def refuse_writes(self, whose: str, written: Mapping[str, str], theirs: Sequence[str]) -> None:
        """Refuse a kernel that writes to an input.

        Args:
            whose: the words for it in the message: "Triton's kernel".
            written: for the names of the library's parameters that are written, the place of a write.
            theirs: the names of the library's parameters, one for each parameter of the declaration.

        Raises:
            KernelArgumentError: one of them is an input.
        """
        for their, (name, annotation) in zip(theirs, self.params, strict=True):
            if their in written and annotation.form.is_input and annotation.dtype is not None:
                at = f" at {written[their]}" if written[their] else ""
                element = annotation.dtype.name
                what = f"{whose} stores to parameter {their!r}{at}, which is declared {name}: In[{element}]"
                raise self.error(what, f"Declare it {name}: Out[{element}]")

    def kernel(self, code: PythonKernel, types: "Mapping[str, np.dtype[Any]]", block: tuple[int, ...]) -> Kernel[Any]:
        """Return the kernel. `types` are the types of the scalars; `block` is empty if the compiler chooses it.

        Raises:
            KernelArgumentError: a default does not fit its type.
        """
        params = [declared_param(name, each, types.get(name, each.dtype), self.name) for name, each in self.params]
        check_defaults(self.function, self.signature, params)
        spec = KernelSpec(
            name=self.name,
            params=tuple(params),
            cuda="",
            source_name="",
            abi="pointers",
            block=block or None,
            options=(),
            checked=False,
            origin=(self.function.__code__, 0),
            host=HostBody(),
            python=code,
        )
        made: Kernel[Any] = Kernel(spec, self.signature, cast(Any, self.function))
        DECLARED.add(made)
        return made


def constants_of(
    declaration: PythonDeclaration,
    argument: str,
    constants: Constants,
    tile: Shape | None,
    wanted: Sequence[str],
    defaults: Mapping[str, object],
) -> FixedValues:
    """Return the constants for a tile, in the order of `wanted`.

    Args:
        declaration: the declaration, for messages.
        argument: the name of the decorator's argument that gives them, for messages.
        constants: that argument.
        tile: the tile of the first output; None if there is no output.
        wanted: their names.
        defaults: values of those that need not be given.

    Raises:
        KernelArgumentError: one is missing, not known, or cannot be hashed, or the user's function raises.
    """
    given = _given(declaration, argument, constants, tile)
    unknown = sorted(set(given) - set(wanted))
    if unknown:
        what = f"{argument} gives {unknown[0]!r}, but those of the kernel are: {', '.join(wanted) or 'none'}"
        raise declaration.error(what, "Leave it out, or match its name")
    found: list[tuple[str, type, object]] = []
    for name in wanted:
        if name not in given and name not in defaults:
            what = f"{argument} lacks {name!r}"
            raise declaration.error(what, f'Give its value: {argument}={{"{name}": ...}}')
        value = given[name] if name in given else defaults[name]
        if not isinstance(value, Hashable):
            what = f"{argument} gives {name!r} the value {format_value(value)}, which cannot be hashed"
            raise declaration.error(what, "Give a number, a text, a tuple, None, or a type of the library")
        found.append((name, type(value), value))
    return tuple(found)


def _given(
    declaration: PythonDeclaration, argument: str, constants: Constants, tile: Shape | None
) -> Mapping[str, object]:
    if not callable(constants):
        return constants
    if tile is None:
        what = f"{argument} depends on the tile, and it has no output"
        raise declaration.error(what, "Give the values, not a function")
    try:
        given = constants(tile)
    except Exception as error:
        what = f"{argument} raises {type(error).__name__} ({error}) for the tile {tile}"
        raise declaration.error(what, "Let it accept tiles of the output's rank") from error
    if not isinstance(given, Mapping):
        what = f"{argument} gives {format_value(given)} for the tile {tile}"
        raise declaration.error(what, 'Return a dict: lambda tile: {"BLOCK": tile[0]}')
    return given


def declared_by(
    decorator: str, scope: Mapping[str, Any], make: Callable[[PythonDeclaration], Kernel[Any]]
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Return the decorator of a function that declares a kernel.

    `scope` are the local variables of the caller, which text annotations may name.
    """

    @leaves_run
    def decorate(function: Callable[_P, None]) -> Kernel[_P]:
        if not inspect.isfunction(function):
            raise KernelArgumentError(
                f"@{decorator}(...) at {describe(here())} is applied to {format_value(function)}, which is not a plain "
                "function. Decorate a `def` that names and types the kernel's parameters."
            )
        made = PythonDeclaration(function, read_signature(function, scope), decorator)
        for name, annotation in made.tensors:
            if annotation.dtype is None:
                what = f"parameter {name!r} has a generic element type, and @{decorator} compiles for one"
                raise made.error(what, "Write the type: In[f32], Out[f32]")
        for name, annotation in made.params:
            takes = annotation.form.is_tensor and decorator == "numba_kernel"
            if annotation.dtype is not None and annotation.dtype.kind == "c" and not takes:
                what = f"parameter {name!r} is complex, which @{decorator} passes to no kernel"
                raise made.error(what, "Pass its parts by themselves: array.real(t), array.imag(t)")
        return cast("Kernel[_P]", make(made))

    return decorate


# ---- python stores
#
# Finds the parameters that a function in Python writes: a kernel of Numba or of cuTile, in its source.
#
# An array comes from a parameter by a name, an index, an attribute, a call with it, or a choice between two. A write is
# an assignment to an element of it, or a call that writes its first argument, such as an atomic operation. Calls of
# other functions in Python are followed, where the function is named by a global name or one of an enclosing scope. A
# store or atomic operation under another name is not found, nor one in a function that is defined inside or calls
# itself. The order of statements is not looked at.

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
