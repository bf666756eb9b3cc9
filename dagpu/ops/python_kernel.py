"""`PythonKernel`: a kernel that is written in Python and compiled by another library: Triton, Numba or cuTile.

A backend launches its machine code as it launches any other kernel."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Final, TypeAlias, final

from dagpu.common.dtypes import Shape
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout

Field: TypeAlias = tuple[int, int | None]
"""One field of a tensor argument in the parameters of a kernel: its size in bytes, and its value; None for the address
of the first element."""


@final
@plain
class MachineCode:
    """The result of a compilation."""

    cubin: bytes
    """A cubin, or PTX text that ends with a zero byte."""
    symbol: str
    """The symbol of the kernel."""
    block: Shape
    """The block dimensions that it is compiled for; empty if any will do."""
    shared_bytes: int
    """Bytes of dynamic shared memory that each block needs."""


class PythonKernel(ABC):
    """A kernel written in Python, and the compiler that makes machine code of it.

    The compiler specialises the code for what it knows of the arguments, and of the tile. Each such variant has a
    number. Several threads may use an object at once.
    """

    def __init__(self, library: str, hidden: int) -> None:
        self.library: Final = library
        """The name of the compiler for messages: `Triton 3.6.0`."""
        self.hidden: Final = hidden
        """The number of pointers that the compiler appends to the parameters; each launch passes null."""
        self._variants: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []
        self._lock = threading.Lock()

    def variant(self, operands: Sequence[Layout], tile: Shape | None) -> int:
        """Return the number of the variant for tensors of these layouts, in the order of the parameters.

        Args:
            operands: the layouts of the tensor arguments. A block of memory begins at a multiple of 256 bytes.
            tile: the tile of the first output; None if the kernel has no output.

        Raises:
            KernelArgumentError: the kernel cannot be specialised for them.
        """
        return self._number(self.specialise(operands, tile))

    def _number(self, key: Hashable) -> int:
        """Return the number of what `specialise` gives."""
        with self._lock:
            found = self._variants.setdefault(key, len(self._keys))
            if found == len(self._keys):
                self._keys.append(key)
        return found

    def compile(self, arch: str, variant: int) -> MachineCode:
        """Return the machine code of a variant for an architecture: `sm_90`.

        Raises:
            CompileError: the compiler refuses the kernel.
            KernelArgumentError: the kernel writes to an input.
        """
        return self.compile_for(arch, self._keys[variant])

    def specialised(self, variant: int) -> Hashable:
        """Return what `specialise` gave for a variant."""
        return self._keys[variant]

    def block(self, tile: Shape) -> Shape:
        """Return the block dimensions of a launch for a tile of the first output; empty if the kernel's declaration or
        its compiler gives them.

        Raises:
            KernelArgumentError: there are none for this tile.
        """
        return ()

    @abstractmethod
    def usual_variant(self) -> int:
        """Return the variant that is compiled ahead of the first launch.

        Raises:
            KernelArgumentError: it depends on the arguments of a launch.
        """

    @abstractmethod
    def specialise(self, operands: Sequence[Layout], tile: Shape | None) -> Hashable:
        """Return what the machine code depends on; see `variant`."""

    @abstractmethod
    def compile_for(self, arch: str, specialised: Hashable) -> MachineCode:
        """Return the machine code for a result of `specialise`; see `compile`."""

    @abstractmethod
    def fields(self, layout: Layout) -> Sequence[Field]:
        """Return the fields of a tensor argument. Each is aligned to its size."""

    @abstractmethod
    def sizes(self, variant: int) -> Sequence[int]:
        """Return the sizes of all parameters of the machine code of a variant in bytes, without the hidden ones."""

    @property
    @abstractmethod
    def takes_strides(self) -> bool:
        """True if a tensor argument may have any strides; false if it is in C order."""
