"""`@kernel`: a CUDA kernel as a typed Python function that builds an op.

A call first checks all its arguments, and then moves the handles into the op. So a refused call leaves every handle
unchanged. The result of an argument that is an op is unknown at the call; the tracer checks it by the same rules
(`check_arguments`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import update_wrapper, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, TypeVar, cast, final, overload
from weakref import WeakSet

import numpy as np

from dagpu.common.env_vars import CHECKED
from dagpu.common.errors import KernelArgumentError
from dagpu.common.layout import Shape
from dagpu.common.pickling import PickledByName
from dagpu.common.places import Origin, describe, here, leaves_run, scope_of_caller, without_our_frames
from dagpu.common.wrong_arguments import as_whole_number, format_value
from dagpu.handles import Tensor
from dagpu.handles.handle_state import module_state
from dagpu.handles.tensors import move_handles
from dagpu.kernels.annotations import In as In
from dagpu.kernels.annotations import Lazy as Lazy
from dagpu.kernels.annotations import Out as Out
from dagpu.kernels.annotations import (
    PySignature,
    bind_arguments,
    declaration_error,
    declared_at,
    read_signature,
)
from dagpu.kernels.call_arguments import check_arguments, check_launchable, format_param, is_launchable
from dagpu.kernels.declaration import (
    ScalarCheck,
    check_body,
    check_extents,
    check_module,
    check_settings,
    checked_output,
    compile_ahead,
    early_inputs,
    params_of,
    read_source,
)
from dagpu.kernels.sees import Sees, sights_of
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import FIRST, UNCUT, Cut, KernelOp, Launch, Map
from dagpu.ops.creation import Alloc
from dagpu.ops.kernel_spec import HostBody, KernelSpec

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_D = TypeVar("_D", bound=np.generic)
_F = TypeVar("_F", bound=Callable[..., object])

DECLARED: Final[WeakSet[Any]] = WeakSet()
"""The kernels and expressions that are declared now, each a `Kernel` or an `Expression`."""


@final
class Kernel(PickledByName, Generic[_P]):
    """A kernel. A call builds an op whose result is the tuple of the arguments, with their kinds unchanged."""

    def __init__(self, spec: KernelSpec, signature: PySignature, function: Callable[_P, None]) -> None:
        self.spec = spec
        self._signature = signature
        self._function = function
        self._arity = len(signature.names) if signature.positional == len(signature.names) else -1
        """The number of parameters; -1 if some of them can be passed by name only."""
        self._tensors = tuple(i for i, _ in spec.tensors)
        self._scalars = tuple((i, p.check) for i, p in enumerate(spec.params) if p.check is not None)
        checks = [(i, check) for i, check in self._scalars if isinstance(check, ScalarCheck)]
        self._plain = tuple((i, check.kind, check.low, check.high) for i, check in checks)
        known = len(checks) == len(self._scalars) and is_launchable(spec)
        self._is_quick = known and (spec.grid is not None or any(p.form.is_written for p in spec.params))
        """True if a call whose arguments are ops and fitting numbers needs no other checks."""
        update_wrapper(self, function, updated=())

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> KernelOp:
        """Return the op of a launch. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: an argument is missing, has a wrong form, element type, rank, scalar type or range, or
                shares memory with an output. No handle has been moved.
            MovedError: a handle has been moved before.
        """
        try:
            origin = here()
            if kwargs or len(args) != self._arity:
                return self._launch(bind_arguments(self.spec, self._signature, args, kwargs, origin), origin)
            # Most calls pass ops and fitting numbers, which need no other checks.
            for i in self._tensors:
                if not isinstance(args[i], DeviceOp):
                    return self._launch(list(args), origin)
            for i, kind, low, high in self._plain:
                number = args[i]
                if type(number) is not kind or not low <= number <= high:
                    return self._launch(list(args), origin)
            return Launch(self.spec, args, origin) if self._is_quick else self._launch(list(args), origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    def _launch(self, given: list[Any], origin: Origin) -> KernelOp:
        """Check all arguments, move the handles, and return the op."""
        check_launchable(self.spec, origin)
        check_arguments(self.spec, given, origin, ops=True)
        for i, check in self._scalars:
            if not isinstance(given[i], DeviceOp):
                given[i] = check(given[i])
        # Each handle is live here, and no two share memory that one of them owns.
        return Launch(self.spec, move_handles(tuple(given), "being passed to a kernel", origin), origin)

    # A method for kernels whose first parameter is an output. mypy infers its element type from a callable alone.
    def new(  # type: ignore[misc]  # reason: a callable is no supertype of the class, but every kernel is one
        self: "Callable[Concatenate[Out[_D], _Q], KernelOp]",  # pyright: ignore[reportGeneralTypeIssues]  # the same
        shape: Shape,
        tile: Shape,
        *,
        partial: bool = False,
    ) -> "NewOutput[_Q, _D]":
        """Return the kernel as a function of its inputs. Each call writes to a new tensor of this shape, tile by tile.

        `saxpy.new((n,), (256,))(2.0, x)` is `saxpy(empty((n,)).partition((256,)), 2.0, x).first().unpartition()`. It is
        for kernels whose first parameter is their only output, and which write all of it.

        Args:
            shape: the extents of the new tensors. Their element type is the one that CUDA declares.
            tile: the extents of one tile.
            partial: True allows smaller tiles at the edge; without it the tile divides the shape.

        Raises:
            KernelArgumentError: the kernel has several outputs, its first parameter is not one, or the shape has
                another rank than CUDA declares.
            PartitionError: the tile has another rank than the shape, or does not divide it.
            ShapeError: `shape` is not a tuple of extents.
        """
        try:
            return NewOutput(cast("Kernel[Any]", self), shape, tile, partial, here())
        except BaseException as error:
            without_our_frames(error)
            raise

    @overload
    def host(self, body: Callable[..., None], /) -> None: ...
    @overload
    def host(self, /, *, whole: bool = ...) -> Callable[[Callable[..., None]], None]: ...

    @leaves_run
    def host(
        self, body: Callable[..., None] | None = None, /, *, whole: bool = False
    ) -> Callable[[Callable[..., None]], None] | None:
        """Decorate the NumPy function that the host backend runs; it has the kernel's parameters.

        The function is called once for each tile of the partition: each output is a `Tile`, each input a read-only
        array, each scalar a number. With `@k.host(whole=True)` it is called once, with whole outputs.

        Raises:
            KernelArgumentError: the parameters differ from the kernel's, or the kernel has a host body already.
        """

        @leaves_run
        def decorate(body: Callable[..., None]) -> None:
            check_body(self.spec, self._signature.names, body)
            self.spec.host.function, self.spec.host.whole = body, whole

        if body is None:
            return decorate
        decorate(body)
        return None

    @leaves_run
    def grid(self, *grid: int) -> "Kernel[_P]":
        """Return a copy that launches this grid of blocks, 1 to 3 extents, instead of the partition's tile grid."""
        return self._changed(
            grid=check_extents(grid, "grid", self.spec.name, describe(self.spec.origin), describe(here()))
        )

    @leaves_run
    def block(self, *block: int) -> "Kernel[_P]":
        """Return a copy with these block dimensions: 1 to 3 extents, at most 1024 threads in total."""
        self._refuse_setting("block(...)")
        return self._changed(
            block=check_extents(block, "block", self.spec.name, describe(self.spec.origin), describe(here()))
        )

    @leaves_run
    def shared_memory(self, nbytes: int) -> "Kernel[_P]":
        """Return a copy whose blocks have `nbytes` bytes of dynamic shared memory each."""
        self._refuse_setting("shared_memory(...)")
        count = as_whole_number(nbytes)
        if count is None or count < 0:
            what = f"shared_memory({nbytes!r}) at {describe(here())}"
            raise declaration_error(
                self.spec.name, describe(self.spec.origin), what, "Give a number of bytes, 0 or more"
            )
        return self._changed(shared_bytes=count)

    def _refuse_setting(self, call: str) -> None:
        """Raise a `KernelArgumentError` for a setting that the compiler of a kernel in Python chooses."""
        if self.spec.python is not None:
            what = f"{call} at {describe(here())}, but {self.spec.python.library} chooses what a block has"
            raise declaration_error(
                self.spec.name, describe(self.spec.origin), what, "Say it where the kernel is declared"
            )

    def _changed(self, **changes: Any) -> "Kernel[_P]":
        """Return a copy with other settings."""
        return Kernel(replace(self.spec, **changes), self._signature, self._function)

    @leaves_run
    def compile(self, arch: str | None = None) -> None:
        """Compile the kernel now, so that the first launch does not wait for the compiler.

        With the name of an architecture it is compiled for that one, as a check of its source: on any machine, without
        a GPU or a driver. The extra `nvrtc` installs the compiler.

        Args:
            arch: `"sm_90"`, say; None for the GPU that is here.

        Raises:
            CompileError: the compiler refuses the source. The message shows the lines.
            DeviceError: no CUDA compiler is installed.
            KernelArgumentError: `arch` is no name of an architecture.
            NoDeviceError: `arch` is None, and no CUDA backend is loaded.
        """
        compile_ahead(self.spec, arch, here())

    def __repr__(self) -> str:
        params = ", ".join(map(format_param, self.spec.params))
        return f"<kernel {self.spec.name}({params}) declared at {describe(self.spec.origin)}>"


