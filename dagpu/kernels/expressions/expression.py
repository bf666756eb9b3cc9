"""`Expression`: an element-wise function of tensors and numbers, which builds ops. `expr` makes it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeAlias, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, here
from dagpu.common.param_form import Form
from dagpu.common.pickling import PickledByName
from dagpu.common.tracebacks import leaves_run, without_our_frames
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In, Lazy, Out
from dagpu.kernels.compiling import compile_ahead
from dagpu.kernels.expressions.broadcasting import (
    direct_walk,
    passed_arguments,
    patterns_of,
    tile_of,
    walk_of_kinds,
)
from dagpu.kernels.expressions.expression_arguments import (
    argument_params,
    arguments_by_position,
    broadcast_arguments,
    input_params,
    refuse_arguments,
)
from dagpu.kernels.expressions.expression_text import ArgumentPattern, kernel_text, safe_name
from dagpu.kernels.expressions.numpy_twin import numpy_twin
from dagpu.kernels.expressions.operations.element_operations import type_name
from dagpu.kernels.expressions.reduced_expression import ReducedExpression
from dagpu.kernels.expressions.traced_expression import TracedExpression
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    check_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    output,
    reshaped,
    with_layouts,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import KernelOp, Launch

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_R = TypeVar("_R", bound=np.generic)
# Constrained, as for `array.sum` and `array.mean`.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64)
_F = TypeVar("_F", f16, bf16, f32, f64)

Argument: TypeAlias = In[_R] | Lazy[float]
"""An argument of an expression: a tensor or an op of one, a number, or a source of numbers."""

TILE: Final = 1024
"""The number of elements of a block's tile: four for each of its 256 threads."""

OUTPUT: Final = ArgumentPattern(Form.OUT)


@final
class Expression(PickledByName, Generic[_P, _R]):
    """An element-wise function, from `expr`. A call builds an op, as a call of a kernel does.

    Arguments are tensors of the declared element types, ops whose results are such tensors, and numbers or sources of
    numbers; one of them at least is a tensor. They go by position or by name. A number is an argument of the kernel, so
    calls of a pipeline may vary it without another plan, and a feed may set it without another trace.
    Shapes broadcast by NumPy's rules. There is one kernel for each pattern of tensors, numbers and broadcasting.

    All results are equal to the bit on every device, but for `exp expm1 log log1p tanh sin cos erf **`, which are
    within 2 ulp, and for the sign and payload of a NaN.
    """

    def __init__(self, traced: TracedExpression, origin: Origin) -> None:
        self.traced = traced
        self.origin = origin
        self.__signature__: Final = traced.signature
        """For `inspect.signature`: a pipeline of an expression checks its arguments by it."""
        self.__name__: Final = traced.name
        self._kernels: dict[object, KernelSpec] = {}

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

    def build(self, args: tuple[Any, ...], origin: Origin) -> AnyOp:
        """Return the op of a call, as `__call__` does. `origin` is the place of the call in the user's code."""
        check = partial(self.check, origin=origin)
        return with_layouts(self._name, args, check, lambda a, layouts: self._build_new(a, layouts, origin), origin)

    def check(self, args: tuple[Any, ...], origin: Origin) -> tuple[Any, ...]:
        """Check the arguments of a call, and return them with numbers as the kernel takes them. Moves nothing."""
        params = argument_params(self.traced, args, origin, self.traced.names)
        if not any(param.form.is_tensor for param in params):
            refuse_arguments(
                self.traced, "all arguments are numbers", "Make one of them a tensor: full((1,), x), say", origin
            )
        return check_call(self.traced.name, params, args, self.origin, origin, expression=self.label_of_lambda)

    def into(self, out: Out[_R], /, *args: _P.args, **kwargs: _P.kwargs) -> KernelOp:
        """Return an op that writes to a partition. Its result is the tuple of the partition and the arguments.

        Raises:
            KernelArgumentError: as for a call; or an argument is on the memory of the output: see `update`.
            MovedError: a handle has been moved before.
            ShapeError: the arguments do not broadcast to the shape of the output.
        """
        try:
            return self._write(out, self.by_position(args, kwargs), (), here())
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
            return self._write(out, self.by_position(args, kwargs, 1), (OUTPUT,), origin)
        except BaseException as error:
            without_our_frames(error)
            raise

    # ---- reductions

    @leaves_run
    def sum(
        self: "Expression[_P, _N]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _N]:
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
        self: "Expression[_P, _N]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _N]:
        """As `sum`: the products of the elements, as `array.prod`."""
        return ReducedExpression(self, "prod", axis, keepdims, here())

    @leaves_run
    def mean(
        self: "Expression[_P, _F]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _F]:
        """As `sum`: the means of the elements, which are floats, as `array.mean`."""
        return ReducedExpression(self, "mean", axis, keepdims, here())

    @leaves_run
    def norm(
        self: "Expression[_P, _F]", axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
    ) -> ReducedExpression[_P, _F]:
        """As `sum`: the Euclidean norms of the elements, which are floats, as `array.norm`."""
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
        return f"<expression {name}({formals}) -> {type_name(traced.dtype)} declared at {traced.place}>"

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

    # ---- launches

    def _build_new(self, arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...], origin: Origin) -> AnyOp:
        """Return the op of a call with known shapes. Moves the handles among the arguments."""
        shape = self.broadcast(None, layouts, origin)
        walk, _ = walk_of_kinds(layouts, shape, (False,) * len(shape))
        spec = self._kernel(len(walk.shape), patterns_of(layouts, walk))
        passed = passed_arguments(move_arguments(self._name, arguments, origin), layouts, walk, origin)
        target = new_output(walk.shape, self.traced.dtype, tile_of(walk.shape, TILE), origin)
        op = first_output(spec, (target, *passed), origin)
        result: AnyOp = reshaped(op, Layout(self.traced.dtype, walk.shape, (), 0), shape, origin)
        return result

    def _write(self, out: Any, args: tuple[Any, ...], before: tuple[ArgumentPattern, ...], origin: Origin) -> KernelOp:
        """Return the op that writes to `out`. `before` are the patterns of the parameters before those of `args`."""

        def check(given: tuple[Any, ...]) -> tuple[Any, ...]:
            inputs = argument_params(self.traced, given[1:], origin, self.traced.names[len(before) :])
            params = [output("out", self.traced.dtype, None), *inputs]
            return check_call(self.traced.name, params, given, self.origin, origin, expression=self.label_of_lambda)

        def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
            assert layouts[0] is not None
            shape = self.broadcast(layouts[0].shape, layouts[1:], origin)
            walk = direct_walk(shape, [layout.shape for layout in layouts[1:] if layout is not None])
            spec = self._kernel(len(shape), (*before, *patterns_of(layouts[1:], walk)))
            return Launch(spec, move_arguments(self._name, arguments, origin), origin)

        return cast(KernelOp, with_layouts(self._name, (out, *args), check, build, origin))

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
        params = [output("out", traced.dtype, rank), *input_params(traced, patterns, name)]
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
