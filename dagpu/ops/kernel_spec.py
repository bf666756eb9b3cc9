"""`KernelSpec`, the declaration of a kernel as data: its parameters, its code and its host body; and `Form`, what is
passed for a parameter, and what the kernel does with it.

The code is CUDA source text, a library's functions, or a `PythonKernel`.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, final

import numpy as np

from dagpu.common.frozen import plain
from dagpu.common.layout import Layout, Shape
from dagpu.common.places import Origin, describe
from dagpu.handles.device_handles import LibraryBody
from dagpu.handles.handle_state import ModuleState

# ---- forms of parameters


Passed: TypeAlias = Literal["view", "tile", "scalar"]
"""How CUDA takes a parameter, unless it takes plain pointers: a `View`, a `Tile`, or a scalar C type."""


@final
class Form(Enum):
    """The form of a kernel's parameter: a tensor that is read or written, or a value.

    A member answers what all layers ask about a parameter. What one layer alone asks is in a table of that layer, by
    form: which handles a call takes (`call_arguments`), how a launch packs it (`launch_params`).
    """

    IN = "in", "an input", "a Tensor, SharedTensor, TensorRef or TensorMut", "view"
    OUT = "out", "an output", "a Partition", "tile"
    SCALAR = "scalar", "a number", "a number", "scalar"

    def __new__(cls, name: str, noun: str, wanted: str, passed: Passed) -> "Form":
        """Make a member. Its value is its name alone, and so is what a pickle holds."""
        made = object.__new__(cls)
        made._value_ = name
        return made

    def __init__(self, name: str, noun: str, wanted: str, passed: Passed) -> None:
        self.noun: Final = noun
        """The words for a parameter, in messages."""
        self.wanted: Final = wanted
        """The words for its argument, in messages."""
        self.passed: Final[Passed] = passed
        """How CUDA takes it."""
        self.is_tensor: Final = passed in ("view", "tile")
        """True if the argument is memory of a device, false if it is a value."""
        self.is_written: Final = passed == "tile"
        """True if the kernel writes the argument."""
        self.is_input: Final = passed == "view"
        """True if the kernel only reads the argument. It may read an output too."""
        self.word: Final = name.capitalize() if self.is_tensor else name
        """The name of the annotation, `In` or `Out`; for a number "scalar"."""

    __hash__ = object.__hash__  # that of an `Enum` is a function in Python, and members are equal to themselves alone


# ---- the declaration


AxisSight: TypeAlias = tuple[int, int, int]
"""What a tile sees along an axis of an input: an axis of the first output, and the elements that it also sees before
and after its own extent along that axis."""


@final
@plain
class Sight:
    """What a tile of a kernel's output sees of one input."""

    axes: tuple[AxisSight | None, ...]
    """For each axis of the input; None for all of it."""
    declared: str
    """The declaration, for messages."""


class RecordCheck(ABC):
    """Checks the value of a parameter that is a structure, and returns its bytes."""

    dtype: "np.dtype[Any]"
    """The layout of the structure."""
    align: int
    """The alignment of the structure in bytes."""

    @abstractmethod
    def __call__(self, value: object) -> bytes:
        """Return the bytes that are passed for a value.

        Raises:
            KernelArgumentError: the value is no record of this layout.
        """

    def record(self, data: bytes) -> Any:
        """Return the NumPy record, read-only, that has these bytes."""
        return np.frombuffer(data, self.dtype)[0]


@final
@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a kernel, from its Python signature and its CUDA signature."""

    name: str
    form: Form
    dtype: "np.dtype[Any] | None"
    """Element type of a tensor; that of a generic kernel is in its CUDA signature. None for a scalar."""
    rank: int | None
    """Rank that the CUDA signature declares; None if it declares none (`abi="pointers"`)."""
    check: Callable[[object], object] | None
    """For a scalar: checks a value against the declared C type. Returns the value to pass, or raises."""
    lazy: bool
    """True for a scalar that may be an op."""
    optional: bool = False
    """True for a tensor in whose place None may be passed: a null pointer."""
    lanes: int = 1
    """The number of elements in one of CUDA's vectors (`float4`), if CUDA takes a pointer to vectors of them."""
    align: int = 1
    """The alignment in bytes that CUDA expects of the memory, beyond that of one element."""
    listed: bool = False
    """True if a list of tensors is passed, whose addresses CUDA takes as an array (`T**`). In the specification of a
    launch each of these tensors has a parameter of its own (`KernelSpec.lists`)."""

    constant: int | None = None
    """For an input that CUDA has as a `__constant__` variable, which is no parameter there, and which each launch sets
    first: the number of the variable's elements, 0 if the text does not tell it. None for any other."""

    @property
    def is_open(self) -> bool:
        """True if an op may take the place of the argument."""
        return self.form.is_tensor or self.lazy


