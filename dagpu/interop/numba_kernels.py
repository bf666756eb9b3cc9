"""`numba_kernel`: a kernel of Numba as a kernel of dagpu."""

import importlib
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from math import prod
from threading import Lock
from typing import Any, Final, ParamSpec, TypeAlias, cast, final

import numpy as np

from dagpu.common.layout import Layout, Shape
from dagpu.common.places import describe, scope_of_caller
from dagpu.common.wrong_arguments import format_value
from dagpu.interop.python_kernels import PythonDeclaration, declared_by, find_python_writes, plain_function
from dagpu.kernels.declaration import MAX_THREADS, check_extents
from dagpu.kernels.decorator import Kernel
from dagpu.ops.kernel_spec import Field, MachineCode, PythonKernel

_P = ParamSpec("_P")

_WORDS: Final = {"int": np.dtype(np.int64), "float": np.dtype(np.float64), "bool": np.dtype(np.bool_)}
"""The types of parameters that are annotated with types of Python: those that Numba gives them."""
_PARTS: Final = 5
"""Fields of 8 bytes of an array before its extents: two pointers, the number of elements, their size, the address."""
_Arrays: TypeAlias = tuple[tuple[int, str], ...]
"""For each array its rank, and Numba's letter for its order: C, or A for any."""
_LOCK: Final = Lock()
"""Numba's compiler runs once at a time."""


def numba_kernel(
    function: Callable[..., None], /, *, block: int | tuple[int, ...] | None = None, fastmath: bool = False
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Declare a kernel of Numba as a kernel of dagpu: `@numba_kernel(axpy_py)`.

    The decorated function names and types the parameters, in the order of Numba's: `In[f32]` and `Out[f32]` for arrays
    of any rank and strides; `float` (64 bits, as in Numba), `int` (64 bits), `bool`, or a NumPy type for numbers. Its
    body never runs. The launch grid is that of the output's tiles, and a block has one thread for each element of a
    tile, so that `cuda.grid(1)` is the index of an element, and `cuda.grid(2)` that of two axes.

    Numba compiles the kernel before the first launch of each variant: of ranks, and of arrays in C order. dagpu
    launches the result itself, in streams and as a node of CUDA graphs. Numba's launcher and its context are not used.

    A store to an `In` is refused here, with no GPU, from the source text of the function and of those that it calls;
    and by Numba's types when it is compiled. Indices are not checked.

    Args:
        function: a plain function, or what `@numba.cuda.jit` makes of one.
        block: the block dimensions, 1 to 3 extents; None for those of the tile.
        fastmath: allow Numba to round differently for speed.

    Raises:
        KernelArgumentError: the declaration differs from the function's parameters, or it stores to an input.
    """
    scope = scope_of_caller()

    def make(declaration: PythonDeclaration) -> Kernel[Any]:
        plain = plain_function(function)
        if plain is None:
            what = f"@numba_kernel is given {format_value(function)}"
            raise declaration.error(what, "Pass a plain function, or what @numba.cuda.jit makes of one")
        given = (block,) if isinstance(block, int) else block or ()
        if given:
            check_extents(given, "block", declaration.name, describe((declaration.function.__code__, 0)))
        code = _NumbaCode(declaration, plain, fastmath=bool(fastmath))
        declaration.refuse_writes("Numba's kernel", find_python_writes(plain, _writes_first), code.theirs)
        return declaration.kernel(code, code.scalars, tuple(given))

    return declared_by("numba_kernel", scope, make)


def _writes_first(names: Sequence[str]) -> bool:
    return "atomic" in names[:-1]


@final
class _NumbaCode(PythonKernel):
    """A kernel of Numba, and its declaration."""

    def __init__(self, declaration: PythonDeclaration, function: Any, *, fastmath: bool) -> None:
        super().__init__("Numba", 0)
        self._declaration = declaration
        self._function = function
        self._fastmath = fastmath
        self.theirs = declaration.match(
            function.__code__.co_varnames[: function.__code__.co_argcount], "Numba's function"
        )
        self.scalars = declaration.scalar_types(_WORDS)

    def specialise(self, operands: Sequence[Layout], tile: Shape | None) -> Hashable:
        return tuple([(len(layout.shape), "C" if layout.contiguous else "A") for layout in operands])

    def usual_variant(self) -> int:
        what = "it is compiled for the ranks of its arrays, which the first launch shows"
        raise self._declaration.error(what, "Leave compile() out, and launch it once")

    def compile_for(self, arch: str, specialised: Hashable) -> MachineCode:
        numba = self._compiler()
        arrays = [
            self._array(*array, annotation.dtype, read_only=not annotation.form.is_written)
            for array, (_, annotation) in zip(cast(_Arrays, specialised), self._declaration.tensors, strict=True)
        ]
        signature = self._declaration.in_order(arrays, map(self._type, self.scalars.values()))
        number = int(arch.removeprefix("sm_").rstrip("af"))
        try:
            with _LOCK:
                ptx, _ = numba.compile(
                    self._function, tuple(signature), device=False, abi="numba", cc=divmod(number, 10),
                    fastmath=self._fastmath, output="ptx",
                )  # fmt: skip
        except Exception as error:
            if isinstance(error, AttributeError) and "'numpy'" in str(error):
                what = (
                    f"Numba knows an older NumPy than {np.__version__} ({error}). Install that: pip install 'numpy<2.5'"
                )
                raise self._declaration.compile_error(f"{what}.") from error
            if type(error).__module__.partition(".")[0] not in ("numba", "numba_cuda", "cuda"):
                raise
            raise self._declaration.compile_error(f"Numba refuses it: {error}") from error
        text = ptx if isinstance(ptx, str) else ptx.decode()
        symbol = next(line.split()[2].rstrip("(") for line in text.splitlines() if line.startswith(".visible .entry"))
        return MachineCode(text.encode() + b"\0", symbol, (), 0)

    def _compiler(self) -> Any:
        try:
            return importlib.import_module("numba.cuda")
        except ImportError as error:
            what = f"Numba cannot be imported ({error}). Install it: pip install 'numba-cuda>=0.30,<0.31' 'numpy<2.5'."
            raise self._declaration.compile_error(what) from error

    def _array(self, rank: int, layout: str, dtype: Any, *, read_only: bool) -> Any:
        types = importlib.import_module("numba").types
        return types.Array(self._type(dtype), rank, layout, readonly=read_only)

    @staticmethod
    def _type(dtype: Any) -> Any:
        return importlib.import_module("numba").from_dtype(dtype)

    def fields(self, layout: Layout) -> Sequence[Field]:
        about = (0, 0, prod(layout.shape), layout.dtype.itemsize, None, *layout.shape, *layout.strides)
        return tuple([(8, value) for value in about])

    def sizes(self, variant: int) -> Sequence[int]:
        arrays = [[8] * (_PARTS + 2 * rank) for rank, _ in cast(_Arrays, self.specialised(variant))]
        numbers = [[each.itemsize] for each in self.scalars.values()]
        return list(chain.from_iterable(self._declaration.in_order(arrays, numbers)))

    def block(self, tile: Shape) -> Shape:
        if not 1 <= len(tile) <= 3 or prod(tile) > MAX_THREADS:
            what = f"a block has a thread for each element of a tile, but the tile is {tile}"
            raise self._declaration.error(
                what, f"Cut tiles of at most {MAX_THREADS} elements and 3 axes, or give block= and a loop in the kernel"
            )
        return tile

    @property
    def takes_strides(self) -> bool:
        return True
