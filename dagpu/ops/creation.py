"""Ops that make and move device data: creation, copies from and to the host, copies on the device."""

import operator
from os import PathLike
from typing import Any, cast, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape, bf16, element_type
from dagpu.common.errors import BorrowError, NotReadyError, ShapeError
from dagpu.common.frozen import frozen
from dagpu.common.layout import as_shape
from dagpu.common.origin import Origin, describe, here
from dagpu.common.wrong_arguments import at_call, shown, wrong_argument
from dagpu.handles import HANDLES, TO_HOST, Partition, SharedTensor, Tensor, TensorMut, TensorRef, move_in
from dagpu.handles.handle_trees import moved_in, storage_key
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, value_of
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, Static, await_first
from dagpu.ops.compose import ToHost, Value
from dagpu.ops.initializers import SEEDS, Arange, Constant, Eye, Linspace, Normal, Recipe, Uniform, check

NUMBERS = (int, float, complex, np.number, np.bool_, bf16)
"""The types of numbers, plain and NumPy's."""

_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic)
_N = TypeVar("_N", bound=np.generic, default=np.float32)
_T_co = TypeVar("_T_co", covariant=True)
_L_co = TypeVar("_L_co", bound=Borrowed, covariant=True, default=Static)
_G_co = TypeVar("_G_co", bound=MayAlloc, covariant=True, default=MayAlloc)


@final
@frozen
class Alloc(DeviceOp[_T_co, _L_co, _G_co]):
    """A new tensor. `recipe` says what is written to it; None leaves it as it is."""

    shape: Shape
    dtype: "np.dtype[Any]"
    recipe: Recipe | None
    origin: Origin


@final
@frozen
class FromHost(DeviceOp[_T_co, _L_co, _G_co]):
    """A new tensor with the contents of a NumPy array."""

    array: NDArray[Any]
    origin: Origin


@final
@frozen
class Copy(DeviceOp[_T_co, _L_co, _G_co]):
    """`source` (a handle, or one value for all elements) to `into`, or where that is None, to a new tensor."""

    source: Any
    into: Any
    dtype: "np.dtype[Any] | None"
    origin: Origin


_SHORT = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool_")
"""The short names of the element types that tensors may have."""


def _element_type(dtype: Any, origin: Origin, what: str) -> "np.dtype[Any]":
    found: np.dtype[Any] | None = None
    short = isinstance(dtype, str) and dtype in _SHORT  # NumPy reads some of them otherwise: its "i8" has 64 bits
    if isinstance(dtype, type | str | np.dtype) and not short:  # of others NumPy takes their `dtype`; None is float64
        try:
            found = element_type(np.dtype(dtype))
        except Exception:  # of a text NumPy raises TypeError, ValueError or SyntaxError, or warns
            pass
    if found is None:
        cure = f"Use one of {' '.join(_SHORT)}"
        if short:
            cure = f"Pass the type of that name, without quotes: from dagpu import {dtype}"
        raise ShapeError(f"{what} at {describe(origin)}: {shown(dtype)} is no element type of a tensor. {cure}.")
    return found


def _alloc(shape: object, dtype: Any, recipe: Recipe | None, what: str) -> Alloc[Any]:
    origin = here()
    try:
        extents = as_shape(shape)
    except (ShapeError, NotReadyError) as error:
        raise at_call(what, origin, error) from None
    element = _element_type(dtype, origin, what)
    if recipe is not None:
        _check(recipe, element, extents, origin, what)
    return Alloc(extents, element, recipe, origin)