@final
@dataclass(slots=True, eq=False)
class HostBody:
    """The Python body of a kernel, for the host backend. `@kernel.host` sets it once, after the declaration."""

    function: Callable[..., None] | None = None
    whole: bool = False
    """True if the body is called once with whole outputs; false if it is called once for each tile."""
    generated: Callable[..., None] | None = None
    """A whole body that dagpu has made, so that it calls no code of the user's; None for any other. It takes plain
    arrays, and its caller ignores floating-point errors (`np.errstate`). `function` is the same body for any caller."""
    together: bool = False
    """True if the bodies of several launches do together what their texts do, so that what one of them leaves differs
    from what its text leaves."""


@final
@plain
class Indexed:
    """An input of a kernel whose elements are indices of another tensor. The caller, and not the kernel, is to blame
    for an index beyond that tensor."""

    name: str
    """The name of the input."""
    axis: int
    """The axis of the other tensor along which the indices count."""


@final
class IndexBeyond(Exception):
    """Raised by the host body of an indexed kernel: an index is beyond its axis; or, with the name of an input, a start
    in it is not a place from 0 to the end of the axis."""

    def __init__(self, index: int, extent: int, starts: str = "", after: int | None = None) -> None:
        super().__init__(index, extent, starts, after)
        self.index = index
        self.extent = extent
        self.starts = starts
        """The name of the input of starts; empty for an index."""
        self.after = after
        """The start before this one, if that is larger."""

    def __str__(self) -> str:
        return f"index {self.index} of an axis with {self.extent} elements"


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
    """A kernel written in Python for Triton, Numba or cuTile, and the compiler that makes machine code of it.

    A backend launches the machine code as it launches any other kernel.

    The compiler specialises the code for what it knows of the arguments, and of the tile. Each such variant has a
    number. Several threads may use an object at once.
    """

    needs_scratch: bool = False
    """True if programs may need scratch memory, as `scratch_bytes` says."""

    def __init__(self, library: str, hidden: int) -> None:
        self.library: Final = library
        """The name of the compiler for messages: `Triton 3.6.0`."""
        self.hidden: Final = hidden
        """The number of pointers that the compiler appends to the parameters. The first one is the scratch memory of a
        launch that has some; the others are null."""
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

    def knows_scratch(self, arch: str, variant: int) -> bool:
        """Return true if `scratch_bytes` returns at once."""
        return True

    def scratch_bytes(self, arch: str, variant: int) -> int:
        """Return the bytes of scratch memory that each program of a variant needs; it may be compiled for that.

        Raises:
            CompileError: the compiler refuses the kernel.
        """
        return 0

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

    def host_body(self, grid: Shape, tile: Shape | None) -> Callable[..., None] | None:
        """Return the function that the library runs a launch with on the host: it takes whole outputs, read-only
        inputs and numbers, in the order of the parameters. None if the library needs a GPU, as most do.

        Args:
            grid: the grid of the launch.
            tile: the tile of the first output; None if the kernel has no output.
        """
        return None

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