@final
class NewOutput(PickledByName, Generic[_Q, _D]):
    """A kernel with a new tensor as its output, from `kernel.new(shape, tile)`. A call yields the tensor."""

    def __init__(self, kernel: Kernel[Any], shape: object, tile: object, partial: object, origin: Origin) -> None:
        spec = kernel.spec
        self._shape, tiles = checked_output(spec, shape, tile, partial, origin)
        self._cut = Cut(tiles, bool(partial))
        self._kernel = kernel
        self._dtype = spec.params[0].dtype

    def __call__(self, *args: _Q.args, **kwargs: _Q.kwargs) -> DeviceOp[Tensor[_D], Any]:
        """Return an op whose result is the new tensor. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: as for a call of the kernel. No handle has been moved.
            MovedError: a handle has been moved before.
        """
        origin = here()
        target: Any = Map(Alloc(self._shape, cast(Any, self._dtype), None, origin), self._cut, origin)
        launch = self._kernel(target, *args, **kwargs)
        written: Any = Map(Map(launch, FIRST, origin), UNCUT, origin)
        return cast("DeviceOp[Tensor[_D], Any]", written)

    def __repr__(self) -> str:
        return f"<kernel {self._kernel.spec.name} into a new tensor {self._shape}, tile {self._cut.tile}>"


