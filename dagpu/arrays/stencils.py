"""`stencil`: one kernel of an expression of an element and its neighbours, with a rule for what is beyond a border; and
`convolve` and `correlate`, sums of neighbours with the elements of a tensor as weights.

Each thread of a stencil reads the neighbours that the expression names at places of their own, by the maps of
`axis_maps`, so no memory holds a larger tensor. On the host they are slices of a padded array, a part of the rows at a
time.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, Generic, Literal, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.arrays.axis_maps import AROUND, BORDERS, Border, border_place
from dagpu.arrays.reductions import checked_input
from dagpu.common.errors import ShapeError
from dagpu.common.layout import (
    Layout,
    Shape,
    bf16,
    c64,
    c128,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    scalar_dtype,
    u8,
    u16,
    u32,
    u64,
)
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, check_count, check_word, format_value
from dagpu.handles import Tensor
from dagpu.kernels.annotations import In
from dagpu.kernels.element import Elem, Parameter, TracedExpression, constant, traced_result, value_of
from dagpu.kernels.expression import TILE
from dagpu.kernels.expression_text import element_function, tile_of
from dagpu.kernels.generated_launch import (
    AnyOp,
    array_call,
    first_output,
    generated_kernel,
    move_arguments,
    new_output,
    number_input,
    output,
    refused_call,
    tensor_input,
)
from dagpu.kernels.numpy_operations import numpy_function
from dagpu.kernels.numpy_twin import evaluator, part_slices, until_cancelled
from dagpu.kernels.operations import (
    constant_text,
    helper_texts,
    load_text,
    memory_type,
    operation_text,
    register_dtype,
    register_type,
    store_text,
    type_name,
)
from dagpu.kernels.reduction_order import identity, identity_text
from dagpu.ops.base import DeviceOp
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.recording import RECORDER

_D = TypeVar("_D", bound=np.generic)
_E = TypeVar("_E", bound=np.generic)
# Constrained, not bounded: handles are covariant, and a bound would accept bool.
_N = TypeVar("_N", f16, bf16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, c64, c128)

TEXT = """\
{helpers}{around}{function}
__global__ void {name}(Tile<{target}, {rank}> out, View<const {element}, {rank}> x) {{
    for (auto i : out) {{
{places}{values}        out[i] = {result};
    }}
}}
"""


@final
class Neighbours(Generic[_D]):
    """An element and its neighbours, in the function of a stencil: `x[0, 0]` is the element itself, `x[-1, 0]` the one
    before it along the first axis. A tensor with one axis has `x[0]` and `x[1]`."""

    def __init__(self, dtype: "np.dtype[Any]", radius: int, trace: object) -> None:
        self._dtype, self._radius, self._trace = dtype, radius, trace
        self.found: dict[Shape, Elem[Any]] = {}
        """The elements that the function has asked for, by their offsets."""

    @leaves_run
    def __getitem__(self, offset: int | tuple[int, ...], /) -> Elem[_D]:
        """Return the element at this distance along each axis, of at most the radius.

        Raises:
            ShapeError: an offset is no whole number, is beyond the radius, or there are more of them than before.
        """
        given = [as_whole_number(each) for each in (offset if isinstance(offset, tuple) else (offset,))]
        place = tuple([each for each in given if each is not None and abs(each) <= self._radius])
        rank = len(next(iter(self.found), place))
        if len(place) != len(given) or not place or len(place) != rank:
            raise ShapeError(
                f"stencil at {describe(here())}: the offset is {format_value(offset)}, but {rank} whole numbers from "
                f"{-self._radius} to {self._radius} are wanted. Give stencil a larger radius, or one number for each "
                "axis."
            )
        number = Parameter(len(self.found), self._trace)
        return self.found.setdefault(place, Elem("parameter", self._dtype, (), number))


@final
class Stencil(Generic[_D, _E]):
    """A function of a tensor whose elements follow from neighbours, from `array.stencil`."""

    def __init__(
        self, traced: TracedExpression, offsets: Sequence[Shape], border: Border, value: Any, origin: Origin
    ) -> None:
        self.traced, self.offsets, self.value = traced, tuple(offsets), value
        self.border: Border = border
        self._origin = origin
        self.__name__: Final = "stencil"
        self._kernel = cache(self._make_kernel)

    @leaves_run
    def __call__(self, x: In[_D], /) -> DeviceOp[Tensor[_E], Any]:
        """Return an op whose result is a new tensor of the shape of `x`.

        Raises:
            KernelArgumentError: `x` has elements of another type.
            ShapeError: `x` has another number of axes than the offsets.
        """
        op: DeviceOp[Tensor[_E], Any] = self.build(x, here())
        return op

    def build(self, x: Any, origin: Origin) -> AnyOp:
        """Return the op of a call, as `__call__` does. `origin` is the place of the call in the user's code."""
        if (recorder := RECORDER.get()) is not None:
            recorded: AnyOp = recorder.call(self, lambda x: self.build(x, origin), (x,), {})
            return recorded
        dtype, rank = self.traced.dtypes[0], len(self.offsets[0])

        def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
            layout: Layout = checked_input("stencil", layouts[0], "any", origin)
            if layout.dtype != dtype:
                what = f"x has elements of {type_name(layout.dtype)}, and the stencil is one of {type_name(dtype)}"
                raise refused_call("stencil", origin, what, f"Convert it before: convert(t, {type_name(dtype)})")
            if len(layout.shape) != rank:
                raise ShapeError(
                    f"stencil at {describe(origin)}: x has shape {layout.shape}, but its offsets are for {rank} axes. "
                    "Reshape it: x.reshape((rows, columns)), say."
                )
            target = new_output(layout.shape, self.traced.dtype, tile_of(layout.shape, TILE), origin)
            return first_output(self._kernel(), (target, *move_arguments("stencil", arguments, origin)), origin)

        return array_call("stencil", ("x",), (x,), build, origin)

    @property
    def cuda(self) -> str:
        """The CUDA text of the kernel."""
        return self._kernel().cuda

    def _make_kernel(self) -> KernelSpec:
        traced, rank = self.traced, len(self.offsets[0])
        dtype, name = traced.dtypes[0], "stencil"
        function, helpers = element_function(traced)
        places = "".join([f"        const long long e{axis} = x.extent({axis});\n" for axis in range(rank)])
        for axis in range(rank):
            for offset in sorted({each[axis] for each in self.offsets}):
                p = f"p{axis}_{offset + 64}"
                a = f"a{axis}_{offset + 64}"
                places += f"        const long long {p} = (long long)i[{axis}] + {offset};\n"
                where = "0" if self.border == "constant" else border_place(self.border, p, f"e{axis}")
                places += f"        const long long {a} = {p} >= 0 && {p} < e{axis} ? {p} : {where};\n"
        values, names = "", []
        for number, place in enumerate(self.offsets):
            at = [f"{axis}_{each + 64}" for axis, each in enumerate(place)]
            load = load_text(dtype, f"x({', '.join([f'a{each}' for each in at])})")
            if self.border == "constant":
                inside = " && ".join([f"p{each} >= 0 && p{each} < e{axis}" for axis, each in enumerate(at)])
                load = f"{inside} ? {load} : {constant_text(self.value, dtype)}"
            names.append(f"v{number}")
            values += f"        const {register_type(dtype)} v{number} = {load};\n"
        text = TEXT.format(
            helpers=helper_texts(helpers),
            around=AROUND if "around" in places else "",
            function=function,
            name=name,
            target=memory_type(traced.dtype),
            element=memory_type(dtype),
            rank=rank,
            places=places,
            values=values,
            result=store_text(traced.dtype, f"element({', '.join(names)})"),
        )
        params = [output("out", traced.dtype, rank), tensor_input("x", dtype, rank)]
        return generated_kernel(
            name, params, text, self._twin(), self._origin, source_name=traced.place, expression=traced.label
        )

    def _twin(self) -> Callable[..., None]:
        """Return the host body: the expression of slices of a padded part."""
        offsets, border, value = self.offsets, self.border, self.value
        radius = max(abs(each) for offset in offsets for each in offset)
        evaluate, itemsize = evaluator(self.traced, range(len(offsets)))
        pad: Any = np.pad  # its overloads know no mode of several
        options = {"constant_values": value} if border == "constant" else {}

        def body(out: Any, x: Any) -> None:
            if not out.size:
                return
            padded = pad(x, radius, border, **options) if radius else x
            for part in until_cancelled(part_slices(out.shape, itemsize)):
                ranges = [range(*cut.indices(extent)) for cut, extent in zip(part, x.shape, strict=True)]
                views = [
                    padded[tuple([
                        slice(each.start + radius + step, each.stop + radius + step)
                        for each, step in zip(ranges, offset, strict=True)
                    ])]
                    for offset in offsets
                ]  # fmt: skip
                evaluate(out[(*part, ...)], *views)

        return body


