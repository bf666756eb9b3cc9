"""The functions that the declaration of a foreign op calls: `extent`, `require`, `reserve`, `new`.

The declaration runs once for each call of the op, on operands that know their shape and element type alone.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar, cast, final, overload

import numpy as np

from dagpu.common.dtypes import Shape, element_type
from dagpu.common.errors import ForeignError, NotReadyError, ShapeError
from dagpu.common.layout import Layout, as_shape, contiguous_layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, format_value, no_attribute
from dagpu.handles import ARRAY_NAMES, HANDLE_NAMES, Tensor
from dagpu.kernels.annotations import In, Out

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
