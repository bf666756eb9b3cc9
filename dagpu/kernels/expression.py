"""`expr` and what it makes: `Expression`, an element-wise function of tensors, and its reductions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    cast,
    final,
    overload,
)

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.errors import KernelArgumentError, ShapeError
from dagpu.common.frozen import Slot
from dagpu.common.layout import (
    Layout,
    Shape,
    bf16,
    bool_,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.pickling import PickledByName
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import check_flag
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In, Lazy, Out
from dagpu.kernels.declaration import compile_ahead
from dagpu.kernels.element import (
    REDUCE,
    Elem,
    TracedExpression,
    refuse_call_in_expression,
)
from dagpu.kernels.expression_text import (
    ArgumentPattern,
    argument_params,
    arguments_by_position,
    broadcast_arguments,
    call_form,
    direct_walk,
    input_params,
    kernel_text,
    output_names,
    passed_arguments,
    patterns_of,
    refuse_arguments,
    safe_name,
    tile_of,
    walk_of_kinds,
)
from dagpu.kernels.generated_launch import (
    AnyOp,
    call_spec,
    check_call,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    reshaped,
    with_layouts,
)
from dagpu.kernels.numpy_twin import numpy_twin
from dagpu.kernels.operations import type_name
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import FIRST, UNCUT, KernelOp, Launch, Map, Zip, arity, unzip
from dagpu.ops.kernel_spec import Form, KernelSpec
from dagpu.ops.recording import RECORDER

_R = TypeVar("_R", bound=np.generic)
_T = TypeVar("_T")
_P = ParamSpec("_P")


ROW: Final = 1024
"""The elements of a row in the kernel that `cuda` and `compile` of a reduced expression are about."""


class FusedCall(NamedTuple):
    """A reduction of an expression, or its softmax: the function of `dagpu.array` by its name, and its arguments."""

    expression: Any
    name: str
    axis: object
    keepdims: bool

    @property
    def label(self) -> str:
        """The name in messages."""
        return f"{self.name} of {self.expression.traced.title}"


class FusedFunction(NamedTuple):
    """A function of `dagpu.array` that takes the elements of an expression while they are computed.

    `accepts(name, dtype)` is true if it takes elements of a type, `build(call, arguments, origin)` returns the op of a
    call, and `kernel_of_rows(expression, name)` its kernel for contiguous matrices with rows of `ROW` elements.
    """

    accepts: Callable[[str, "np.dtype[Any]"], bool]
    build: Callable[[FusedCall, tuple[Any, ...], Origin], Any]
    kernel_of_rows: Callable[[Any, str], KernelSpec]


FUSED: Final = Slot[Mapping[str, FusedFunction]]("dagpu.arrays.fused_reductions")
"""The functions by their names."""


class Written(NamedTuple):
    """A call of `into`, or of `update`, as a gradient knows it."""

    expression: Any
    updates: bool


@final
class ReducedExpression(PickledByName, Generic[_P, _R]):
    """An expression whose elements are reduced over some axes, from `expression.sum(axis)` and its like, or normalised
    along one, from `expression.softmax(axis)`.

    A call takes the arguments of the expression and builds an op. The kernel that computes the elements reduces them,
    so they are never in memory. The bits are those of the function of the expression's result.
    """

    def __init__(self, expression: Any, name: str, axis: object, keepdims: object, origin: Origin) -> None:
        self._call = FusedCall(expression, name, axis, check_flag(keepdims, name, origin, "keepdims"))
        self.__signature__: Final = expression.traced.signature
        dtype = expression.traced.dtype
        if not FUSED.value[name].accepts(name, dtype):
            raise KernelArgumentError(
                f"{self._call.label} at {describe(origin)}: it does not take elements of {dtype.name}. Convert the "
                "result of the expression: .to(f32), say."
            )

    @leaves_run
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[Tensor[_R], Any]:
        """Return an op whose result is a new tensor. Owned tensors among the arguments move into it.

        Raises:
            KernelArgumentError: as for a call of the expression.
            MovedError: a handle has been moved before.
            ShapeError: the shapes do not broadcast, there is no such axis, or no element along it to choose.
        """
        call = self._call
        given = call.expression.by_position(args, kwargs)
        if any(isinstance(arg, Elem) for arg in given):
            refuse_call_in_expression(call.label, here(), REDUCE)
        if (recorder := RECORDER.get()) is not None:
            recorded: DeviceOp[Tensor[_R], Any] = recorder.call(self, self, given, {})
            return recorded
        op: DeviceOp[Tensor[_R], Any] = FUSED.value[call.name].build(call, given, here())
        return op

    @leaves_run
    def compile(self, arch: str | None = None) -> None:
        """Compile the kernel of `cuda` now, for the GPU that is here or for an architecture by its name, as
        `Kernel.compile` does."""
        compile_ahead(self._kernel_of_rows, arch, here())

    @property
    def cuda(self) -> str:
        """The CUDA text of the first kernel for contiguous matrices of one shape, whose rows of 1,024 elements are
        reduced.

        The kernels for other shapes, axes and arguments differ from it in the order of their walk. The text of an
        element is the same in all of them.
        """
        return self._kernel_of_rows.cuda

    @property
    def _kernel_of_rows(self) -> KernelSpec:
        call = self._call
        return FUSED.value[call.name].kernel_of_rows(call.expression, call.name)

    @property
    def made_of(self) -> FusedCall:
        return self._call

    def __repr__(self) -> str:
        return f"<{self._call.name} over {self._call.axis} of {self._call.expression!r}>"


# ---- expression
#
# `Expression`: an element-wise function of tensors and numbers, which builds ops. `expr` makes it.
# `TupleExpression` has several results.

_Q = ParamSpec("_Q")
# Constrained, as for `array.sum` and `array.mean`.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_F = TypeVar("_F", f16, bf16, f32, f64)
_S = TypeVar("_S", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, c64, c128)
_Z = TypeVar("_Z", f16, bf16, f32, f64, c64, c128)

Argument: TypeAlias = In[_R] | Lazy[complex]
"""An argument of an expression: a tensor or an op of one, a number, or a source of numbers. A complex number is for
complex elements, which a type checker does not hold."""

TILE: Final = 1024
"""The number of elements of a block's tile: four for each of its 256 threads."""

