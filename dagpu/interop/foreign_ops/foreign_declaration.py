"""`foreign`: an op whose work another library does, as a typed declaration that gives shapes, and bodies."""

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.env_vars import CHECKED
from dagpu.common.errors import ForeignError
from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import Tensor
from dagpu.interop.foreign_ops.bodies import BodyDecorators, BodyList
from dagpu.interop.foreign_ops.shape_rules import Declared, DeclaredOperand, run_declaration
from dagpu.interop.foreign_ops.user_bodies import DeclaredBody
from dagpu.kernels.annotations import Annotation, PySignature, declared_at, read_signature
from dagpu.kernels.decorator import bind_arguments
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    check_call,
    move_arguments,
    new_output,
    number_input,
    output,
    tensor_input,
    with_layouts,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, arity
from dagpu.ops.kernel_spec import KernelSpec, Param
from dagpu.ops.launch import KernelOp, Launch
from dagpu.ops.node_functions import UNCUT, Components, Item, Outputs

_P = ParamSpec("_P")
_T = TypeVar("_T", bound=Tensor[Any] | tuple[Tensor[Any], ...])
_T_co = TypeVar("_T_co", bound=Tensor[Any] | tuple[Tensor[Any], ...], covariant=True)

Capture = Literal["auto", "never", "required"]
Verify = Literal["audit", "none"]
_CAPTURES: Final = ("auto", "never", "required")
_VERIFICATIONS: Final = ("audit", "none")
_NUMBERS: Final = {"int": np.dtype(np.int64), "float": np.dtype(np.float64), "bool": np.dtype(np.bool_)}


@final
class _Options(NamedTuple):
    """The options of a declaration."""

    capture: Capture
    verify: Verify
    cost: float | None
    checked: bool


