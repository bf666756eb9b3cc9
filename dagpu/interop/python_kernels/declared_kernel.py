"""A declaration of a kernel that another library compiles: its parameters, and the kernel that is made of it."""

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast, final

import numpy as np

from dagpu.common.dtypes import Shape
from dagpu.common.errors import CompileError, KernelArgumentError
from dagpu.common.origin import describe, here
from dagpu.common.tracebacks import leaves_run
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
        return cast("Kernel[_P]", make(made))

    return decorate
