"""Ops that create and copy device data: new tensors, copies from and to the host, copies on the device; and the seeds
of random ones.
"""

from collections.abc import Callable
from functools import wraps
from math import ceil, isfinite
from os import PathLike
from typing import Any, TypeAlias, cast, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar

from dagpu.common.errors import BorrowError, NotReadyError, ShapeError
from dagpu.common.frozen import frozen
from dagpu.common.layout import Shape, as_shape, bf16, conversion_cure, element_type, share_bytes
from dagpu.common.places import Origin, describe, here, leaves_run, without_our_frames
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, format_value, wrong_argument
from dagpu.handles import (
    HANDLES,
    TO_HOST,
    Partition,
    SharedTensor,
    Tensor,
    TensorMut,
    TensorRef,
    find_live_state,
    live_state,
    move_handle,
)
from dagpu.handles.symbolic import SymbolicArray, SymbolicNumber, read_value
from dagpu.handles.tensors import move_handles, storage_key
from dagpu.ops.base import Borrowed, DeviceOp, MayAlloc, NoAlloc, Static, cure_by_await
from dagpu.ops.compose import ByResults, Map, Then, ToHost, Value, Zip
from dagpu.ops.initializers import (
    FOLD_STREAM,
    SEED_COUNT,
    Arange,
    Constant,
    Eye,
    Linspace,
    Normal,
    Recipe,
    Uniform,
    check_recipe,
)
from dagpu.ops.recording import recorded

# ---- seeds


AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Seed: TypeAlias = int | DeviceOp[int, Any, Any]
"""A seed: a whole number, or a source or an op whose value is one."""

_WORD = (1 << 32) - 1


@overload
def fold_in(seed: int, data: int) -> int: ...
@overload
def fold_in(seed: DeviceOp[int, Any, Any], data: Seed) -> DeviceOp[int, Any]: ...
@overload
def fold_in(seed: int, data: DeviceOp[int, Any, Any]) -> DeviceOp[int, Any]: ...
@leaves_run
def fold_in(seed: Any, data: Any) -> Any:
    """Return a seed that is made of another one and a number: of a step, a layer, a device.

    Seeds of one `seed` and different `data` are different, and what is drawn from them is independent of each other and
    of `seed`. So a program has one seed, and each place that draws folds in a number of its own; a seed that was made
    so can be folded again. One pair makes the same seed on every machine.

    The seed is w0 + w1 * 2**32, of the words of Philox 4x32-10 (Salmon et al., SC'11) with the key `seed` and the
    counter (data mod 2**32, data // 2**32 mod 2**32, 0, 4). No function that draws has 4 for the last word.

    Args:
        seed: any whole number, taken modulo 2**64, or a source or an op whose value is one.
        data: as `seed`.

    Returns:
        A whole number from 0 to 2**64 - 1; of a source or an op, an op whose value it is. In a pipeline an argument is
        read for it, so that the plan serves this argument alone: fold before the call, and pass what it makes.

    Raises:
        ShapeError: one of them is not a whole number.
    """
    origin = here()
    if not isinstance(seed, DeviceOp) and not isinstance(data, DeviceOp):
        return _folded(_whole(seed, "seed", "fold_in", origin), _whole(data, "data", "fold_in", origin))

    def fold(both: tuple[Any, Any]) -> Any:
        return fold_in(*both)

    sources = tuple([each if isinstance(each, DeviceOp) else Value(each, origin) for each in (seed, data)])
    return Map(Zip(sources, origin), fold, origin)


def _folded(seed: int, data: int) -> int:
    """Return `fold_in` of whole numbers from 0 to 2**64 - 1."""
    w0, w1, w2, w3 = data & _WORD, data >> 32, 0, FOLD_STREAM
    k0, k1 = seed & _WORD, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * w0, 0xCD9E8D57 * w2
        w0, w1, w2, w3 = p1 >> 32 ^ w1 ^ k0, p1 & _WORD, p0 >> 32 ^ w3 ^ k1, p0 & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return w0 | w1 << 32


def check_seed(seed: Any, what: str, origin: Origin) -> int | None:
    """Return a seed for a recipe, modulo 2**64. A symbolic seed is returned as it is: each run has its own value."""
    given: Any = seed
    if seed is None or (type(seed) is SymbolicNumber and isinstance(given, int)):
        return cast("int | None", seed)
    return _whole(seed, "seed", what, origin)