@final
class _Declaration:
    """A declaration: its parameters, its bodies, and the kernels that calls of it launch."""

    def __init__(
        self, function: Callable[..., object], signature: PySignature, results: int | None, options: _Options
    ) -> None:
        self.name = function.__name__
        self.origin: Origin = (function.__code__, 0)
        self.bodies = BodyList(self.name, self.origin, signature.names, results)
        self.params = tuple(
            [_param(name, a, self.name) for name, a in zip(signature.names, signature.annotations, strict=True)]
        )
        self._function = function
        self._signature = signature
        self._options = options
        self._specs: dict[tuple[int, int], KernelSpec] = {}
        """The kernels, by the number of new tensors and the bytes of scratch memory."""
        self._checked = self._spec(0, 0)

    def build(
        self,
        args: Sequence[object],
        kwargs: dict[str, Any],
        origin: Origin,
        make: Callable[[tuple[Any, ...], Declared], AnyOp],
    ) -> AnyOp:
        """Return the op that `make` makes of the moved arguments and of what the declaration gives for them."""
        given = tuple(bind_arguments(self._checked, self._signature, args, kwargs, origin))

        def check(seen: tuple[Any, ...]) -> tuple[Any, ...]:
            return check_call(self.name, self.params, seen, self.origin, origin)

        def built(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
            declared = self._declared(arguments, layouts, origin)
            return make(move_arguments(self.name, arguments, origin), declared)

        return with_layouts(self.name, given, check, built, origin)

    def kernel(self, declared: Declared) -> KernelSpec:
        """Return the kernel that does the work."""
        return self._spec(len(declared.results), declared.scratch)

    def _declared(self, arguments: Sequence[Any], layouts: Sequence[Layout | None], origin: Origin) -> Declared:
        operands = [
            arg if layout is None else DeclaredOperand(layout, param.name)
            for param, arg, layout in zip(self.params, arguments, layouts, strict=True)
        ]
        return run_declaration(self._function, self.name, operands, self.origin, origin)

    def _spec(self, results: int, scratch: int) -> KernelSpec:
        found = self._specs.get((results, scratch))
        if found is None:
            made = [output(f"result{number}", cast(Any, None), None) for number in range(results)]
            params = (*self.params, *made)
            options = self._options
            audit = options.verify == "audit"
            forms = [param.form for param in params]
            body = DeclaredBody(self.bodies, forms, scratch, capture=options.capture, audit=audit)
            spec = KernelSpec(
                name=self.name, params=params, cuda="", source_name="", abi="views", block=None, options=(),
                checked=options.checked, origin=self.origin, host=self.bodies.host, grid=(1,), library=body,
                seconds=options.cost, results=results,
            )  # fmt: skip
            found = self._specs.setdefault((results, scratch), spec)
        return found

    def __repr__(self) -> str:
        return f"<foreign op {self.name}({', '.join(self._signature.names)}) declared at {describe(self.origin)}>"


def _param(name: str, annotation: Annotation, op: str) -> Param:
    if annotation.form == "scalar":
        assert annotation.scalar is not None
        return number_input(name, annotation.dtype or _NUMBERS[annotation.scalar], op)
    make = output if annotation.form == "out" else tensor_input
    return make(name, cast(Any, annotation.dtype), None)


@final
class Foreign(BodyDecorators, Generic[_P]):
    """A foreign op whose outputs are partitions, as a kernel's. A call yields a tuple of all arguments."""

    def __init__(self, declaration: _Declaration) -> None:
        self._declaration = declaration
        self._bodies = declaration.bodies

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> KernelOp:
        """Return the op of a call. Handles among the arguments move into it. The body gets whole tensors, whatever the
        tiles of the partitions are.

        Raises:
            KernelArgumentError: an argument is missing, has a wrong form, element type or range, or shares memory with
                an output. No handle has been moved.
            ShapeError: the declaration requires something that does not hold.
            MovedError: a handle has been moved before.
        """
        origin, declaration = here(), self._declaration

        def make(arguments: tuple[Any, ...], declared: Declared) -> AnyOp:
            return Launch(declaration.kernel(declared), arguments, origin)

        return cast(KernelOp, declaration.build(args, kwargs, origin, make))

    def __repr__(self) -> str:
        return repr(self._declaration)


@final
class ForeignFunction(BodyDecorators, Generic[_P, _T_co]):
    """A foreign op whose outputs are new tensors, those that its declaration makes. A call yields what it returned."""

    def __init__(self, declaration: _Declaration, components: int | None) -> None:
        self._declaration = declaration
        self._bodies = declaration.bodies
        self._components = components
        """The number of components of the tuple that a call yields; None if it yields a tensor, or is not known."""

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[_T_co, Any]:
        """Return an op whose result is the new tensor, or a tuple of them. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: an argument is missing, or has a wrong form, element type or range. No handle has been
                moved.
            ShapeError: the declaration requires something that does not hold.
            MovedError: a handle has been moved before.
        """
        origin, declaration = here(), self._declaration

        def make(arguments: tuple[Any, ...], declared: Declared) -> AnyOp:
            made = [
                new_output(layout.shape, layout.dtype, tuple([max(n, 1) for n in layout.shape]), origin)
                for layout in declared.results
            ]
            launch = Launch(declaration.kernel(declared), (*arguments, *made), origin)
            if declared.single:
                return Map(Map(launch, Item(len(arguments)), origin), UNCUT, origin)
            return Map(launch, Outputs(len(arguments)), origin)

        op = declaration.build(args, kwargs, origin, make)
        count = self._components
        return op if count is None or arity(op) is not None else Map(op, Components(count), origin)

    def __repr__(self) -> str:
        return repr(self._declaration)


class _Declare(Protocol):
    """`foreign` with options."""

    @overload
    def __call__(self, declaration: Callable[_P, None], /) -> Foreign[_P]: ...
    @overload
    def __call__(self, declaration: Callable[_P, _T], /) -> ForeignFunction[_P, _T]: ...


@overload
def foreign(declaration: Callable[_P, None], /) -> Foreign[_P]: ...
@overload
def foreign(declaration: Callable[_P, _T], /) -> ForeignFunction[_P, _T]: ...
@overload
def foreign(
    *, capture: Capture = ..., verify: Verify = ..., cost: float | None = ..., checked: bool | None = ...
) -> _Declare: ...
def foreign(
    declaration: Callable[..., Any] | None = None,
    /,
    *,
    capture: Capture = "auto",
    verify: Verify = "audit",
    cost: float | None = None,
    checked: bool | None = None,
) -> Any:
    """Declare an op whose work another library does: PyTorch, CuPy, Numba, or one that takes addresses.

    The decorated function has the parameters of a kernel: `In`, `Out` and numbers. Its body runs at each call, on
    operands that know their shape and element type alone; it calls `extent`, `require`, `reserve` and `new`. With
    `-> None` the outputs are its `Out` parameters, and a call yields all arguments, as a kernel's. With
    `-> Tensor[...]`, or a tuple of these, the outputs are new tensors: it returns what `new` gives. Bodies are added to
    it: `.on("torch")`, `.on("cupy")`, `.on("numba")`, `.raw` and `.host`.

    A plan sees one instruction with exact reads and writes. An exception in a body fails the outputs of its op alone.

    Args:
        declaration: the function.
        capture: "auto" makes the work a part of CUDA graphs, and lets a plan whose body cannot be captured go through
            streams; `op.explain()` says why. "never" does not try. "required" raises a `CaptureError` if it cannot.
        verify: "audit" reads the work of a body before it becomes part of a CUDA graph: it must not point at memory of
            dagpu that is no argument of the call, and it must point at each output. "none" does not read it.
        cost: the seconds of a call on the device, for schedules and predictions; None to count its bytes. A time that
            the policy's `CostModel` declares for the op's name comes first.
        checked: True checks each call, on the host and on a GPU: inputs are compared before and after, outputs lie
            between bytes that must not change, new tensors and scratch memory begin with a pattern. A plan with such
            an op goes through streams. None means True if DAGPU_CHECKED is 1.

    Raises:
        ForeignError: the declaration has no output, or an option is none of these; from a run, the body does something
            else than the declaration says.
        KernelArgumentError: a parameter is neither an input, an output nor a number.
    """
    where = here()
    options = _checked_options(capture, verify, cost, checked, where)
    scope = sys._getframe(1).f_locals

    def declare(function: Callable[..., Any]) -> Any:
        return _declare(function, options, scope, where)

    return declare if declaration is None else declare(declaration)


def _checked_options(capture: Any, verify: Any, cost: Any, checked: Any, where: Origin) -> _Options:
    if type(capture) is not str or capture not in _CAPTURES:
        raise ForeignError(
            f"foreign at {describe(where)}: capture is {format_value(capture)}. "
            'Write capture="auto", "never" or "required".'
        )
    if type(verify) is not str or verify not in _VERIFICATIONS:
        raise ForeignError(
            f'foreign at {describe(where)}: verify is {format_value(verify)}. Write verify="audit" or "none".'
        )
    is_number = isinstance(cost, int | float | np.integer | np.floating) and not isinstance(cost, bool)
    if cost is not None and not (is_number and 0 <= cost < math.inf):
        raise ForeignError(
            f"foreign at {describe(where)}: cost is {format_value(cost)}, not a number of seconds, 0 or more and "
            "finite. Write cost=3e-5, say."
        )
    if not isinstance(checked, bool | np.bool_ | None):
        raise ForeignError(
            f"foreign at {describe(where)}: checked is {format_value(checked)}. Write checked=True or False."
        )
    return _Options(
        cast(Capture, capture),
        cast(Verify, verify),
        None if cost is None else float(cost),
        CHECKED.get() if checked is None else bool(checked),
    )


def _declare(function: Callable[..., Any], options: _Options, scope: dict[str, Any], where: Origin) -> Any:
    if not inspect.isfunction(function):
        raise ForeignError(
            f"foreign at {describe(where)} is applied to {format_value(function)}, which is not a plain function. "
            "Decorate a def that names and types the parameters."
        )
    name, place = function.__name__, declared_at(function)
    signature = read_signature(function, scope)
    returned = function.__annotations__.get("return", inspect.Parameter.empty)
    if returned is inspect.Parameter.empty:
        raise ForeignError(
            f"{name}, declared at {place}: it does not say what it returns. Annotate it -> None if its outputs are Out "
            "parameters, -> Tensor[f32] if they are new tensors."
        )
    into_partitions = returned is None or returned == "None"
    returned = _evaluated(function, returned, scope) if isinstance(returned, str) else returned
    outs = [n for n, a in zip(signature.names, signature.annotations, strict=True) if a.form == "out"]
    lazy = [n for n, a in zip(signature.names, signature.annotations, strict=True) if a.lazy]
    if lazy:
        raise ForeignError(
            f"{name}, declared at {place}: parameter {lazy[0]!r} is Lazy, and a declaration needs the number. Annotate "
            "it float, and call the op inside .then(...) on the number."
        )
    if into_partitions and not outs:
        raise ForeignError(
            f"{name}, declared at {place}: it has no output. Annotate a parameter Out[f32], or annotate the function "
            "-> Tensor[f32] and return new(...)."
        )
    if not into_partitions and outs:
        raise ForeignError(
            f"{name}, declared at {place}: it has the Out parameter {outs[0]!r} and returns new tensors. Annotate it "
            "-> None, or make that output a new tensor too."
        )
    if into_partitions:
        return Foreign(_Declaration(function, signature, 0, options))
    components = _components_of(returned)
    results = 1 if (get_origin(returned) or returned) is Tensor else components
    return ForeignFunction(_Declaration(function, signature, results, options), components)


def _evaluated(function: Callable[..., Any], annotation: str, scope: dict[str, Any]) -> object:
    """Return a return annotation that is text as the object that it names; None if it cannot be evaluated."""
    holder = SimpleNamespace(__annotations__={"return": annotation})
    try:
        return get_type_hints(holder, function.__globals__, scope)["return"]
    except Exception:  # a text annotation is code, and may raise anything
        return None


def _components_of(returned: object) -> int | None:
    """Return the number of components of the tuple that a return annotation names; None if it is no tuple, or one of
    any length."""
    arguments = get_args(returned)
    return len(arguments) if get_origin(returned) is tuple and Ellipsis not in arguments else None
