"""Kernel calls: how arguments are bound, and the forms that each parameter takes."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from dagpu.common.layout import f32, f64
from dagpu.common.places import place_of
from dagpu.handles import Partition, Tensor
from dagpu.kernels.decorator import In, Out, kernel
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Launch, value
from tests.unit.kernels import kernel_cases
from tests.unit.kernels.kernel_cases import add, alive, cut, declared_line, lazily, lazy, refused, saxpy, split, tensor

# ---- calls: binding


def test_call_builds_a_launch() -> None:
    """A call moves its handles into a `Launch` that knows the place of the call."""
    y, x = cut(), tensor()
    op = saxpy(y, 2.0, x)
    assert isinstance(op, Launch)
    assert op.kernel is saxpy.spec
    assert [type(arg) for arg in op.args] == [Partition, float, Tensor]
    assert place_of(op.origin) is not None
    assert not alive(y)
    assert not alive(x)
    assert alive(op.args[0])


def test_what_does_not_move_is_kept() -> None:
    """Shared tensors and borrows go in as they are, as often as one likes."""
    shared, lender = tensor((4,)).share(), tensor((4,))
    borrow = lender.borrow()
    op = cast(Launch, add(cut((4,), (2,)), shared, shared))
    assert op.args[1] is shared
    op = cast(Launch, add(cut((4,), (2,)), borrow, lender.borrow()))
    assert op.args[1] is borrow
    assert alive(shared)
    assert alive(lender)


def test_arguments_by_name_and_default() -> None:
    """Arguments go by name in any order; a scalar's default stands in for it."""
    op = cast(Launch, saxpy(x=lazy(1), y=lazy(2), a=1))
    assert op.args[1] == 1.0
    assert type(op.args[1]) is float
    assert cast(Launch, split(lazy(1), lazy(2), lazy(3))).args[3] == 7
    assert cast(Launch, split(lazy(1), z=lazy(2), x=lazy(3), n=8)).args[3] == 8


def test_keyword_only_and_positional_only() -> None:
    """A declaration may say by what an argument goes."""

    @kernel(cuda="__global__ void k(Tile<float, 1> y, int n) {}")
    def k(y: Out[f32], /, *, n: int) -> None: ...

    call = cast(Callable[..., Any], k)
    assert call(lazy(1), n=3).args[1] == 3
    assert "2 arguments by position, but at most 1 are wanted" in refused(call, lazy(1), 3)
    assert "got argument 'y' by name, but it goes by position" in refused(call, y=lazy(1), n=3)


def test_arity() -> None:
    """Missing, surplus, unknown and doubled arguments are named."""
    call = cast(Callable[..., Any], saxpy)
    op = lazy(1)
    missing = refused(call, op)
    assert "lacks arguments 'a', 'x': it takes (y, a, x)" in missing
    assert f"the kernel is declared at {declared_line(saxpy)}." in missing
    assert f"Called at {kernel_cases.__file__}:" in missing
    assert "lacks argument 'x'" in refused(call, op, 1.0)
    assert "4 arguments by position, but at most 3 are wanted" in refused(call, op, 1.0, op, op)
    assert "got argument 'b' which it does not have" in refused(call, op, 1.0, op, b=1)
    assert "got argument 'a' twice, by position and by name. Called at" in refused(call, op, 1.0, a=1, x=op)


def lent() -> Any:
    lender = tensor()
    return lender.borrow_mut()


# ---- calls: forms


@pytest.mark.parametrize(
    ("make", "came", "cure"),
    [
        (tensor, "a Tensor of float32, shape (16, 16)", "Cut it into tiles: .partition((..., ...))."),
        (lent, "a TensorMut of float32, shape (16, 16)", "Cut it into tiles: .partition((..., ...))."),
        (
            lambda: tensor().share(),
            "a SharedTensor of float32, shape (16, 16)",
            "It is immutable: write to a copy",
        ),
        (lambda: tensor().borrow(), "a TensorRef of float32", ".borrow_mut().partition(tile)"),
        (
            lambda: np.zeros(3, f32),
            "a NumPy array of float32, shape (3,)",
            "from_host(array).partition((..., ...))",
        ),
        (lambda: 1.5, "float 1.5", "or check the order of the arguments"),
        (lambda: (cut(),), "tuple (", "Pick one of a kernel's results with .first() or .unzip()"),
    ],
)
def test_wrong_form_for_an_output(make: Callable[[], object], came: str, cure: str) -> None:
    """An output takes a partition: anything else is refused with the way to make one."""
    message = refused(saxpy, make(), 2.0, lazy(1))
    assert message.startswith(f"kernel 'saxpy', argument 'y': got {came}")
    assert "but a Partition of float32, or an op whose result is one, is wanted. Called at" in message
    assert f"Called at {kernel_cases.__file__}:" in message
    assert f"the kernel is declared at {declared_line(saxpy)}." in message
    assert cure in message