@leaves_run
def stencil(
    dtype: type[_D],
    radius: int = 1,
    *,
    border: Border = "edge",
    constant_value: float = 0,
) -> Callable[[Callable[[Neighbours[_D]], Elem[_E]]], Stencil[_D, _E]]:
    """Make a function of tensors of an expression of an element and its neighbours.

    `stencil(f32)(lambda x: (x[-1] + x[0] + x[1]) / 3)` is a blur of tensors with one axis. The expression is one
    kernel, with the rules and the bits of `expr`; the offsets that it names say how many axes the tensors have.

    Args:
        dtype: the element type of the tensors.
        radius: the largest offset that the expression may name, from 1 to 64.
        border: what is beyond a border: "edge" the last element, "reflect" the elements mirrored about the last one,
            "symmetric" those mirrored about the border, "wrap" those of the other end, and "constant" a number.
        constant_value: that number.

    Returns:
        What makes a function of an expression, as a decorator does. The function takes a tensor, or an op whose result
        is one, and returns an op of a new tensor of its shape.

    Raises:
        KernelArgumentError: there is no such element type, or `border` is another word.
        TypeError: `radius` is not a whole number, or elements cannot be `constant_value`. The function's result is not
            an element.
        ValueError: `radius` is less than 1, or more than 64.
    """
    origin, element = here(), scalar_dtype(dtype)
    most = check_count(radius, "stencil", origin, "radius")
    check_word("stencil", "border", border, BORDERS, origin)
    if element is None:
        what = f"dtype is {format_value(dtype)}"
        raise refused_call("stencil", origin, what, "Pass an element type, stencil(f32), say")
    if most > 64:
        raise ValueError(
            f"stencil at {describe(origin)}: radius is {most}, but it is at most 64. Multiply in the transform, "
            "array.rfft, for a sum of more neighbours."
        )
    beyond = value_of(constant(bool(constant_value) if element.kind == "b" else constant_value, element, "stencil"))

    @leaves_run
    def made(f: Callable[[Neighbours[_D]], Elem[_E]], /) -> Stencil[_D, _E]:
        trace = object()
        neighbours = Neighbours[_D](element, most, trace)
        root: Any = f(neighbours)
        names = tuple([f"x{number}" for number in range(len(neighbours.found))])
        traced = traced_result(f, root, names, (element,) * len(names), trace)
        return Stencil(traced, list(neighbours.found), border, beyond, origin)

    return made


