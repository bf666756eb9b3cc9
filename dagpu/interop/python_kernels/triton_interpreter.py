"""Triton's interpreter: kernels that are declared under TRITON_INTERPRET=1 run on the host, without PyTorch.

A load or store of the interpreter goes to any address. So its accesses are checked: loads stay in the tensors of the
launch, stores in its outputs.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu.common.dtypes import Shape
from dagpu.common.errors import KernelBoundsError
from dagpu.common.layout import address_of

_LOCK: Final = Lock()
"""The interpreter has one program at a time: its place in the grid is a global of the module."""


@final
class Pointed(NamedTuple):
    """A tensor of a launch."""

    array: NDArray[Any]
    """Its elements, in C order."""
    type: str
    """The type of the pointer, as Triton writes it: `*fp32`."""
    writable: bool


@final
class TritonInterpreter:
    """The interpreter of the Triton that the user has imported."""

    def __init__(self, jit: Any, described: str) -> None:
        self._jit = jit
        self._described = described
        """The kernel and its place, for messages."""

    def run(self, grid: Shape, arguments: Mapping[str, object]) -> None:
        """Run a launch: each program of the grid, one after the other.

        Args:
            grid: one to three extents.
            arguments: for each parameter a `Pointed`, a `Typed`, or the value of a constexpr.

        Raises:
            KernelBoundsError: a program loads from no tensor of the launch, or stores to none of its outputs.
        """
        module = importlib.import_module("triton.runtime.interpreter")
        tensors = [each for each in arguments.values() if type(each) is Pointed]
        given = {name: _as_tensor(module, each) for name, each in arguments.items()}
        with _LOCK, _checked(module, tensors, self._described):
            try:
                self._jit[grid](**given)
            except Exception as error:
                if isinstance(error.__cause__, KernelBoundsError):
                    raise error.__cause__ from None
                raise


@final
class Typed(NamedTuple):
    """A number of a launch."""

    value: object
    dtype: "np.dtype[Any]"
    type: str
    """Its type, as Triton writes it: `fp32`."""


def is_interpreted(jit: object) -> bool:
    """Return true for what `@triton.jit` makes under TRITON_INTERPRET=1."""
    return type(jit).__name__ == "InterpretedFunction"


def _as_tensor(module: Any, argument: object) -> object:
    """Return an argument as a tensor of the interpreter's; a constexpr as it is."""
    if type(argument) is Pointed:
        contents = np.array([address_of(argument.array)], np.uint64)
    elif type(argument) is Typed:
        contents = np.array(argument.value, argument.dtype)
    else:
        return argument
    kind = module.tl.str_to_ty(argument.type, None)
    return module.tl.tensor(module.TensorHandle(contents, kind), kind)


@contextmanager
def _checked(module: Any, tensors: Sequence[Pointed], described: str) -> Iterator[None]:
    """Within the `with` block, the interpreter's accesses to memory are checked."""
    plain = module._interpreter  # noqa: SLF001  # the functions in C that access memory have no public name
    module._interpreter = _CheckedMemory(plain, tensors, described, lambda: module.interpreter_builder.grid_idx)  # noqa: SLF001
    try:
        yield
    finally:
        module._interpreter = plain  # noqa: SLF001


@final
class _CheckedMemory:
    """The functions of the interpreter that access memory, and checks before each of them."""

    def __init__(
        self, plain: Any, tensors: Sequence[Pointed], described: str, place: Callable[[], tuple[int, ...]]
    ) -> None:
        self._plain = plain
        self._described = described
        self._place = place
        """Returns the place of the current program in the grid."""
        spans = [(_span(each.array), each.writable) for each in tensors]
        self._readable = [span for span, _ in spans]
        self._writable = [span for span, writable in spans if writable]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        self._check("loads", pointers, mask, np.dtype(dtype).itemsize, self._readable)
        return self._plain.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, values: Any, mask: Any) -> Any:
        self._check("stores", pointers, mask, values.itemsize, self._writable)
        return self._plain.store(pointers, values, mask)

    def atomic_rmw(self, operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        self._check("stores", pointers, mask, values.itemsize, self._writable)
        return self._plain.atomic_rmw(operation, pointers, values, mask, order)

    def atomic_cas(self, pointers: Any, compared: Any, values: Any, order: Any) -> Any:
        self._check("stores", pointers, True, values.itemsize, self._writable)
        return self._plain.atomic_cas(pointers, compared, values, order)

    def _check(self, does: str, pointers: Any, mask: Any, nbytes: int, spans: Sequence[tuple[int, int]]) -> None:
        used = np.asarray(pointers)[np.broadcast_to(np.asarray(mask, bool), np.shape(pointers))]
        inside = np.zeros(used.shape, bool)
        for start, stop in spans:
            inside |= (used >= start) & (used + nbytes <= stop)
        if not inside.all():
            whose = "tensors" if does == "loads" else "outputs"
            raise KernelBoundsError(
                f"{self._described}: program {tuple(self._place())} {does} {nbytes} bytes at an address that is in "
                f"none of its {whose}. Mask the access, or declare the tensor that it means."
            )


def _span(array: NDArray[Any]) -> tuple[int, int]:
    start = address_of(array)
    return start, start + array.nbytes
