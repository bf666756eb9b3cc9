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
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Tensor
from dagpu.handles.handle_state import ModuleState, module_state
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
    CHECKER,
    OutputCut,
    ScalarCheck,
    as_flat,
    check_body,
    check_extents,
    check_module,
    check_settings,
    check_shared,
    check_whole_grid,
    checked_outputs,
    compile_ahead,
    early_inputs,
    lengths_of,
    params_of,
    read_source,
    with_lists,
)
from dagpu.kernels.module_variables import ModuleUse
from dagpu.kernels.sees import Sees, sights_of
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import FIRST, UNCUT, Cut, KernelOp, Launch, Map, Zip, unzip
from dagpu.ops.creation import Alloc
from dagpu.ops.kernel_spec import HostBody, KernelSpec
from dagpu.ops.recording import RECORDER

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_D = TypeVar("_D", bound=np.generic)
_D2 = TypeVar("_D2", bound=np.generic)
_D3 = TypeVar("_D3", bound=np.generic)
_T = TypeVar("_T")
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
        self._lists = any(param.listed for param in spec.params)
        self._of_lengths: dict[object, Kernel[_P]] = {}
        """The kernel by the lengths of the lists of tensors that it is called with, and by its host body."""
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
            if self._lists:
                given = bind_arguments(self.spec, self._signature, args, kwargs, origin)
                return self._launch_lists(given, origin)
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

    def _launch_lists(self, given: list[Any], origin: Origin) -> KernelOp:
        """Return the op of a launch with lists of tensors."""
        lengths = lengths_of(self.spec, given, origin)
        key = lengths, self.spec.host.function
        kernel = self._of_lengths.get(key)
        if kernel is None:
            kernel = Kernel(with_lists(self.spec, lengths), self._signature, self._function)
            self._of_lengths[key] = kernel
        return kernel._launch(as_flat(self.spec, given), origin)

    # A method for kernels whose first parameters are outputs. mypy infers their element types from a callable alone.
    @overload
    def new(  # type: ignore[misc]  # reason: a callable is no supertype of the class, but every kernel is one
        self: "Callable[Concatenate[Out[_D], Out[_D2], Out[_D3], _Q], KernelOp]",
        shape: Shape | Sequence[Shape],
        tile: Shape | Sequence[Shape],
        *,
        partial: bool = ...,
    ) -> "NewOutputs[_Q, tuple[Tensor[_D], Tensor[_D2], Tensor[_D3]]]": ...
    @overload
    def new(  # type: ignore[misc]  # reason: the same
        self: "Callable[Concatenate[Out[_D], Out[_D2], _Q], KernelOp]",
        shape: Shape | Sequence[Shape],
        tile: Shape | Sequence[Shape],
        *,
        partial: bool = ...,
    ) -> "NewOutputs[_Q, tuple[Tensor[_D], Tensor[_D2]]]": ...
    @overload
    def new(  # type: ignore[misc]  # reason: the same
        self: "Callable[Concatenate[Out[_D], _Q], KernelOp]",
        shape: Shape,
        tile: Shape,
        *,
        partial: bool = ...,
    ) -> "NewOutput[_Q, _D]": ...
    def new(self: Any, shape: Any, tile: Any, *, partial: bool = False) -> Any:
        """Return the kernel as a function of its inputs. Each call writes to a new tensor of this shape, tile by tile.

        `saxpy.new((n,), (256,))(2.0, x)` is `saxpy(empty((n,)).partition((256,)), 2.0, x).first().unpartition()`. It is
        for kernels whose first parameters are their outputs, and which write all of them. With several outputs the
        result is the tuple of the new tensors: `split.new([(n,), (2, n)], [(256,), (2, 256)])(x)`.

        Args:
            shape: the extents of the new tensors. Their element types are those that CUDA declares. A list has the
                extents of each output; one shape is that of all.
            tile: the extents of one tile; a list has those of each output.
            partial: True allows smaller tiles at the edge; without it the tile divides the shape.

        Raises:
            KernelArgumentError: the kernel has no outputs, or they are not its first parameters; a list has another
                length; or a shape has another rank than CUDA declares.
            PartitionError: a tile has another rank than the shape, or does not divide it.
            ShapeError: `shape` is not a tuple of extents.
        """
        try:
            outputs = checked_outputs(self.spec, shape, tile, partial, here())
            return NewOutput(self, outputs) if len(outputs) == 1 else NewOutputs(self, outputs)
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
        what = f"shared_memory({nbytes!r}) at {describe(here())}"
        count = check_shared(nbytes, what, self.spec.name, describe(self.spec.origin))
        return self._changed(shared_bytes=count, asks_shared="")

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

    @leaves_run
    def check(self, *args: Any, tolerance: float | None = None) -> None:
        """Run the CUDA text on the host, with each access checked, in three orders of threads and blocks, with and
        without contraction, and compare the results with each other and with those of the host body, if there is one.
        No GPU is needed; a C++ compiler is.

        Args:
            args: the arguments of a call, on a host device. Handles among them move.
            tolerance: the largest difference that is allowed, as a part of the largest element of an output. None: 32
                units in the last place of that, or four times what contraction changes, whichever is more.

        Raises:
            KernelMismatchError: two results differ by more.
            KernelFaultError, KernelBoundsError: the text does what it must not.
            CompileError: the text does not compile, or calls what cannot be checked.
            DeviceError: there is no C++ compiler.
        """
        CHECKER.value(cast("Callable[..., KernelOp]", self)(*args), tolerance)

    def __repr__(self) -> str:
        params = ", ".join(map(format_param, self.spec.params))
        return f"<kernel {self.spec.name}({params}) declared at {describe(self.spec.origin)}>"