# ---- convolutions
#
# An element of a convolution is the sum of the products of the shorter tensor's elements, in their order, and of the
# longer one's from a place on backwards. Each product and each sum is rounded once: to the element type, or for f16 and
# bf16 to f32, and the last sum to the element type.

_MODES: Final = ("full", "same", "valid")
CONVOLVE: Final = """\
{helpers}\
__global__ void {name}(
    Tile<{element}, 1> out, View<const {element}, 1> longer, View<const {element}, 1> shorter, long long skipped
) {{
    const long long n = longer.extent(0), m = shorter.extent(0);
    for (auto i : out) {{
        const long long at = (long long)i[0] + skipped, last = at < m - 1 ? at : m - 1;
        {number} sum = {identity};
        for (long long j = at < n ? 0 : at - n + 1; j <= last; ++j) {{
            const {number} x = {longer}, y = {shorter};
            const {number} product = {product};
            sum = {added};
        }}
        out[i] = {stored};
    }}
}}
"""


@leaves_run
def convolve(a: In[_N], v: In[_N], mode: Literal["full", "same", "valid"] = "full") -> DeviceOp[Tensor[_N], Any]:
    """Return the convolution of two tensors with one axis, as NumPy's: element k is the sum of `a[k - j] * v[j]`.

    Each element takes as many products as the shorter tensor has elements, so products of transforms are quicker for
    long ones: `irfft` of the product of `rfft(a, n)` and `rfft(v, n)`, which rounds otherwise. Integers wrap. The bits
    are the same on every device.

    Args:
        a: a tensor of numbers with one axis, or an op whose result is one.
        v: the same, of the same element type.
        mode: "full" for all n + m - 1 sums of n and m elements, "same" for the max(n, m) in the middle, "valid" for
            those in which the shorter tensor lies within the longer one.

    Raises:
        KernelArgumentError: the elements are bools or of two types, or there is no such mode.
        ShapeError: a tensor has not one axis, or no elements.
    """
    return _convolved("convolve", a, v, mode)


