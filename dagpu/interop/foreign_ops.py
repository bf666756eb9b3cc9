"""Foreign ops: a typed declaration that gives shapes, the functions that it may call, and its calls.

The declaration runs once for each call of the op, on operands that know their shape and element type alone.
"""

import inspect
import math
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
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
from dagpu.common.errors import ForeignError, NotReadyError, ShapeError
from dagpu.common.layout import Layout, Shape, as_shape, contiguous_layout, element_type
from dagpu.common.pickling import PickledByName
from dagpu.common.places import Origin, describe, here, leaves_run, scope_of_caller
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, format_value, is_real_number, no_attribute
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, Tensor
from dagpu.interop.foreign_bodies import BodyDecorators, BodyList, DeclaredBody
from dagpu.kernels.annotations import In, Out, PySignature, bind_arguments, declared_at, read_signature
from dagpu.kernels.declaration import declared_param
from dagpu.kernels.generated_launch import (
    AnyOp,
    call_spec,
    check_call,
    move_arguments,
    new_output,
    output,
    with_layouts,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import UNCUT, Components, Item, KernelOp, Launch, Map, Outputs, arity
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.recording import RECORDER

_P = ParamSpec("_P")


_D = TypeVar("_D", bound=np.generic)


@final
class DeclaredOperand:
    """A tensor argument, or a new tensor, while a declaration runs. `extent(x, axis)` reads its shape."""

    __slots__ = ("layout", "name")

    def __init__(self, layout: Layout, name: str) -> None:
        self.layout = layout
        self.name = name
        """The name of the parameter; empty for a new tensor."""

    def __repr__(self) -> str:
        return f"<operand {self.name or 'new'}: {self.layout.dtype.name}, {self.layout.shape}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            running = _THREAD.running
            if running is None or (name not in HANDLE_NAMES and name not in ARRAY_NAMES and name != "ndim"):
                raise no_attribute(self, name)
            x = self.name or "x"
            raise AttributeError(
                f"{running.name}, declared at {describe(running.declared)}: {x!r} has no {name!r} in a declaration, "
                f"which sees shapes and element types alone. Read an extent: extent({x}, 0). A result of that shape "
                f"and element type is new({x})."
            )

        def _no_contents(self, *_args: object) -> NoReturn:
            """Refuse: a declaration sees no contents."""
            running, x = _THREAD.running, self.name or "x"
            place = f"{running.name}, declared at {describe(running.declared)}" if running else repr(self)
            raise ForeignError(
                f"{place}: {x!r} is used as if it had contents, and a declaration sees shapes and element types alone. "
                f"Compute in a body; read an extent by extent({x}, 0)."
            )

        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = _no_contents
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = _no_contents
        __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __bool__ = __len__ = __iter__ = _no_contents
        __getitem__ = __setitem__ = __float__ = __int__ = __index__ = __array__ = _no_contents


@final
class Declared(NamedTuple):
    """The outcome of a declaration for certain operands."""

    results: tuple[Layout, ...]
    """The layouts of the new tensors that it returned."""
    scratch: int
    """Bytes of scratch memory."""
    single: bool
    """True if it returned one tensor, and not a tuple."""


@final
class _Running:
    """A declaration that runs."""

    def __init__(self, name: str, declared: Origin, called: Origin) -> None:
        self.name = name
        self.declared = declared
        self.called = called
        self.scratch = 0
        self.made: list[DeclaredOperand] = []


class _OfThread(threading.local):
    """The declaration that this thread runs."""

    running: _Running | None = None


_THREAD: Final = _OfThread()


def run_declaration(
    function: Callable[..., object], name: str, arguments: Sequence[object], declared: Origin, called: Origin
) -> Declared:
    """Run a declaration on its arguments, operands and numbers, for the call at `called`.

    Raises:
        ShapeError: it requires something that does not hold.
        ForeignError: it returns something other than the new tensors that it made.
    """
    before, _THREAD.running = _THREAD.running, (running := _Running(name, declared, called))
    try:
        returned: Any = function(*arguments)
    finally:
        _THREAD.running = before
    results = () if returned is None else returned if isinstance(returned, tuple) else (returned,)
    if [id(each) for each in results] != [id(each) for each in running.made]:
        raise ForeignError(
            f"{name}, declared at {describe(declared)}, called at {describe(called)}: the declaration makes "
            f"{len(running.made)} new tensors and returns {format_value(returned)}. Return what each new(...) gives, "
            "in that order."
        )
    layouts = tuple([each.layout for each in running.made])
    return Declared(layouts, running.scratch, not isinstance(returned, tuple))


def extent(x: In[Any] | Out[Any], axis: int, /) -> int:
    """Return the number of elements of an operand along an axis, in the declaration of a foreign op.

    Args:
        x: a tensor parameter of the declaration.
        axis: the axis; negative ones count from the last.

    Raises:
        ShapeError: the argument of the call has no such axis.
        ForeignError: no declaration runs, or `x` is not a parameter of it.
    """
    running = _running("extent")
    layout = _layout_of(x, running, "extent")
    number = as_whole_number(axis)
    rank = len(layout.shape)
    if number is None:
        _refuse(running, f"extent: axis is {format_value(axis)}, not a whole number", "Write extent(x, 0), say")
    if not -rank <= number < rank:
        raise ShapeError(
            f"{running.name} at {describe(running.called)}: argument {cast(Any, x).name!r} has the shape "
            f"{layout.shape}, and axis {number} is wanted, which it lacks. Reshape it before: t.reshape(shape)."
        )
    return layout.shape[number]


@leaves_run
def require(condition: bool, what: str, /) -> None:
    """Refuse a call of a foreign op, in its declaration, unless the condition holds.

    Args:
        condition: what must hold, such as `extent(a, 1) == extent(b, 0)`.
        what: what is wrong if it does not hold, as a clause: "the inner extents differ".

    Raises:
        ShapeError: the condition does not hold. The message has the place of the call.
        ForeignError: no declaration runs.
    """
    running = _running("require")
    if not condition:
        raise ShapeError(
            f"{running.name} at {describe(running.called)}: {what}. Pass arguments that the declaration at "
            f"{describe(running.declared)} takes."
        )


def reserve(nbytes: int, /) -> None:
    """Reserve scratch memory for a call of a foreign op, in its declaration. A `raw` body gets it as its last argument.

    It lies in the plan's arena, so other instructions use it before and after. Its contents are undefined.

    Raises:
        ForeignError: no declaration runs, or `nbytes` is not a whole number of 0 or more.
    """
    running = _running("reserve")
    number = as_whole_number(nbytes)
    if number is None or number < 0:
        _refuse(running, f"reserve({format_value(nbytes)})", "Give a number of bytes, 0 or more")
    running.scratch += number


@overload
def new(shape: Shape, dtype: type[_D], /) -> Tensor[_D]: ...
@overload
def new(like: In[_D], /) -> Tensor[_D]: ...
def new(like: Any, dtype: Any = None, /) -> Tensor[Any]:
    """Return a new tensor as a result of a foreign op, in its declaration. Bodies get it after the arguments, and write
    all of it.

    Args:
        like: its shape, a tuple of extents; or a parameter of the declaration whose shape and element type it has.
        dtype: its element type, if `like` is a shape.

    Raises:
        ShapeError: it is no shape.
        ForeignError: no declaration runs, or the element type is none that a tensor can have.
    """
    running = _running("new")
    if isinstance(like, DeclaredOperand):
        shape, found = like.layout.shape, like.layout.dtype if dtype is None else _element(dtype, running)
    else:
        try:
            shape, found = as_shape(like), _element(dtype, running)
        except (ShapeError, NotReadyError) as error:
            raise add_call_place(f"new() for {running.name}", running.called, error) from None
    made = DeclaredOperand(contiguous_layout(shape, found), "")
    running.made.append(made)
    return cast("Tensor[Any]", made)


def _element(dtype: Any, running: _Running) -> "np.dtype[Any]":
    try:
        found = element_type(np.dtype(dtype)) if dtype is not None else None
    except TypeError:
        found = None
    if found is None:
        _refuse(running, f"new(): the element type is {format_value(dtype)}", "Write new(shape, f32), or new(x), say")
    return found


def _layout_of(x: Any, running: _Running, call: str) -> Layout:
    if not isinstance(x, DeclaredOperand):
        _refuse(running, f"{call} of {format_value(x)}", "Pass a tensor parameter of the declaration")
    return x.layout


def _running(call: str) -> _Running:
    if _THREAD.running is None:
        raise ForeignError(
            f"{call}() at {describe(here())} is for the declaration of a foreign op, and none runs here. Call it in "
            "the function that @foreign decorates."
        )
    return _THREAD.running


def _refuse(running: _Running, what: str, cure: str) -> NoReturn:
    raise ForeignError(f"{running.name}, declared at {describe(running.declared)}: {what}. {cure}.")


# ---- foreign calls
#
# Foreign ops: a declaration with its bodies, and the ops of its calls.

_T_co = TypeVar("_T_co", bound=Tensor[Any] | tuple[Tensor[Any], ...], covariant=True)

Capture = Literal["auto", "never", "required"]
Verify = Literal["audit", "none"]
_NUMBERS: Final = {"int": np.dtype(np.int64), "float": np.dtype(np.float64), "bool": np.dtype(np.bool_)}


@final
class DeclaredOptions(NamedTuple):
    """The options of a declaration."""

    capture: Capture
    verify: Verify
    cost: float | None
    checked: bool


@final
class ForeignDeclaration:
    """A declaration: its parameters, its bodies, and the kernels that calls of it launch."""

    def __init__(
        self, function: Callable[..., object], signature: PySignature, results: int | None, options: DeclaredOptions
    ) -> None:
        self.name = function.__name__
        self.origin: Origin = (function.__code__, 0)
        self.bodies = BodyList(self.name, self.origin, signature.names, results)
        self.params = tuple(
            [
                declared_param(name, a, a.dtype or _NUMBERS.get(a.scalar or ""), self.name)
                for name, a in zip(signature.names, signature.annotations, strict=True)
            ]
        )
        self._function = function
        self._signature = signature
        self._options = options
        self._specs: dict[tuple[int, int], KernelSpec] = {}
        """The kernels, by the number of new tensors and the bytes of scratch memory."""
        self._checked = self._spec(0, 0)
        self._of_call = call_spec(self.name, self.params, self.origin)

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
            return check_call(self._of_call, seen, origin)

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


@final
class Foreign(BodyDecorators, PickledByName, Generic[_P]):
    """A foreign op whose outputs are partitions, as a kernel's. A call yields a tuple of all arguments."""

    def __init__(self, declaration: ForeignDeclaration) -> None:
        self._declaration = declaration
        self._bodies = declaration.bodies

    @leaves_run
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
class ForeignFunction(BodyDecorators, PickledByName, Generic[_P, _T_co]):
    """A foreign op whose outputs are new tensors, those that its declaration makes. A call yields what it returned."""

    def __init__(self, declaration: ForeignDeclaration, components: int | None) -> None:
        self._declaration = declaration
        self._bodies = declaration.bodies
        self._components = components
        """The number of components of the tuple that a call yields; None if it yields a tensor, or is not known."""

    @leaves_run
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[_T_co, Any]:
        """Return an op whose result is the new tensor, or a tuple of them. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: an argument is missing, or has a wrong form, element type or range. No handle has been
                moved.
            ShapeError: the declaration requires something that does not hold.
            MovedError: a handle has been moved before.
        """
        if (recorder := RECORDER.get()) is not None:
            recorded: DeviceOp[_T_co, Any] = recorder.call(self, self, args, kwargs)
            return recorded
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


# ---- foreign declaration
#
# `foreign`: the decorator of a typed declaration that gives shapes, for an op whose work another library does.

_T = TypeVar("_T", bound=Tensor[Any] | tuple[Tensor[Any], ...])

_CAPTURES: Final = ("auto", "never", "required")
_VERIFICATIONS: Final = ("audit", "none")


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
@leaves_run
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
    scope = scope_of_caller()

    @leaves_run
    def declare(function: Callable[..., Any]) -> Any:
        return _declare(function, options, scope, where)

    return declare if declaration is None else declare(declaration)


def _checked_options(capture: Any, verify: Any, cost: Any, checked: Any, where: Origin) -> DeclaredOptions:
    if type(capture) is not str or capture not in _CAPTURES:
        raise ForeignError(
            f"foreign at {describe(where)}: capture is {format_value(capture)}. "
            'Write capture="auto", "never" or "required".'
        )
    if type(verify) is not str or verify not in _VERIFICATIONS:
        raise ForeignError(
            f'foreign at {describe(where)}: verify is {format_value(verify)}. Write verify="audit" or "none".'
        )
    if cost is not None and not (is_real_number(cost) and 0 <= cost < math.inf):
        raise ForeignError(
            f"foreign at {describe(where)}: cost is {format_value(cost)}, not a number of seconds, 0 or more and "
            "finite. Write cost=3e-5, say."
        )
    if not isinstance(checked, bool | np.bool_ | None):
        raise ForeignError(
            f"foreign at {describe(where)}: checked is {format_value(checked)}. Write checked=True or False."
        )
    return DeclaredOptions(
        cast(Capture, capture),
        cast(Verify, verify),
        None if cost is None else float(cost),
        CHECKED.get() if checked is None else bool(checked),
    )


def _declare(function: Callable[..., Any], options: DeclaredOptions, scope: dict[str, Any], where: Origin) -> Any:
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
    outs = [n for n, a in zip(signature.names, signature.annotations, strict=True) if a.form.is_written]
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
        return Foreign(ForeignDeclaration(function, signature, 0, options))
    components = _components_of(returned)
    results = 1 if (get_origin(returned) or returned) is Tensor else components
    return ForeignFunction(ForeignDeclaration(function, signature, results, options), components)


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