def with_seed(seed: Any, what: str, build: Callable[[int | None], AnyOp], origin: Origin) -> AnyOp:
    """Return the op that `build` makes of a checked seed. If the seed is a source or an op, its run chooses it.

    Raises:
        ShapeError: it is not a whole number.
    """
    if not isinstance(seed, DeviceOp):
        return build(check_seed(seed, what, origin))

    def chosen(value: Any) -> AnyOp:
        return build(check_seed(value, what, origin))

    return Then(seed, ByResults(chosen, what), origin)


def _whole(given: Any, name: str, what: str, origin: Origin) -> int:
    number = as_whole_number(read_value(given))
    if number is None:
        cure = "Write seed=17, say, or leave it out: each run draws one then"
        if what == "fold_in":
            cure = "Pass it, fold_in(17, 3), say, or a source or an op whose value it is"
        raise wrong_argument(what, origin, name, given, "a whole number", cure, ShapeError)
    return number % SEED_COUNT


# ---- what an op creates or copies


NUMBERS = (int, float, complex, np.number, np.bool_, bf16)
"""The types of numbers: Python's own and NumPy's."""

_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic)
_OpOf: TypeAlias = DeviceOp[Tensor[_D] | SharedTensor[_D] | TensorRef[_D] | TensorMut[_D], Any, Any]
"""An op whose result can be copied."""
_N = TypeVar("_N", bound=np.generic, default=np.float32)
_T_co = TypeVar("_T_co", covariant=True)
_L_co = TypeVar("_L_co", bound=Borrowed, covariant=True, default=Static)
_G_co = TypeVar("_G_co", bound=MayAlloc, covariant=True, default=MayAlloc)


@final
@frozen
class Alloc(DeviceOp[_T_co, _L_co, _G_co]):
    """A new tensor, to which `recipe` is written. Without a recipe (None) its memory is not initialised."""

    shape: Shape
    dtype: "np.dtype[Any]"
    recipe: Recipe | None
    origin: Origin


@final
@frozen
class FromHost(DeviceOp[_T_co, _L_co, _G_co]):
    """A new tensor, to which a run copies the contents of a NumPy array."""

    array: NDArray[Any]
    origin: Origin


@final
@frozen
class Copy(DeviceOp[_T_co, _L_co, _G_co]):
    """Copies `source`, a handle or one value for all elements, to `into`, or to a new tensor if `into` is None."""

    source: Any
    into: Any
    dtype: "np.dtype[Any] | None"
    origin: Origin


_SHORT = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool_", "c64", "c128")
"""The short names of the element types of tensors."""


def wanted_element_type(dtype: Any, origin: Origin, what: str) -> "np.dtype[Any]":
    """Return the element type that a caller of `what` has given for a new tensor.

    Raises:
        ShapeError: tensors cannot have it.
    """
    found: np.dtype[Any] | None = None
    short = isinstance(dtype, str) and dtype in _SHORT  # for NumPy "i8" has 64 bits
    if isinstance(dtype, type | str | np.dtype) and not short:  # NumPy accepts others, such as None
        try:
            found = element_type(np.dtype(dtype))
            if found is not None and found.names is not None and not isinstance(dtype, np.dtype):
                found = None  # "f4," is a structure, too
        except Exception:  # for a text NumPy raises TypeError, ValueError or SyntaxError, or warns
            pass
    if found is None:
        cure = f"Use one of {' '.join(_SHORT)}"
        if short:
            cure = f"Pass the type of that name, without quotes: from dagpu import {dtype}"
        raise ShapeError(
            f"{what} at {describe(origin)}: {format_value(dtype)} is not an element type of a tensor. {cure}."
        )
    return found


def _alloc(shape: object, dtype: Any, recipe: Recipe | None, what: str, origin: Origin = None) -> Alloc[Any]:
    origin = here() if origin is None else origin
    try:
        extents = as_shape(shape)
    except (ShapeError, NotReadyError) as error:
        raise add_call_place(what, origin, error) from None
    element = wanted_element_type(dtype, origin, what)
    if recipe is not None:
        _check_recipe(recipe, element, extents, origin, what)
    return Alloc(extents, element, recipe, origin)