OUTPUT: Final = ArgumentPattern(Form.OUT)


class Elementwise(PickledByName):
    """What expressions of one result and of several have in common."""

    def __init__(self, traced: TracedExpression, origin: Origin) -> None:
        self.traced = traced
        self.origin = origin
        self.__signature__: Final = traced.signature
        """For `inspect.signature`: a pipeline of an expression checks its arguments by it."""
        self.__name__: Final = traced.name
        self._kernels: dict[object, KernelSpec] = {}

    def build(self, args: tuple[Any, ...], origin: Origin) -> AnyOp:
        """Return the op of a call, as `__call__` does. `origin` is the place of the call in the user's code."""
        if (recorder := RECORDER.get()) is not None:
            built: AnyOp = recorder.call(self, lambda *given: self.build(given, origin), args, {})
            return built
        check = partial(self.check, origin=origin)
        return with_layouts(self._name, args, check, lambda a, layouts: self._build_new(a, layouts, origin), origin)

    def check(self, args: tuple[Any, ...], origin: Origin) -> tuple[Any, ...]:
        """Check the arguments of a call, and return them with numbers as the kernel takes them. Moves nothing."""
        form = call_form(self.traced, args, origin, self.traced.names)
        if all(form):
            refuse_arguments(
                self.traced, "all arguments are numbers", "Make one of them a tensor: full((1,), x), say", origin
            )
        return check_call(self._call_spec(form, self.traced.names), args, origin)

    def _build_new(self, arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...], origin: Origin) -> AnyOp:
        """Return the op of a call with known shapes. Moves the handles among the arguments."""
        shape = self.broadcast(None, layouts, origin)
        walk, _ = walk_of_kinds(layouts, shape, (False,) * len(shape))
        spec = self._kernel(len(walk.shape), patterns_of(layouts, walk))
        passed = passed_arguments(move_arguments(self._name, arguments, origin), layouts, walk, origin)
        dtypes, tile = self.traced.result_dtypes, tile_of(walk.shape, TILE)
        launch = Launch(spec, (*[new_output(walk.shape, each, tile, origin) for each in dtypes], *passed), origin)
        if len(dtypes) == 1:
            first: AnyOp = Map(Map(launch, FIRST, origin), UNCUT, origin)
            result: AnyOp = reshaped(first, Layout(dtypes[0], walk.shape, (), 0), shape, origin)
            return result
        parts = zip(unzip(launch, None, origin), dtypes, strict=False)
        made = [reshaped(Map(x, UNCUT, origin), Layout(t, walk.shape, (), 0), shape, origin) for x, t in parts]
        return Zip(tuple(made), origin)

    def write(self, args: tuple[Any, ...], origin: Origin, *, updates: bool) -> KernelOp:
        """Return the op that writes to partitions of one shape and tile, one for each result: the first arguments. With
        `updates` their old elements are the first parameters."""
        if (recorder := RECORDER.get()) is not None:
            again = partial(self._write_given, origin, updates)
            return cast(KernelOp, recorder.call(Written(self, updates), again, args, {}))
        count = len(self.traced.results)
        before = (OUTPUT,) * count if updates else ()
        names = self.traced.names[len(before) :]

        def check(given: tuple[Any, ...]) -> tuple[Any, ...]:
            form = call_form(self.traced, given[count:], origin, names)
            return check_call(self._call_spec(form, names, writes=True), given, origin)

        def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
            shapes = [layout.shape for layout in layouts[:count] if layout is not None]
            if shapes.count(shapes[0]) < count:
                raise ShapeError(
                    f"{self.traced.title}, called at {describe(origin)}: its outputs have the shapes "
                    f"{', '.join(map(str, shapes))}. Give all of them one shape."
                )
            shape = self.broadcast(shapes[0], layouts[count:], origin)
            walk = direct_walk(shape, [layout.shape for layout in layouts[count:] if layout is not None])
            spec = self._kernel(len(shape), (*before, *patterns_of(layouts[count:], walk)))
            return Launch(spec, move_arguments(self._name, arguments, origin), origin)

        return cast(KernelOp, with_layouts(self._name, args, check, build, origin))

    def _write_given(self, origin: Origin, updates: bool, *args: Any) -> KernelOp:
        return self.write(args, origin, updates=updates)

    def _call_spec(self, form: tuple[bool, ...], names: tuple[str, ...], *, writes: bool = False) -> KernelSpec:
        """Return the declaration that checks the calls of a form, made once; with `writes`, of those that name their
        outputs first."""

        def make() -> KernelSpec:
            params = argument_params(self.traced, form, names)
            if writes:
                outs = zip(output_names(self.traced), self.traced.result_dtypes, strict=True)
                params = [*[output(out, dtype, None) for out, dtype in outs], *params]
            return call_spec(self.traced.name, params, self.origin, expression=self.label_of_lambda)

        return self.kernel_for(("call", form, writes), make)

    def _kernel(self, rank: int, patterns: tuple[ArgumentPattern, ...]) -> KernelSpec:
        """Return the kernel for an output of this rank and arguments of these patterns, made once."""
        return self.kernel_for((rank, patterns), lambda: self._new_kernel(rank, patterns))

    def kernel_for(self, key: object, make: Callable[[], KernelSpec]) -> KernelSpec:
        """Return the kernel of this expression for a key, made once."""
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels.setdefault(key, make())
        return found

    def _new_kernel(self, rank: int, patterns: tuple[ArgumentPattern, ...]) -> KernelSpec:
        traced, name = self.traced, safe_name(self.traced.name)
        outs = zip(output_names(traced), traced.result_dtypes, strict=True)
        params = [*[output(out, dtype, rank) for out, dtype in outs], *input_params(traced, patterns, name)]
        twin: Callable[..., None] = numpy_twin(traced, patterns, rank)
        return generated_kernel(
            name,
            params,
            kernel_text(traced, rank, patterns),
            twin,
            self.origin,
            in_place=True,
            source_name=traced.place,
            expression=self.label_of_lambda,
        )

    @leaves_run
    def compile(self, arch: str | None = None) -> None:
        """Compile the kernel for contiguous tensors of one shape now, for the GPU that is here or for an architecture
        by its name, as `Kernel.compile` does."""
        compile_ahead(self.flat_kernel, arch, here())

    @property
    def flat_kernel(self) -> KernelSpec:
        """The kernel for contiguous tensors of one shape."""
        return self._kernel(1, (ArgumentPattern(Form.IN, (0,)),) * len(self.traced.names))

    @property
    def cuda(self) -> str:
        """The CUDA text of the kernel for contiguous tensors of one shape. Kernels for other arguments differ from it
        in their parameters and indices alone."""
        return kernel_text(self.traced, 1, (ArgumentPattern(Form.IN, (0,)),) * len(self.traced.names))

    def __repr__(self) -> str:
        traced = self.traced
        formals = ", ".join(f"{n}: {type_name(d)}" for n, d in zip(traced.names, traced.dtypes, strict=True))
        name = "lambda" if traced.is_lambda else traced.name
        made = ", ".join(map(type_name, traced.result_dtypes))
        made = made if len(traced.results) == 1 else f"({made})"
        return f"<expression {name}({formals}) -> {made} declared at {traced.place}>"

    # ---- arguments

    @property
    def _name(self) -> str:
        return self.traced.label

    @property
    def label_of_lambda(self) -> str:
        """The name of the expression in tables and pictures, if it is a `lambda`; else empty."""
        return self.traced.label if self.traced.is_lambda else ""

    def by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any], first: int = 0) -> tuple[Any, ...]:
        """Return the arguments of a call in the order of the parameters, from number `first` on."""
        return arguments_by_position(self.traced, args, kwargs, first) if kwargs else args

    def broadcast(self, out: Shape | None, layouts: Sequence[Layout | None], origin: Origin) -> Shape:
        """Return the shape of the output, as `broadcast_arguments` does."""
        return broadcast_arguments(self.traced, out, layouts, origin)