@leaves_run
def correlate(a: In[_N], v: In[_N], mode: Literal["full", "same", "valid"] = "valid") -> DeviceOp[Tensor[_N], Any]:
    """Return the correlation of two tensors with one axis, as NumPy's: element k is the sum of `a[k + j] * conj(v[j])`,
    the convolution of `a` and the reversed conjugate of `v`. Arguments and errors are those of `convolve`."""
    return _convolved("correlate", a, v, mode)


def sums_of_mode(name: str, first: int, second: int, mode: str) -> tuple[int, int]:
    """Return how many of all sums of a convolution or correlation a mode gives, and how many come before them."""
    most, least = max(first, second), min(first, second)
    # NumPy's correlation of a shorter tensor is that of a longer one, reversed
    middle = least // 2 if name == "correlate" and second > first else (least - 1) // 2
    return {
        "full": (most + least - 1, 0),
        "same": (most, middle),
        "valid": (most - least + 1, least - 1),
    }[mode]


def _convolved(name: str, a: Any, v: Any, mode: Any) -> AnyOp:
    origin = here()
    check_word(name, "mode", mode, _MODES, origin)

    def build(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
        given = [checked_input(name, each, "number", origin, param) for each, param in zip(layouts, "av", strict=True)]
        first, second = given
        if first.dtype != second.dtype:
            what = f"a of {type_name(first.dtype)} and v of {type_name(second.dtype)}"
            raise refused_call(name, origin, what, "Convert one: convert(t, f32), say")
        for layout, param in zip(given, "av", strict=True):
            if len(layout.shape) != 1 or not layout.size:
                raise ShapeError(
                    f"{name} at {describe(origin)}: {param} has shape {layout.shape}, but one axis with elements is "
                    "wanted. Reshape it, x.reshape((-1,)), or write array.stencil for neighbours along several axes."
                )
        swapped = second.size > first.size
        turned = "" if name == "convolve" else "longer" if swapped else "shorter"
        extent, skipped = sums_of_mode(name, first.size, second.size, mode)
        moved = move_arguments(name, arguments, origin)
        operands = moved[::-1] if swapped else moved
        target = new_output((extent,), first.dtype, tile_of((extent,), TILE), origin)
        return first_output(_convolution(name, first.dtype, turned), (target, *operands, skipped), origin)

    return array_call(name, ("a", "v"), (a, v), build, origin)


@cache
def _convolution(name: str, dtype: "np.dtype[Any]", turned: str) -> KernelSpec:
    """Return the kernel of a convolution. The operand `turned` is reversed, and its conjugate is taken."""
    number = register_dtype(dtype)
    places = {
        operand: load_text(dtype, f"{operand}({f'{extent} - 1 - ({place})' if operand == turned else place})")
        for operand, extent, place in (("longer", "n", "at - j"), ("shorter", "m", "j"))
    }
    if number.kind == "c" and turned:
        part = places[turned]
        places[turned] = operation_text("conj", number, (part,)).text
    product, added = operation_text("multiply", number, ("x", "y")), operation_text("add", number, ("sum", "product"))
    text = CONVOLVE.format(
        helpers=helper_texts({*product.helpers, *added.helpers}),
        name=name,
        element=memory_type(dtype),
        number=register_type(number),
        identity=identity_text("add", number),
        product=product.text,
        added=added.text,
        stored=store_text(dtype, "sum"),
        **places,
    )
    params = [output("out", dtype, 1), tensor_input("longer", dtype, 1), tensor_input("shorter", dtype, 1)]
    params.append(number_input("skipped", np.dtype(np.int64), name))
    multiply = numpy_function("multiply", number, number)

    def body(out: Any, longer: Any, shorter: Any, skipped: Any) -> None:
        x, y = [
            each.astype(number, copy=False) if turned != operand else np.conj(each[::-1].astype(number, copy=False))
            for operand, each in (("longer", longer), ("shorter", shorter))
        ]
        for (part,) in until_cancelled(part_slices(out.shape, number.itemsize)):
            begin, end, _ = part.indices(len(out))
            sums = np.full(end - begin, identity("add", number))
            for j, weight in enumerate(y):
                first, last = max(begin, j - skipped), min(end, j - skipped + len(x))
                if first < last:
                    place = slice(first - begin, last - begin)
                    sums[place] += multiply(x[first + skipped - j : last + skipped - j], weight)
            np.copyto(out[part], sums, casting="unsafe")

    return generated_kernel(name, params, text, body, (_convolution.__wrapped__.__code__, 0))
