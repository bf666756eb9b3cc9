"""`cutile_kernel`: a kernel of cuTile as a kernel of dagpu."""

import importlib
import io
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from threading import Lock
from typing import Any, Final, ParamSpec, TypeAlias, cast, final

from dagpu.common.layout import Layout, Shape
from dagpu.common.places import scope_of_caller
from dagpu.common.wrong_arguments import format_value
from dagpu.interop.python_kernels import (
    WORDS,
    Constants,
    FixedValues,
    PythonDeclaration,
    constants_of,
    declared_by,
    find_python_writes,
    plain_function,
)
from dagpu.kernels.decorator import Kernel
from dagpu.ops.kernel_spec import Field, MachineCode, PythonKernel

_P = ParamSpec("_P")

_ALIGNMENT: Final = 16
"""Bytes: the alignment of an array that the compiler is told of."""
_NARROW: Final = 2**31
"""Extents and strides are passed as 32-bit numbers."""
_LOCK: Final = Lock()

_Fixed: TypeAlias = tuple[FixedValues, tuple[tuple[int, bool, bool, bool], ...]]
"""The constants; and for each array its rank, whether its last stride is 1, whether no stride is negative, and whether
its address is aligned."""


def cutile_kernel(
    function: object, /, *, constants: Constants | None = None
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Declare a kernel of cuTile as a kernel of dagpu: `@cutile_kernel(axpy_ct, constants={"T": 256})`.

    The decorated function names and types the parameters that are passed, in the order of cuTile's, without the
    constants: `In[f32]` and `Out[f32]` for arrays of any rank and strides; `float` (32 bits), `int` (32 bits), `bool`,
    or a NumPy type for numbers. Its body never runs. The launch grid is that of the output's tiles: `ct.bid(d)` is the
    tile's index along axis d.

    cuTile compiles the kernel, with `tileiras`, before the first launch of each variant: of constants, ranks, strides
    and alignment. dagpu launches the result itself, in streams and as a node of CUDA graphs. The compiler is told that
    no output shares memory with another argument, which dagpu ensures.

    A store to an `In` is refused here, with no GPU, from the source text of the function and of those that it calls.

    Args:
        function: what `@cuda.tile.kernel` makes.
        constants: the values of the parameters that are `ct.Constant`; or a function that gives them for a tile of the
            first output: `lambda tile: {"T": tile[0]}`.

    Raises:
        KernelArgumentError: the declaration differs from the function's parameters, a constant is missing, or the
            function stores to an input.
    """
    scope = scope_of_caller()

    def make(declaration: PythonDeclaration) -> Kernel[Any]:
        plain = plain_function(function)
        if plain is None or not hasattr(function, "_annotated_function"):
            what = f"@cutile_kernel is given {format_value(function)}"
            raise declaration.error(what, "Pass a function that is decorated with @cuda.tile.kernel")
        code = _TileCode(declaration, function, plain, constants or {})
        declaration.refuse_writes("cuTile's kernel", find_python_writes(plain, _writes_first), code.theirs)
        return declaration.kernel(code, code.scalars, ())

    return declared_by("cutile_kernel", scope, make)


def _writes_first(names: Sequence[str]) -> bool:
    return names[-1].startswith(("store", "scatter", "atomic"))


@final
class _TileCode(PythonKernel):
    """A kernel of cuTile, and its declaration."""

    def __init__(self, declaration: PythonDeclaration, kernel: Any, function: Any, constants: Constants) -> None:
        super().__init__("cuTile", 0)
        self._declaration = declaration
        self._kernel = kernel
        self._constants = constants
        about = kernel._annotated_function  # noqa: SLF001  # cuTile has no public way to a kernel's parameters
        self._names = list(about.pysig.parameters)
        fixed = [name for name, node in zip(self._names, about.parameter_annotations, strict=True) if node.constant]
        given = [] if callable(constants) else list(constants)
        self._fixed = [name for name in self._names if name in (*fixed, *given)]
        passed = [name for name in self._names if name not in self._fixed]
        self.theirs = declaration.match(passed, "cuTile's function")
        self.scalars = declaration.scalar_types(WORDS)

    def specialise(self, operands: Sequence[Layout], tile: Shape | None) -> Hashable:
        values = constants_of(self._declaration, "constants", self._constants, tile, self._fixed, {})
        arrays = []
        for (name, _), layout in zip(self._declaration.tensors, operands, strict=True):
            size = layout.dtype.itemsize
            strides = [stride // size for stride in layout.strides]
            if max([*layout.shape, *map(abs, strides)], default=0) >= _NARROW:
                what = f"argument {name!r} has extents or strides of 2**31 elements or more"
                raise self._declaration.error(what, "Cut it into parts along its first axis")
            row = bool(strides) and strides[-1] == 1
            arrays.append((len(strides), row, all(n >= 0 for n in strides), layout.offset % _ALIGNMENT == 0))
        return values, tuple(arrays)

    def usual_variant(self) -> int:
        what = "it is compiled for the ranks of its arrays, which the first launch shows"
        raise self._declaration.error(what, "Leave compile() out, and launch it once")

    def compile_for(self, arch: str, specialised: Hashable) -> MachineCode:
        package = type(self._kernel).__module__.rpartition(".")[0]  # cuda.tile
        tile: Any = importlib.import_module(package)
        compilation: Any = importlib.import_module(f"{package}.compilation")
        values, arrays = cast(_Fixed, specialised)
        constants = {name: value for name, _, value in values}
        rest, ours = iter(arrays), dict(zip(self.theirs, self._declaration.params, strict=True))
        constraints: list[Any] = []
        for name in self._names:
            if name in constants:
                constraints.append(compilation.ConstantConstraint(constants[name]))
                continue
            own, annotation = ours[name]
            if not annotation.form.is_tensor:
                constraints.append(compilation.ScalarConstraint(_type(tile, self.scalars[own].name)))
                continue
            assert annotation.dtype is not None
            rank, row, positive, aligned = next(rest)
            constraints.append(
                compilation.ArrayConstraint(
                    _type(tile, annotation.dtype.name),
                    rank,
                    index_dtype=tile.int32,
                    stride_lower_bound_incl=0 if positive else None,
                    alias_groups=(),
                    may_alias_internally=False,
                    stride_constant=(None,) * (rank - 1) + (1,) if row else None,
                    base_addr_divisible_by=_ALIGNMENT if aligned else 1,
                )
            )
        convention = compilation.CallingConvention.cutile_python_v2()
        signature = compilation.KernelSignature(constraints, convention, symbol=self._declaration.name)
        made = io.BytesIO()
        try:
            with _LOCK:
                compilation.export_kernel(self._kernel, [signature], made, gpu_code=arch, output_format="cubin")
        except FileNotFoundError as error:
            what = "cuTile finds no tileiras, its compiler. Install it: pip install 'cuda-tile[tileiras]'."
            raise self._declaration.compile_error(what) from error
        except Exception as error:
            if not type(error).__module__.startswith(package):
                raise
            raise self._declaration.compile_error(f"cuTile refuses it: {error}") from error
        return MachineCode(made.getvalue(), self._declaration.name, (), 0)

    def fields(self, layout: Layout) -> Sequence[Field]:
        size = layout.dtype.itemsize
        numbers = [*layout.shape, *[stride // size for stride in layout.strides]]
        return ((8, None), *[(4, number) for number in numbers])

    def sizes(self, variant: int) -> Sequence[int]:
        _, arrays = cast(_Fixed, self.specialised(variant))
        tensors = [[8, *[4] * (2 * rank)] for rank, *_ in arrays]
        numbers = [[each.itemsize] for each in self.scalars.values()]
        return list(chain.from_iterable(self._declaration.in_order(tensors, numbers)))

    @property
    def takes_strides(self) -> bool:
        return True


def _type(tile: Any, name: str) -> Any:
    return getattr(tile, {"bool": "bool_"}.get(name, name))