@final
class Expression(Elementwise, Generic[_P, _R]):
    """An element-wise function, from `expr`. A call builds an op, as a call of a kernel does.

    Arguments are tensors of the declared element types, ops whose results are such tensors, and numbers or sources of
    numbers; one of them at least is a tensor. They go by position or by name. A number is an argument of the kernel, so
    calls of a pipeline may vary it without another plan, and a feed may set it without another trace.
    Shapes broadcast by NumPy's rules. There is one kernel for each pattern of tensors, numbers and broadcasting.

    All results are equal to the bit on every device, but for `exp expm1 log log1p tanh sin cos erf **`, which are
    within 2 ulp, and for the sign and payload of a NaN.
    """

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[Tensor[_R], Any]:
        """Return an op whose result is a new tensor. Owned tensors among the arguments move into it.

        The new tensor may be in the memory of such an argument, if nothing else needs it.

        Raises:
            KernelArgumentError: an argument is missing, has a wrong form, element type or range, or no argument is a
                tensor. No handle has been moved.
            MovedError: a handle has been moved before.
            ShapeError: the shapes do not broadcast.
        """
        try:
            return self.build(self.by_position(args, kwargs), here())
        except BaseException as error:
            without_our_frames(error)
            raise

    def into(self, out: Out[_R], /, *args: _P.args, **kwargs: _P.kwargs) -> KernelOp:
        """Return an op that writes to a partition. Its result is the tuple of the partition and the arguments.

        Raises:
            KernelArgumentError: as for a call; or an argument is on the memory of the output: see `update`.
            MovedError: a handle has been moved before.
            ShapeError: the arguments do not broadcast to the shape of the output.
        """
        try:
            return self.write((out, *self.by_position(args, kwargs)), here(), updates=False)
        except BaseException as error:
            without_our_frames(error)
            raise

    def update(
        self: "Expression[Concatenate[Argument[_R], _Q], _R]",
        out: Out[_R],
        /,
        *args: _Q.args,
        **kwargs: _Q.kwargs,
    ) -> KernelOp:
        """Return an op that changes a partition in place: the first parameter is the old element of the output.

        `step.update(w.partition(tile), g, 0.1)` is `w = step(w, g, 0.1)` without other memory. The result of the op is
        the tuple of the partition and the arguments.

        Raises:
            KernelArgumentError: as for a call; or the result has another element type than the first parameter.
            MovedError: a handle has been moved before.
            ShapeError: the arguments do not broadcast to the shape of the output.
        """
        try:
            origin, traced = here(), self.traced
            if traced.dtypes[0] != traced.dtype:
                what = (
                    f"its result is of {type_name(traced.dtype)}, its first parameter of {type_name(traced.dtypes[0])}"
                )
                refuse_arguments(self.traced, what, "Write to memory of its own, .into(partition, ...)", origin)
            return self.write((out, *self.by_position(args, kwargs, 1)), origin, updates=True)
        except BaseException as error:
            without_our_frames(error)
            raise

    # ---- reductions

    @leaves_run
    def sum(
        self: "Expression[_P, _S]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _S]:
        """Return the function of the same arguments that adds the elements over some axes, as `array.sum` does.

        `expr(f32)(lambda x: x * x).sum(1)(x)` has the bits of `array.sum(square(x), 1)`. The elements are computed in
        the kernel that adds them, so no memory holds them.

        Args:
            axis: the axes of the broadcast arguments that are reduced; None for all.
            keepdims: True keeps them, with extent 1.

        Raises:
            KernelArgumentError: the elements have no sum: they are bools.
        """
        return ReducedExpression(self, "sum", axis, keepdims, here())

    @leaves_run
    def prod(
        self: "Expression[_P, _S]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _S]:
        """As `sum`: the products of the elements, as `array.prod`."""
        return ReducedExpression(self, "prod", axis, keepdims, here())

    @leaves_run
    def mean(
        self: "Expression[_P, _Z]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _Z]:
        """As `sum`: the means of the elements, which are no whole numbers, as `array.mean`."""
        return ReducedExpression(self, "mean", axis, keepdims, here())

    @overload
    def norm(
        self: "Expression[_P, _F]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _F]: ...
    @overload
    def norm(  # type: ignore[overload-overlap]  # reason: no expression has elements of both types
        self: "Expression[_P, c64]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, f32]: ...
    @overload
    def norm(
        self: "Expression[_P, c128]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, f64]: ...
    @leaves_run
    def norm(
        self: "Expression[_P, Any]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, Any]:
        """As `sum`: the Euclidean norms of the elements, which are real, as `array.norm`."""
        return ReducedExpression(self, "norm", axis, keepdims, here())

    @leaves_run
    def amin(
        self: "Expression[_P, _N]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _N]:
        """As `sum`: the smallest elements, as `array.amin`."""
        return ReducedExpression(self, "amin", axis, keepdims, here())

    @leaves_run
    def amax(
        self: "Expression[_P, _N]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _N]:
        """As `sum`: the largest elements, as `array.amax`."""
        return ReducedExpression(self, "amax", axis, keepdims, here())

    @leaves_run
    def any(self, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> ReducedExpression[_P, bool_]:
        """As `sum`: whether an element is not 0, as `array.any`."""
        return ReducedExpression(self, "any", axis, keepdims, here())

    @leaves_run
    def all(self, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> ReducedExpression[_P, bool_]:
        """As `sum`: whether no element is 0, as `array.all`."""
        return ReducedExpression(self, "all", axis, keepdims, here())

    @leaves_run
    def softmax(self: "Expression[_P, _F]", axis: int = -1) -> ReducedExpression[_P, _F]:
        """Return the function of the same arguments that gives the softmax of the elements, as `array.softmax` does.

        `expr(f32, f32)(lambda x, mask: x / 8 + mask).softmax()(x, mask)` has the bits of `array.softmax(f(x, mask))`.
        The elements are computed in the kernel that normalises them, so no memory holds them. Rows of more than 16,384
        elements take three launches, each of which computes the elements.

        Args:
            axis: one axis of the broadcast arguments; a negative number counts from the last one.

        Raises:
            KernelArgumentError: the elements are not floats.
        """
        return ReducedExpression(self, "softmax", axis, False, here())

    # ---- launches


@final
class TupleExpression(Elementwise, Generic[_P, _T]):
    """An element-wise function with several results, from `expr` of a function that returns a tuple of elements.

    It is one kernel with one output for each result. All results have the shape to which the arguments broadcast.
    Arguments, shapes and bits are those of an `Expression`.
    """

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[_T, Any]:
        """Return an op whose result is a tuple of new tensors. Owned tensors among the arguments move into it.

        Each new tensor may be in the memory of such an argument, if nothing else needs it.

        Raises:
            KernelArgumentError: an argument is missing, has a wrong form, element type or range, or no argument is a
                tensor. No handle has been moved.
            MovedError: a handle has been moved before.
            ShapeError: the shapes do not broadcast.
        """
        try:
            origin = here()
            op: DeviceOp[_T, Any] = self.build(self.by_position(args, kwargs), origin)
            if arity(op) is None:  # the shapes are known in the trace: the number of results is known now
                op = Zip(unzip(op, len(self.traced.results), origin), origin)
            return op
        except BaseException as error:
            without_our_frames(error)
            raise


AnyExpression: TypeAlias = Expression[..., Any] | TupleExpression[..., Any]


def expression_of_steps(traced: TracedExpression, origin: Origin) -> AnyExpression:
    """Return the expression of steps, with one result or several. `origin` is the place of its declaration."""
    return Expression(traced, origin) if len(traced.results) == 1 else TupleExpression(traced, origin)