@final
@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """The declaration of a kernel. `kernel.grid(...)` and similar methods make a changed copy."""

    name: str
    params: tuple[Param, ...]
    cuda: str
    """The CUDA C++ source text."""
    source_name: str
    """File name of the source text, for the compiler's messages; `file.py:12` for a text inside a Python file."""
    abi: Literal["views", "pointers"]
    block: tuple[int, ...] | None
    options: tuple[str, ...]
    checked: bool
    origin: Origin
    host: HostBody = field(default_factory=HostBody)
    grid: tuple[int, ...] | None = None
    shared_bytes: int = 0
    in_place: bool = False
    """True if an output may reuse the memory of an input of equal shape and element size that is not read later."""
    early_reads: tuple[int, ...] | None = None
    """Indices in `params` of the inputs that the kernel reads before it waits for the kernel before it in a graph; None
    if it does not wait, and so must start when that kernel is over."""
    sees: tuple[Sight | None, ...] | None = None
    """For each parameter what a tile sees of it, None for everything; None if nothing is declared."""
    walked: tuple[tuple[tuple[int, int], ...], ...] = ()
    """What a generated kernel counts beside the elements of each argument: products of extents, each of a parameter and
    an axis of it. A kernel of broadcast arguments walks more elements than any of them has."""
    indexed: Indexed | None = None
    """The input with indices of another tensor, if an index may be beyond it."""
    library: LibraryBody | None = None
    """The functions of a library that do the work on a CUDA device, in place of CUDA source text. Such a kernel writes
    whole outputs."""
    python: PythonKernel | None = None
    """The kernel in Python that another library compiles, in place of CUDA source text."""
    seconds: float | None = None
    """The declared time of a launch on a device, in seconds; None if none is declared."""
    peers: bool = False
    """True if its inputs may be on devices whose memory its own device reads. Those of other kernels are on its
    device."""
    results: int = 0
    """The number of parameters, the last ones, that are new tensors: the kernel defines each of their elements."""
    expression: str = ""
    """The name in tables and pictures of the expression of which dagpu has made the kernel, if that is a `lambda`."""
    state: ModuleState | None = None
    """The variables of the kernel's module that its launches may change; None if there are none. Two launches at the
    same time would share them."""
    cooperative: bool = False
    """True if the blocks wait for all blocks of the grid, which takes a cooperative launch."""
    cluster: tuple[int, ...] | None = None
    """The extents of a cluster in blocks, if the launch gives them."""
    asks_shared: str = ""
    """The declaration of dynamic shared memory in the text, if nothing says how many bytes it has."""
    entry: str = ""
    """The name of the `__global__` function with its namespaces and the arguments of a template, `ns::k<float, 256>`,
    if it is not `name`."""
    lists: tuple[tuple[int, int], ...] = ()
    """For each list of tensors the index in `params` of its first one, and their number. CUDA takes the address of
    their addresses, which are in the launch's scratch memory, at the place of that index."""
    overload: str = ""
    """The parameters as the text has them, if it has other functions of the name."""
    constants: tuple[tuple[int, Param], ...] = field(init=False, repr=False)
    """The inputs that are `__constant__` variables, with their indices in `params`."""
    records: tuple[tuple[int, Callable[[Any], Any]], ...] = field(init=False, repr=False)
    """Indices in `params` of the values that are structures, with the functions that make a NumPy record of their
    bytes."""
    tensors: tuple[tuple[int, Param], ...] = field(init=False, repr=False)
    """The parameters that are tensors, with their indices in `params`."""
    lazy: tuple[tuple[int, Callable[[object], object]], ...] = field(init=False, repr=False)
    """Indices of the scalars in `params` that may be ops, with their checks."""
    may_need_scratch: bool = field(init=False, repr=False)
    """True if a launch may need scratch memory, which is planned before it."""
    takes_pointers: bool = field(init=False, repr=False)
    """True if a tensor is passed as a plain pointer, which has no strides."""
    counts_threads: bool = field(init=False, repr=False)
    """True if the text finds its elements by its own count of threads, without a `Tile`: it is of the user's, on plain
    pointers."""
    open_places: tuple[int, ...] = field(init=False, repr=False)
    """Indices of the parameters in `params` that take an op or a handle."""
    label: str = field(init=False, repr=False)
    """The name in tables and pictures."""

    @property
    def title(self) -> str:
        """The name at the beginning of a message."""
        return f"the expression at {describe(self.origin)}" if self.expression else f"kernel {self.name!r}"

    def __post_init__(self) -> None:
        params = list(enumerate(self.params))
        tensors = [(i, param) for i, param in params if param.form.is_tensor]
        lazy = [(i, param.check) for i, param in params if param.lazy and param.check is not None]
        scratch = self.library is not None or (self.python is not None and self.python.needs_scratch)
        object.__setattr__(self, "may_need_scratch", scratch or bool(self.lists))
        pointers = self.abi == "pointers" and self.library is None
        object.__setattr__(self, "takes_pointers", pointers and not (self.python and self.python.takes_strides))
        object.__setattr__(self, "counts_threads", pointers and self.python is None)
        records = [(i, param.check.record) for i, param in params if isinstance(param.check, RecordCheck)]
        object.__setattr__(self, "records", tuple(records))
        object.__setattr__(self, "constants", tuple([(i, p) for i, p in tensors if p.constant is not None]))
        object.__setattr__(self, "tensors", tuple(tensors))
        object.__setattr__(self, "lazy", tuple(lazy))
        object.__setattr__(self, "open_places", tuple([i for i, p in params if p.is_open]))
        object.__setattr__(self, "label", self.expression or self.name)