@pytest.mark.parametrize(
    ("make", "came", "cure"),
    [
        (cut, "a Partition of float32, shape (16, 16)", "Put it together: .unpartition()."),
        (
            lambda: np.zeros(3, f32),
            "a NumPy array of float32, shape (3,)",
            "Bring it to the device: from_host(array).",
        ),
        (lambda: [1, 2], "list [1, 2]", "from_host(np.asarray(..., f32))"),
        (
            lambda: None,
            "NoneType None",
            "Pass the tensor itself: a function without return returns None. Or check the order",
        ),
        (lambda: "x" * 99, "str 'xxx", "xxx..., but"),
    ],
)
def test_wrong_form_for_an_input(make: Callable[[], object], came: str, cure: str) -> None:
    """An input takes a tensor that can be read: anything else is refused with the cure."""
    message = refused(saxpy, lazy(1), 2.0, make())
    assert message.startswith(f"kernel 'saxpy', argument 'x': got {came}")
    assert (
        "but a Tensor, SharedTensor, TensorRef or TensorMut of float32, or an op whose result is one, is wanted"
        in message
    )
    assert cure in message


@pytest.mark.parametrize(
    ("make", "came", "cure"),
    [
        (
            tensor,
            "got a Tensor of float32, shape (16, 16), but a number is wanted",
            "on the host: .to_host()",
        ),
        (lambda: np.zeros(()), "got a NumPy array of float64, shape ()", "array.item()"),
        (lambda: lazy(1.0), "got the op <value at ", "Annotate the parameter Lazy[...]"),
        (lambda: "2", "got str", "Convert it with float(...)"),
        (lambda: None, "got NoneType", "Convert it"),
        (lambda: True, "got bool True", "Convert it"),
        (
            lambda: 1e39,
            "got float 1e+39",
            "a number from -3.4028e38 to 3.4028e38",
        ),
    ],
)
def test_wrong_scalar(make: Callable[[], object], came: str, cure: str) -> None:
    """A scalar takes a number of its C type and range."""
    message = refused(saxpy, lazy(1), make(), lazy(1))
    assert message.startswith("kernel 'saxpy', argument 'a': got ")
    assert came in message
    assert cure in message
    assert f"the kernel is declared at {declared_line(saxpy)}." in message


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 1.0, np.float32(1), True])
def test_wrong_int(number: object) -> None:
    """An int has to be one, and to fit the type that CUDA declares."""
    message = refused(split, lazy(1), lazy(2), lazy(3), number)
    assert "argument 'n': got " in message
    assert "'int n' (CUDA source line 1)" in message
    assert "an int from -2147483648 to 2147483647" in message


def test_lazy_scalar() -> None:
    """A `Lazy` scalar may be an op, or a number, which is checked as ever."""
    assert isinstance(cast(Launch, lazily(lazy(1), value(2.0))).args[1], DeviceOp)
    assert cast(Launch, lazily(lazy(1), 2.0)).args[1] == 2.0
    assert "argument 'a': got str" in refused(lazily, lazy(1), "2")
    message = refused(lazily, cut((4,), (2,)), tensor())
    assert "but a number, or an op whose result is one, is wanted" in message


def test_element_type() -> None:
    """Element types have to be the declared ones; the cure is a conversion."""
    message = refused(saxpy, lazy(1), 2.0, tensor(dtype=f64))
    assert "argument 'x': got a Tensor of float64, shape (16, 16), but elements of float32 are wanted." in message
    assert "Convert it: convert(t, f32)." in message
    message = refused(saxpy, cut(dtype=f64), 2.0, lazy(1))
    assert "argument 'y': got a Partition of float64" in message
    assert "Convert it before it is cut: convert(t, f32)" in message


def test_rank() -> None:
    """Ranks have to be those of the CUDA declaration."""
    message = refused(saxpy, lazy(1), 2.0, tensor((16,)))
    assert (
        "argument 'x': got a Tensor of float32, shape (16,), so of rank 1, but the CUDA declaration has rank 2."
    ) in message
    assert "Reshape it with .reshape(shape), or declare that rank in CUDA." in message
    message = refused(saxpy, cut((16,), (4,)), 2.0, lazy(1))
    assert "argument 'y': got a Partition of float32, shape (16,), so of rank 1" in message
    assert "Reshape it before it is cut with .reshape(shape)" in message


def test_grids() -> None:
    """Several outputs have equal grids, unless `.grid` says which one is meant."""
    y, z, x = cut((16,), (4,)), cut((16,), (8,)), tensor((16,))
    message = refused(split, y, z, x)
    assert (
        "argument 'z': its tiles make a grid of (2,) (shape (16,), tile (8,)), but those of output 'y' make" in message
    )
    assert "one of (4,) (shape (16,), tile (4,))." in message
    assert "or give the grid: split.grid(...)(...)." in message
    assert isinstance(split.grid(4)(y, z, x), Launch)


def test_no_output_needs_a_grid() -> None:
    """A kernel without outputs has no tiles to give its grid."""

    @kernel(cuda="__global__ void look(View<const float, 1> x) {}")
    def look(x: In[f32]) -> None: ...

    message = refused(look, lazy(1))
    assert "kernel 'look': has no output whose tiles would give its grid." in message
    assert "Give the grid: look.grid(...)(...)." in message
    assert isinstance(look.grid(1)(lazy(1)), Launch)