def _check_recipe(recipe: Recipe, dtype: "np.dtype[Any]", shape: Shape, origin: Origin, what: str) -> None:
    """Raise a ShapeError if the recipe cannot write these elements: when the op is built, not when it runs."""
    try:
        check_recipe(recipe, dtype, shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ShapeError(f"{what} at {describe(origin)}: {error}") from None


def _check_number(value: Any, what: str, name: str) -> Any:
    """Return a number of Python's own for a recipe, or raise a ShapeError. `_check_recipe` refuses complex numbers."""
    number = read_value(value)
    if isinstance(number, NUMBERS):
        found: Any = number.item() if isinstance(number, np.generic) else number
        if isinstance(found, np.inexact):  # a long double has no number of Python's own
            return float(found) if isinstance(found, np.floating) else complex(found)
        return found
    cure = cure_by_await(value) or f"Write {name}=1.5, say"
    raise wrong_argument(what, here(), name, value, "a number", cure, ShapeError)


def _check_real(value: Any, what: str, name: str) -> Any:
    number = _check_number(value, what, name)
    if isinstance(number, bool):
        raise wrong_argument(what, here(), name, value, "a number", f"Write {name}=2, say", ShapeError)
    if isinstance(number, complex | np.complexfloating):
        raise wrong_argument(what, here(), name, value, "a real number", "Take its .real or .imag", ShapeError)
    return number


def empty(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor without writing to it, for a kernel that writes all of it. The default element type is f32.

    For a kernel that also reads its output (`y += ...`), use `zeros` instead. A tensor that is read or returned before
    any kernel has written to it contains zeros.
    """
    try:
        return _alloc(shape, dtype, None, "empty")
    except BaseException as error:
        without_our_frames(error)
        raise


def zeros(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor of zeros. Each run creates a new one."""
    try:
        return _alloc(shape, dtype, Constant(0), "zeros")
    except BaseException as error:
        without_our_frames(error)
        raise


def ones(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor of ones. Each run creates a new one."""
    try:
        return _alloc(shape, dtype, Constant(1), "ones")
    except BaseException as error:
        without_our_frames(error)
        raise


def full(
    shape: Shape,
    fill_value: complex,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor with `fill_value` in every element.

    Raises:
        ShapeError: elements of this type cannot have the value. Floating types round it, but integer types take whole
            numbers of their range alone, bool takes True, False, 0 and 1, and no other type takes True or False.
    """
    try:
        return _alloc(shape, dtype, Constant(_check_number(fill_value, "full", "fill_value")), "full")
    except BaseException as error:
        without_our_frames(error)
        raise


def filled(shape: Shape, dtype: "np.dtype[Any]", fill_value: Any, what: str, origin: Origin) -> Alloc[Any]:
    """Return the op of `full` for a call of the function `what`, with its errors."""
    return _alloc(shape, dtype.type, Constant(_check_number(fill_value, what, "fill_value")), what, origin)


def _or_from_start(of_stop: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `arange` so that it takes a start and a step, too: then a number stands where the element type would be."""

    @wraps(of_stop)
    @leaves_run
    def called(*given: Any, **named: Any) -> Any:
        second = read_value(given[1]) if len(given) > 1 else None
        if len(given) > 2 or named.keys() & {"start", "step"} or isinstance(second, NUMBERS):
            return _range(*given, **named)
        return _range(*given, **named) if given and "stop" in named else of_stop(*given, **named)

    return called


def _range(
    start: Any,
    stop: Any,
    step: Any = 1,
    dtype: Any = np.float32,
) -> Any:
    """Return the op of `arange(start, stop, step)`."""
    given = {"start": start, "stop": stop, "step": step}
    numbers = [_as_python(_check_real(value, "arange", name)) for name, value in given.items()]
    first, last, ahead = numbers
    if not all(map(isfinite, numbers)) or ahead == 0:
        raise ShapeError(
            f"arange at {describe(here())}: from {first} to {last} in steps of {ahead} its length is not a finite "
            "number. "
            "Give finite numbers, and a step that is not 0."
        )
    whole = all(isinstance(number, int) for number in numbers)
    length = len(range(first, last, ahead)) if whole else max(0, ceil((last - first) / ahead))
    return _alloc((length,), dtype, Arange(first, ahead), "arange")


_range.__qualname__ = "arange"  # Python names it in its errors for a wrong number of arguments


def _as_python(number: Any) -> Any:
    """Return a real number as an int or a float of Python's."""
    return int(number) if isinstance(number, int | np.integer | np.bool_) else float(number)


@overload
def arange(
    stop: float,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]: ...
@overload
def arange(
    start: float,
    stop: float,
    step: float = 1,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]: ...
@_or_from_start
def arange(stop: Any, dtype: Any = np.float32) -> Any:
    """Create a tensor 0, 1, ... `stop` - 1, or `start`, `start + step`, ... up to `stop`, which is left out.

    The length is that which NumPy gives it, `(stop - start) / step` rounded up, or 0: with fractions an element may
    reach `stop` by rounding. Element i is `start + i * step`, computed in f64 and rounded to the element type (NumPy
    computes in that type). For integer types, which take a whole start and step, it is exact. The step may be negative.

    Raises:
        ShapeError: a number is not finite, the step is 0, or an element does not fit the element type.
    """
    return _range(0, stop, 1, dtype)


@leaves_run
def linspace(
    start: float,
    stop: float,
    num: int,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor of `num` evenly spaced values from `start` to `stop`, both included, of shape (num,).

    Integer types take whole ends, and what lies between them is rounded down.

    Raises:
        ShapeError: a number is not finite, `num` is not a whole number, or an element does not fit the element type.
    """
    count = read_value(num)
    first, last = _check_real(start, "linspace", "start"), _check_real(stop, "linspace", "stop")
    return _alloc((count,), dtype, Linspace(first, last, count), "linspace")


@leaves_run
def eye(
    n: int,
    m: int | None = None,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor of shape (n, m), m = n by default: ones on the main diagonal, zeros elsewhere."""
    return _alloc((n, n if m is None else m), dtype, Eye(), "eye")


@leaves_run
def rand(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    seed: Seed | None = None,
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor of uniform random numbers in [0, 1).

    Philox 4x32-10 (Salmon et al., SC'11), counter-based: element i depends on `seed` and i alone.

    Args:
        shape: extents in elements.
        dtype: f16, bf16, f32 or f64.
        seed: any whole number, taken modulo 2**64, or a source or an op whose value is one. One seed produces the same
            numbers on every device, in every run and in every call of `rand` that has it, so give each op of a program
            its own seed: `fold_in` makes many of one. `rand`, `randn`, `array.dropout` and `array.permutation` draw
            from streams of their own, which are independent for one seed. Ops that differ in the seed alone
            share a plan, and so do the calls of a pipeline that gets the seed as an argument. Without a seed each run
            draws one: the numbers differ in each run, in each call of a pipeline, and in each launch of a graph.

    Raises:
        ShapeError: the element type, the shape or the seed is not valid.
    """
    origin = here()
    return with_seed(seed, "rand", lambda chosen: _alloc(shape, dtype, Uniform(chosen), "rand", origin), origin)


@leaves_run
def randn(
    shape: Shape,
    dtype: type[_N] = np.float32,  # type: ignore[assignment]  # reason: the TypeVar's default
    *,
    mean: float = 0.0,
    std: float = 1.0,
    seed: Seed | None = None,
) -> DeviceOp[Tensor[_N]]:
    """Create a tensor of normal random numbers, by the Box-Muller method over Philox numbers.

    Args:
        shape: extents in elements.
        dtype: f16, bf16, f32 or f64.
        mean: the mean of the distribution.
        std: the standard deviation of the distribution, 0 or more.
        seed: as for `rand`: one seed produces the same numbers everywhere and in every run. Without a seed the numbers
            differ in each run. `rand` and `randn` have no bits in common for the same seed.

    Raises:
        ShapeError: the element type, the shape, the seed or a parameter is not valid.
    """
    middle, spread, origin = _check_real(mean, "randn", "mean"), _check_real(std, "randn", "std"), here()

    def build(chosen: int | None) -> Alloc[Any]:
        return _alloc(shape, dtype, Normal(middle, spread, chosen), "randn", origin)

    return with_seed(seed, "randn", build, origin)


def from_host(array: NDArray[_D]) -> DeviceOp[Tensor[_D]]:
    """Create a tensor with the contents of `array`, which may have any strides.

    Each run reads the array again: leave it unchanged until the run has ended. Of a subclass (`np.memmap`, `np.matrix`)
    only the elements are copied: `to_host()` returns a plain array.

    Raises:
        ShapeError: `array` is not a NumPy array, tensors cannot have its element type, or it is a masked array, whose
            mask would be lost.
    """
    try:
        origin = here()
        if type(array) is np.ndarray and element_type(array.dtype) is not None:
            return FromHost(array, origin)
        if not isinstance(array, np.ndarray):
            raise wrong_argument("from_host", origin, "array", array, "a NumPy array", _array_cure(array), ShapeError)
        if isinstance(array, np.ma.MaskedArray):
            raise ShapeError(
                f"from_host at {describe(origin)}: array is a masked array, and its mask would be lost. Fill the "
                "masked elements first: from_host(array.filled(0))."
            )
        if element_type(array.dtype) is None:
            raise ShapeError(
                f"from_host at {describe(origin)}: array has elements of {array.dtype}, which no tensor has. "
                f"{conversion_cure(array.dtype, 'array')}."
            )
        return FromHost(array if type(array) in (np.ndarray, SymbolicArray) else array.view(np.ndarray), origin)
    except BaseException as error:
        without_our_frames(error)
        raise


def _array_cure(x: object) -> str:
    if isinstance(x, DeviceOp):
        return (
            "An op is on its device already, if its result is a tensor: leave from_host out. If it is a NumPy array, "
            "say op.then(from_host)"
        )
    if type(x) in HANDLES:
        return "It is on a device already: leave from_host out"
    if isinstance(x, tuple | list) and any(isinstance(item, np.ndarray) for item in x):
        return "Copy each array by itself: zip_ops(*map(from_host, x))"
    if isinstance(x, dict):
        return "Copy each array in it by itself: zip_ops(*map(from_host, x.values()))"
    if isinstance(x, str | PathLike):
        return "If it is the name of a file of NumPy's, load that first: from_host(np.load(x))"
    if x is None:
        return "Pass the array itself, from_host(array): a function without return returns None"
    return cure_by_await(x) or "Make one of it: np.asarray(x)"


def copied(t: Any, dtype: "np.dtype[Any] | None", what: str, origin: Origin) -> AnyOp:
    """Return the op that copies a handle, or the result of an op, to a new tensor of another element type, if one is
    given.

    Raises:
        MovedError: the handle has been moved before.
        ShapeError: it is neither a handle nor an op, or complex elements are to become real ones.
    """
    if isinstance(t, DeviceOp):

        def of_result(result: Any) -> AnyOp:
            return copied(result, dtype, what, origin)

        return Then(t, ByResults(of_result, what), origin)
    source = _check_source(t, f"{what}(t)" if dtype is None else f"{what}(t, dtype)", origin)
    state = None if dtype is None else find_live_state(source)
    if state is not None and dtype is not None:  # a handle that has been moved is refused by the move
        _check_conversion(state.layout.dtype, dtype, what, origin)
    return Copy(move_handle(source, f"{what}()", origin), None, dtype, origin)


def _check_source(t: Any, call: str, origin: Origin) -> Any:
    """Return `t`, or raise if it cannot be copied from. `call` is the text of the user's call, `t` being the source."""
    if not isinstance(t, Tensor | SharedTensor | TensorRef | TensorMut):
        what = call.partition("(")[0]
        raise ShapeError(
            f"{what} at {describe(origin)}: {_describe_kind(t)} is nothing to copy from. {_handle_cure(t, call)}."
        )
    return t


def _check_conversion(source: "np.dtype[Any]", target: "np.dtype[Any]", what: str, origin: Origin) -> None:
    """Raise a ShapeError for a conversion of complex elements to real ones, which would lose a part, or of
    structures."""
    if source != target and (source.names is not None or target.names is not None):
        raise ShapeError(
            f"{what} at {describe(origin)}: structures are not converted. Convert on the host: "
            "from_host(array[field]), from_host(array.astype(dtype))."
        )
    if source.kind == "c" and target.kind != "c":
        raise ShapeError(
            f"{what} at {describe(origin)}: elements of {source.name} have two parts, and those of {target.name} hold "
            "one. Say which is meant: array.real(t), array.imag(t), or the size, array.abs(t)."
        )


def _describe_kind(t: object) -> str:
    return "an op" if isinstance(t, DeviceOp) else f"a value of type {type(t).__name__}"


def _handle_cure(t: object, call: str, otherwise: str = "Pass a Tensor, SharedTensor, TensorRef or TensorMut") -> str:
    """Return the cure for a value that is not a handle. `call` is the text of the user's call, `t` being the handle."""
    if isinstance(t, DeviceOp):
        return f"Run it before, t = op.sync() or t = await op, or go on inside a closure: op.then(lambda t: {call})"
    if isinstance(t, np.ndarray):
        return (
            "It lies on the host: bring it to the device before, t = from_host(array).sync(), or go on inside a "
            f"closure: from_host(array).then(lambda t: {call})"
        )
    if type(t) is Partition:
        return "Put it together first: .unpartition()"
    return cure_by_await(t) or otherwise


@overload
def dup(t: Tensor[_D] | SharedTensor[_D]) -> DeviceOp[Tensor[_D]]: ...
@overload
def dup(t: TensorRef[_D] | TensorMut[_D]) -> DeviceOp[Tensor[_D], Borrowed]: ...
@overload
def dup(t: _OpOf[_D]) -> DeviceOp[Tensor[_D], Any]: ...
@recorded
@leaves_run
def dup(t: Any) -> Any:
    """Copy `t` to a new contiguous tensor, on the device where the op is placed (`.on(...)`), or else on that of `t`.

    An owned `Tensor` moves into the op: lend it (`t.borrow()`) to keep it. A `TensorMut` moves too, and its loan ends
    with the op's run. Of an op its result is copied.
    """
    return copied(t, None, "dup", here())


@leaves_run
def memcpy(
    dst: TensorMut[_D], src: Tensor[_D] | SharedTensor[_D] | TensorRef[_D] | TensorMut[_D]
) -> DeviceOp[None, Borrowed, NoAlloc]:
    """Copy the contents of `src` to `dst`, which has the same shape and element type.

    Moves `dst`, and `src` unless it is a `SharedTensor` or `TensorRef`. The loan of a `TensorMut` ends with the op's
    run.
    """
    origin = here()
    _check_source(src, "memcpy(dst, t)", origin)
    if not isinstance(dst, TensorMut):
        raise ShapeError(
            f"memcpy at {describe(origin)}: {type(dst).__name__} cannot be written to. Pass t.borrow_mut()."
        )
    if dst.shape != src.shape or dst.dtype != src.dtype:
        raise ShapeError(
            f"memcpy at {describe(origin)}: from {src.dtype.name} {src.shape} to {dst.dtype.name} {dst.shape}. "
            "Shape and element type must be equal; see convert(...) and reshape(...)."
        )
    if storage_key(dst) is storage_key(src) and share_bytes(live_state(dst).layout, live_state(src).layout):
        raise BorrowError(
            f"memcpy at {describe(origin)}: source and destination are the same tensor, lent for writing and used for "
            "reading at once. Copy it before: copy = dup(t.borrow()).sync()."
        )
    source, into = move_handles((src, dst), "memcpy()", origin)
    return Copy(source, into, None, origin)


@overload
def convert(t: Tensor[Any] | SharedTensor[Any], dtype: type[_E]) -> DeviceOp[Tensor[_E]]: ...
@overload
def convert(t: TensorRef[Any] | TensorMut[Any], dtype: type[_E]) -> DeviceOp[Tensor[_E], Borrowed]: ...
@overload
def convert(t: _OpOf[Any], dtype: type[_E]) -> DeviceOp[Tensor[_E], Any]: ...
@recorded
@leaves_run
def convert(t: Any, dtype: Any) -> Any:
    """Copy `t` to another element type, by C's rules of conversion. Moves a `Tensor` or `TensorMut`, as `dup` does. Of
    an op its result is converted. A real number becomes a complex one without an imaginary part.

    Raises:
        ShapeError: complex elements are to become real ones, which `array.real`, `array.imag` and `array.abs` make.
    """
    origin = here()
    return copied(t, wanted_element_type(dtype, origin, "convert"), "convert", origin)


@overload
def fill(t: Tensor[_D], fill_value: complex) -> DeviceOp[Tensor[_D], Static, NoAlloc]: ...
@overload
def fill(t: TensorMut[_D], fill_value: complex) -> DeviceOp[TensorMut[_D], Borrowed, NoAlloc]: ...
@leaves_run
def fill(t: Any, fill_value: complex) -> Any:
    """Write `fill_value` to every element of `t`, in place. Moves `t`, a `Tensor` or `TensorMut`, and returns it.

    Raises:
        ShapeError: elements of its type cannot have the value, as in `full`; or `t` cannot be written.
    """
    origin = here()
    if not isinstance(t, Tensor | TensorMut):
        raise ShapeError(
            f"fill at {describe(origin)}: {_describe_kind(t)} cannot be written. "
            + _handle_cure(t, "fill(t, fill_value)", "Pass a Tensor, or lend one for writing: t.borrow_mut()")
            + "."
        )
    constant = Constant(_check_number(fill_value, "fill", "fill_value"))
    _check_recipe(constant, t.dtype, t.shape, origin, "fill")
    return Copy(constant, move_handle(t, "fill()", origin), None, origin)


def _build_to_host(handle: Any, origin: Origin) -> object:
    return ToHost(Value(move_handle(handle, "to_host()", origin), origin), origin)


TO_HOST.set(_build_to_host)