def _check(recipe: Recipe, dtype: "np.dtype[Any]", shape: Shape, origin: Origin, what: str) -> None:
    """Raise a ShapeError if the recipe cannot write these elements: where the op is built, not where it runs."""
    try:
        check(recipe, dtype, shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ShapeError(f"{what} at {describe(origin)}: {error}") from None


def _number(value: Any, what: str, name: str) -> Any:
    """A number for a recipe; a ShapeError for anything else. Complex ones are refused with the element type."""
    number = value_of(value)
    if isinstance(number, NUMBERS):
        return number
    cure = await_first(value) or f"Write {name}=1.5, say"
    raise wrong_argument(what, here(), name, value, "a number", cure, ShapeError)


def _real(value: Any, what: str, name: str) -> Any:
    number = _number(value, what, name)
    if isinstance(number, complex | np.complexfloating):
        raise wrong_argument(what, here(), name, value, "a real number", "Take its .real or .imag", ShapeError)
    return number


def empty(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor whose contents are left as they are: to be written whole by a kernel. f32 unless said.

    A kernel that also reads its output (`y += ...`) must not be given one: use `zeros`. What is read or handed out
    before any kernel has written it is zeros.
    """
    return _alloc(shape, dtype, None, "empty")


def zeros(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor of zeros, fresh in each run."""
    return _alloc(shape, dtype, Constant(0), "zeros")


def ones(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor of ones, fresh in each run."""
    return _alloc(shape, dtype, Constant(1), "ones")


def full(
    shape: Shape,
    fill_value: complex,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor with `fill_value` in every element."""
    return _alloc(shape, dtype, Constant(_number(fill_value, "full", "fill_value")), "full")


def arange(
    stop: int,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor 0, 1, ... `stop` - 1, of shape (stop,)."""
    return _alloc((stop,), dtype, Arange(0, 1), "arange")


def linspace(
    start: float,
    stop: float,
    num: int,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor of `num` evenly spaced values from `start` to `stop`, both included, of shape (num,)."""
    count = value_of(num)
    first, last = _real(start, "linspace", "start"), _real(stop, "linspace", "stop")
    return _alloc((count,), dtype, Linspace(first, last, count), "linspace")


def eye(
    n: int,
    m: int | None = None,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """A new tensor of shape (n, m), m = n unless said: ones on the main diagonal, zeros elsewhere."""
    return _alloc((n, n if m is None else m), dtype, Eye(), "eye")


def rand(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    seed: int | None = None,
) -> DeviceOp[Tensor[_N]]:
    """A new tensor of uniform random numbers in [0, 1).

    Philox 4x32-10 (Salmon et al., SC'11), counter-based: element i depends on `seed` and i alone.

    Args:
        shape: extents in elements.
        dtype: f16, bf16, f32 or f64.
        seed: any whole number, taken modulo 2**64. It gives the same numbers on every device and in every run, and to
            every op that has it: give each op of a program its own. It is a number like those that kernels take: ops
            that differ in it alone, and calls of a pipeline that gets it as an argument, have one plan. Without a seed
            each run draws one: the op gives other numbers in each run, in each call of a pipeline that has it, and in
            each launch of a graph that has captured it.

    Raises:
        ShapeError: the element type, the shape or the seed is none.
    """
    return _alloc(shape, dtype, Uniform(_seed(seed, "rand")), "rand")


def randn(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int | None = None,
) -> DeviceOp[Tensor[_N]]:
    """A new tensor of normal random numbers, by Box and Muller over Philox numbers of their own.

    Args:
        shape: extents in elements.
        dtype: f16, bf16, f32 or f64.
        mean: of the distribution.
        std: its standard deviation, 0 or more.
        seed: as for `rand`: the same numbers everywhere and in every run, or without one, others in each run. With one
            seed `rand` and `randn` have no bits in common.

    Raises:
        ShapeError: the element type, the shape, the seed or a parameter is none.
    """
    middle, spread = _real(mean, "randn", "mean"), _real(std, "randn", "std")
    return _alloc(shape, dtype, Normal(middle, spread, _seed(seed, "randn")), "randn")


def _seed(seed: Any, what: str) -> int | None:
    """A seed as a recipe has it; a stand-in for one as it is, since each run brings its own."""
    given: Any = seed
    if seed is None or (type(seed) is SymbolicNumber and isinstance(given, int)):
        return cast("int | None", seed)
    try:
        return operator.index(value_of(given)) % SEEDS
    except (TypeError, NotReadyError):
        cure = "Write seed=17, say, or leave it out: each run draws one then"
        raise wrong_argument(what, here(), "seed", seed, "a whole number", cure, ShapeError) from None


def from_host(array: NDArray[_D]) -> DeviceOp[Tensor[_D]]:
    """A new tensor with the contents of `array`, of any strides.

    The array is read when the op runs, in each run again: leave it unchanged until then. A subclass (`np.memmap`,
    `np.matrix`) gives its elements only: `to_host()` returns a plain array.

    Raises:
        ShapeError: it is no NumPy array, its element type is none of a tensor's, or it is a masked array, whose mask
            would be lost.
    """
    origin = here()
    if not isinstance(array, np.ndarray):
        raise wrong_argument("from_host", origin, "array", array, "a NumPy array", _array_cure(array), ShapeError)
    if isinstance(array, np.ma.MaskedArray):
        raise ShapeError(
            f"from_host at {describe(origin)}: array is a masked array, and its mask would be lost. Say what stands in "
            "the masked places: from_host(array.filled(0))."
        )
    if element_type(array.dtype) is None:
        raise ShapeError(
            f"from_host at {describe(origin)}: array has elements of {array.dtype}, which no tensor has. "
            f"{_conversion(array.dtype)}."
        )
    return FromHost(array if type(array) in (np.ndarray, SymbolicArray) else array.view(np.ndarray), origin)


def _conversion(dtype: "np.dtype[Any]") -> str:
    """The cure for an array whose elements no tensor has: a conversion to arrays that can be copied."""
    if not dtype.isnative and element_type(dtype.newbyteorder("=")) is not None:
        return 'Its bytes are in the order of other machines. Swap them: array.astype(array.dtype.newbyteorder("="))'
    if dtype.kind == "c":
        return "Copy its parts by themselves: zip_ops(from_host(array.real), from_host(array.imag))"
    if dtype.names is not None:
        return f"Copy its fields by themselves: from_host(array[{dtype.names[0]!r}])"
    if dtype.kind in "mM":
        return "Convert it to whole numbers: array.astype(np.int64)"
    return "Convert it: array.astype(np.float32)"


def _array_cure(x: object) -> str:
    if isinstance(x, DeviceOp):
        return "An op is on its device already, if it yields a tensor: leave from_host out"
    if type(x) in HANDLES:
        return "It is on a device already: leave from_host out"
    if isinstance(x, tuple | list) and any(isinstance(item, np.ndarray) for item in x):
        return "Copy each array by itself: zip_ops(*map(from_host, x))"
    if isinstance(x, dict):
        return "Copy each array in it by itself: zip_ops(*map(from_host, x.values()))"
    if isinstance(x, str | PathLike):
        return "If it is the name of a file of NumPy's, load that first: from_host(np.load(x))"
    if x is None:
        return "Pass the array itself, from_host(array): a function without return gives None"
    return await_first(x) or "Make one of it: np.asarray(x)"


def _source(t: Any, call: str, origin: Origin) -> Any:
    """`t`, if it can be copied from. `call` is how the user's call reads, with `t` for the source."""
    if not isinstance(t, Tensor | SharedTensor | TensorRef | TensorMut):
        what = call.partition("(")[0]
        raise ShapeError(f"{what} at {describe(origin)}: {_kind(t)} is nothing to copy from. {_handle_cure(t, call)}.")
    return t


def _kind(t: object) -> str:
    return "an op" if isinstance(t, DeviceOp) else f"a value of type {type(t).__name__}"


def _handle_cure(t: object, call: str, otherwise: str = "Pass a Tensor, SharedTensor, TensorRef or TensorMut") -> str:
    """The cure for a value that is not a handle. An op gives its handle once it has run, and inside a closure."""
    if isinstance(t, DeviceOp):
        return f"Run it before, t = op.sync() or t = await op, or go on inside a closure: op.then(lambda t: {call})"
    if isinstance(t, np.ndarray):
        return (
            "It lies on the host: bring it to the device before, t = from_host(array).sync(), or go on inside a "
            f"closure: from_host(array).then(lambda t: {call})"
        )
    if type(t) is Partition:
        return "Put it together first: .unpartition()"
    return await_first(t) or otherwise


@overload
def dup(t: Tensor[_D] | SharedTensor[_D]) -> DeviceOp[Tensor[_D]]: ...
@overload
def dup(t: TensorRef[_D] | TensorMut[_D]) -> DeviceOp[Tensor[_D], Borrowed]: ...
def dup(t: Any) -> Any:
    """A copy, contiguous, on the device where the op is placed (`.on(...)`), or where `t` is.

    An owned `Tensor` moves into the op: lend it (`t.borrow()`) to keep it. So does a `TensorMut`, whose loan ends with
    the op's run.
    """
    origin = here()
    return Copy(move_in(_source(t, "dup(t)", origin), "dup()", origin), None, None, origin)


def memcpy(
    dst: TensorMut[_D], src: Tensor[_D] | SharedTensor[_D] | TensorRef[_D] | TensorMut[_D]
) -> DeviceOp[None, Borrowed, NoAlloc]:
    """The contents of `src` into `dst`, of the same shape and element type. Moves `dst`, and `src` unless it is a
    `SharedTensor` or `TensorRef`; the loan of a `TensorMut` ends with the op's run."""
    origin = here()
    _source(src, "memcpy(dst, t)", origin)
    if not isinstance(dst, TensorMut):
        raise ShapeError(
            f"memcpy at {describe(origin)}: {type(dst).__name__} cannot be written to. Pass t.borrow_mut()."
        )
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise ShapeError(
            f"memcpy at {describe(origin)}: from {src.dtype.name} {src.shape} to {dst.dtype.name} {dst.shape}. "
            "Shape and element type must be equal; see convert(...) and reshape(...)."
        )
    if storage_key(dst) is storage_key(src):
        raise BorrowError(
            f"memcpy at {describe(origin)}: source and destination are the same tensor, lent for writing and used for "
            "reading at once. Copy it before: copy = dup(t.borrow()).sync()."
        )
    source, into = moved_in((src, dst), "memcpy()", origin)
    return Copy(source, into, None, origin)


@overload
def convert(t: Tensor[Any] | SharedTensor[Any], dtype: type[_E]) -> DeviceOp[Tensor[_E]]: ...
@overload
def convert(t: TensorRef[Any] | TensorMut[Any], dtype: type[_E]) -> DeviceOp[Tensor[_E], Borrowed]: ...
def convert(t: Any, dtype: Any) -> Any:
    """A copy with another element type, by C's rules of conversion. Moves a `Tensor` and a `TensorMut`, like `dup`."""
    origin = here()
    wanted = _element_type(dtype, origin, "convert")
    return Copy(move_in(_source(t, "convert(t, dtype)", origin), "convert()", origin), None, wanted, origin)


@overload
def fill(t: Tensor[_D], fill_value: complex) -> DeviceOp[Tensor[_D], Static, NoAlloc]: ...
@overload
def fill(t: TensorMut[_D], fill_value: complex) -> DeviceOp[TensorMut[_D], Borrowed, NoAlloc]: ...
def fill(t: Any, fill_value: complex) -> Any:
    """`fill_value` in every element of `t`, in place. Moves `t`, a `Tensor` or a `TensorMut`, and gives it back."""
    origin = here()
    if not isinstance(t, Tensor | TensorMut):
        raise ShapeError(
            f"fill at {describe(origin)}: {_kind(t)} cannot be written. "
            + _handle_cure(t, "fill(t, fill_value)", "Pass a Tensor, or lend one for writing: t.borrow_mut()")
            + "."
        )
    constant = Constant(_number(fill_value, "fill", "fill_value"))
    _check(constant, t.dtype, t.shape, origin, "fill")
    return Copy(constant, move_in(t, "fill()", origin), None, origin)


def _build_to_host(handle: Any) -> object:
    origin = here()
    return ToHost(Value(move_in(handle, "to_host()", origin), origin), origin)


TO_HOST.set(_build_to_host)