class _NewTensors(PickledByName):
    """A kernel with new tensors as its outputs."""

    def __init__(self, kernel: Kernel[Any], outputs: Sequence[OutputCut]) -> None:
        self._kernel = kernel
        self._outputs = outputs

    def _launched(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the op of a call: of the new tensor, or of the tuple of several."""
        if (recorder := RECORDER.get()) is not None:
            return recorder.call(self._kernel, lambda *args, **kwargs: self._launched(args, kwargs), args, kwargs)
        origin = here()
        launch = self._kernel(*[_new_partition(output, origin) for output in self._outputs], *args, **kwargs)
        if len(self._outputs) == 1:
            return Map(Map(launch, FIRST, origin), UNCUT, origin)
        parts: Any = unzip(launch, None, origin)[: len(self._outputs)]
        return Zip(tuple([Map(part, UNCUT, origin) for part in parts]), origin)

    @leaves_run
    def check(self, *args: Any, tolerance: float | None = None) -> None:
        """Check the CUDA text on the host, as `kernel.check` does, with new tensors as the outputs.

        Args:
            args: the arguments of a call, on a host device. Handles among them move.
            tolerance: as for `kernel.check`.

        Raises:
            KernelMismatchError, KernelFaultError, KernelBoundsError, CompileError, DeviceError: as `kernel.check`.
        """
        CHECKER.value(self._launched(args, {}), tolerance)

    def __repr__(self) -> str:
        made = " and ".join([f"{shape}, tile {tile}" for shape, tile, *_ in self._outputs])
        what = "a new tensor" if len(self._outputs) == 1 else "new tensors"
        return f"<kernel {self._kernel.spec.name} into {what} {made}>"


@final
class NewOutput(_NewTensors, Generic[_Q, _D]):
    """A kernel with a new tensor as its output, from `kernel.new(shape, tile)`. A call yields the tensor."""

    def __call__(self, *args: _Q.args, **kwargs: _Q.kwargs) -> DeviceOp[Tensor[_D], Any]:
        """Return an op whose result is the new tensor. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: as for a call of the kernel. No handle has been moved.
            MovedError: a handle has been moved before.
        """
        op: DeviceOp[Tensor[_D], Any] = self._launched(args, kwargs)
        return op


@final
class NewOutputs(_NewTensors, Generic[_Q, _T]):
    """A kernel with new tensors as its outputs, from `kernel.new(shapes, tiles)`. A call yields their tuple."""

    def __call__(self, *args: _Q.args, **kwargs: _Q.kwargs) -> DeviceOp[_T, Any]:
        """Return an op whose result is the tuple of the new tensors. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: as for a call of the kernel. No handle has been moved.
            MovedError: a handle has been moved before.
        """
        op: DeviceOp[_T, Any] = self._launched(args, kwargs)
        return op


def _new_partition(output: OutputCut, origin: Origin) -> Any:
    """Return an op that makes the partition of a new tensor."""
    shape, tile, partial, dtype = output
    return Map(Alloc(shape, cast(Any, dtype), None, origin), Cut(tile, partial), origin)


def _by_name_alone(declare: _F) -> _F:
    """Wrap `declare` so that positional arguments, as of `@kernel` without parentheses, raise an error with a cure."""

    @wraps(declare)
    @leaves_run
    def called(*given: object, **named: Any) -> object:
        if not given or (len(given) == 1 and isinstance(given[0], str) and "cuda" in named):
            return declare(*given, **named)
        write = "Write @kernel(cuda=...), with CUDA C++ source or the path of a .cu file"
        if inspect.isfunction(given[0]):
            raise declaration_error(given[0].__name__, declared_at(given[0]), "@kernel has no CUDA source", write)
        raise KernelArgumentError(f"@kernel at {describe(here())} takes its arguments by name. {write}.")

    return cast(_F, called)


def _extents(
    given: int | tuple[int, ...] | None, what: Literal["block", "cluster"], called: str, place: str
) -> tuple[int, ...] | None:
    """Check and return extents that may be one number; None if there are none."""
    return (
        None if given is None else check_extents(given if isinstance(given, tuple) else (given,), what, called, place)
    )


def _state_of(called: str, use: ModuleUse, constants: Sequence[str], module: tuple[object, ...]) -> ModuleState | None:
    """Return the variables that the launches of a kernel share; None if there are none."""
    shared = ", ".join(map(repr, [*[variable.name for variable in use.changed], *constants]))
    if shared:
        return module_state(f"kernel {called!r}, whose launches share the variable {shared}", *module)
    if use.unread:
        title = f"kernel {called!r}, whose launches may share a variable, as its text {use.unread}"
        return module_state(title, *module)
    return None


@_by_name_alone
def kernel(
    name: str | None = None,
    /,
    *,
    cuda: str | Path,
    block: int | tuple[int, ...] | None = None,
    abi: Literal["views", "pointers"] = "views",
    options: Sequence[str] = (),
    checked: bool | None = None,
    in_place: bool = False,
    early_reads: Sequence[str] | None = None,
    sees: Mapping[str, Sees] | None = None,
    shared_memory: int | None = None,
    cooperative: bool = False,
    cluster: int | tuple[int, ...] | None = None,
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Declare a kernel. The decorated function defines its name and parameters; the body of the function never runs.

    Args:
        name: the name of the `__global__` function if it is not that of the decorated function: `"ns::scale"`, or the
            instance of a template, `"reduce<float, 256>"`.
        cuda: CUDA C++ source text, or the path of a `.cu` file. A relative path starts at the folder of the declaring
            module. The source has a `__global__` function with that name.
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
        shared_memory: bytes of dynamic shared memory (`extern __shared__`) for each block. The calls of a kernel that
            has some in its text are refused without it, and without `kernel.shared_memory(nbytes)`.
        cooperative: True makes a cooperative launch, in which all blocks are on the GPU at once, so that they may wait
            for each other. A text that calls `sync()` of `this_grid()` is launched so without it.
        cluster: the blocks of a cluster, 1 to 3 extents, at most 8 in total (compute capability 9.0 and newer). The
            grid has whole clusters.

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
        called, place = function.__name__, declared_at(function)
        signature = read_signature(function, scope_of_caller())
        check_settings(called, place, abi, options, checked=checked, in_place=in_place, cooperative=cooperative)
        if checked and abi == "pointers":
            what = 'checked=True with abi="pointers", whose accesses cannot be checked'
            raise declaration_error(called, place, what, "Leave checked out, or take Tile and View")
        source, source_name = read_source(cuda, function)
        folder = Path(source_name).parent
        params, declared = params_of(
            function, signature, source, abi, entry=name or "", folder=folder, options=tuple(options)
        )
        constants = [param.name for param in params if param.constant is not None]
        shared_bytes = None
        if shared_memory is not None:
            shared_bytes = check_shared(shared_memory, f"shared_memory={shared_memory!r}", called, place)
        use = check_module(source, source_name, tuple(options), declared.name, place, constants)
        spec = KernelSpec(
            name=called,
            params=params,
            cuda=source,
            source_name=source_name,
            abi=abi,
            block=_extents(block, "block", called, place),
            options=tuple(options),
            checked=abi == "views" and (CHECKED.get() if checked is None else bool(checked)),
            origin=(function.__code__, 0),
            host=HostBody(),
            in_place=bool(in_place),
            early_reads=early_inputs(early_reads, params, source, called, place),
            state=_state_of(called, use, constants, (source, declared.name, tuple(options))),
            cooperative=use.waits_for_grid or bool(cooperative),
            cluster=_extents(cluster, "cluster", called, place),
            shared_bytes=shared_bytes or 0,
            asks_shared=use.dynamic_shared if shared_bytes is None else "",
            entry=declared.instance or (declared.name if declared.name != called else ""),
            overload=declared.overload,
            sees=sights_of(sees, params, source, abi, called, place),
        )
        check_whole_grid(spec, place)
        made = Kernel(spec, signature, cast("Callable[_P, None]", function))
        DECLARED.add(made)
        return made

    return decorate