def _by_name_alone(declare: _F) -> _F:
    """Wrap `declare` so that positional arguments, as of `@kernel` without parentheses, raise an error with a cure."""

    @wraps(declare)
    @leaves_run
    def called(*given: object, **named: Any) -> object:
        if not given:
            return declare(**named)
        write = "Write @kernel(cuda=...), with CUDA C++ source or the path of a .cu file"
        if inspect.isfunction(given[0]):
            raise declaration_error(given[0].__name__, declared_at(given[0]), "@kernel has no CUDA source", write)
        raise KernelArgumentError(f"@kernel at {describe(here())} takes its arguments by name. {write}.")

    return cast(_F, called)


@_by_name_alone
def kernel(
    *,
    cuda: str | Path,
    block: int | tuple[int, ...] | None = None,
    abi: Literal["views", "pointers"] = "views",
    options: Sequence[str] = (),
    checked: bool | None = None,
    in_place: bool = False,
    early_reads: Sequence[str] | None = None,
    sees: Mapping[str, Sees] | None = None,
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Declare a kernel. The decorated function defines its name and parameters; the body of the function never runs.

    Args:
        cuda: CUDA C++ source text, or the path of a `.cu` file. A relative path starts at the folder of the declaring
            module. The source has a `__global__` function with the name of the decorated function.
        block: the block dimensions, 1 to 3 extents, at most 1024 threads in total. None lets dagpu choose, except for a
            kernel of plain pointers: it counts its threads, so its calls are refused without a block.
        abi: "views" passes `Tile` and `View`; "pointers" passes plain pointers, as in existing CUDA code. A block then
            has a thread for each element of a tile at least, unless `kernel.grid(...)` gives the grid.
        options: options for the compiler.
        checked: True compiles bounds checks into the kernel. None means True if DAGPU_CHECKED is 1. A kernel of plain
            pointers has none.
        in_place: an output may reuse the memory of an input of the same shape and element size that is not needed any
            more. Set it only if the kernel and its host body use an element of such an input for the output's element
            of the same index alone, and read it before they write.
        early_reads: names of the inputs that the kernel reads before it calls `wait_for_inputs()`; `()` if it reads
            none so early. In a CUDA graph its blocks may then start while the kernel before it still runs
            (programmatic dependent launch), unless an instruction of the plan writes one of these inputs. Every thread
            must call `wait_for_inputs()` before it reads another argument, and before it writes. None means that the
            kernel starts when the one before it is over.
        sees: for names of inputs what one tile of the output looks at in them: `{"x": Around(3, 3)}`; `Here()`,
            `Rows()`, `Columns()`, or for each axis of the input an `Along` or None. Of an input that is left out a tile
            may look at everything. After a `write` to a part of a source, a feed runs the tiles that see the part,
            and a block may get an empty tile. With `checked`, a tile that looks at more raises a `KernelBoundsError`.

    Raises:
        KernelArgumentError: the Python and the CUDA declaration differ, or one of them cannot be read.
    """

    @leaves_run
    def decorate(function: Callable[_P, None]) -> Kernel[_P]:
        if not inspect.isfunction(function):
            what = f"@kernel(...) at {describe(here())} is applied to {format_value(function)}"
            raise KernelArgumentError(
                f"{what}, which is not a plain function. Decorate a `def` that names and types the kernel's parameters."
            )
        name, place = function.__name__, declared_at(function)
        signature = read_signature(function, scope_of_caller())
        check_settings(name, place, abi, options, checked=checked, in_place=in_place)
        if checked and abi == "pointers":
            what = 'checked=True with abi="pointers", whose accesses cannot be checked'
            raise declaration_error(name, place, what, "Leave checked out, or take Tile and View")
        threads = block if block is None or isinstance(block, tuple) else (block,)
        source, source_name = read_source(cuda, function)
        params = params_of(function, signature, source, abi)
        use = check_module(source, source_name, tuple(options), name, place)
        shared = ", ".join([repr(variable.name) for variable in use.changed])
        title = f"kernel {name!r}, whose launches share the variable {shared}"
        if not use.changed:
            title = f"kernel {name!r}, whose launches may share a variable, as its text {use.unread}"
        spec = KernelSpec(
            name=name,
            params=params,
            cuda=source,
            source_name=source_name,
            abi=abi,
            block=None if threads is None else check_extents(threads, "block", name, place),
            options=tuple(options),
            checked=abi == "views" and (CHECKED.get() if checked is None else bool(checked)),
            origin=(function.__code__, 0),
            host=HostBody(),
            in_place=bool(in_place),
            early_reads=early_inputs(early_reads, params, source, name, place),
            state=module_state(title, source, name, tuple(options)) if use.changed or use.unread else None,
            cooperative=use.waits_for_grid,
            sees=sights_of(sees, params, source, abi, name, place),
        )
        made = Kernel(spec, signature, cast("Callable[_P, None]", function))
        DECLARED.add(made)
        return made

    return decorate
