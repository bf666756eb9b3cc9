"""Creation ops and copies against NumPy, over element types and shapes; what they refuse, and in which words."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    BorrowError,
    MovedError,
    ShapeError,
    Tensor,
    arange,
    bf16,
    convert,
    dup,
    empty,
    eye,
    f16,
    f32,
    f64,
    fill,
    fold_in,
    from_host,
    full,
    i8,
    i32,
    i64,
    linspace,
    memcpy,
    ones,
    rand,
    randn,
    u8,
    use_device,
    zeros,
)
from dagpu.common.layout import COMPLEX, SUPPORTED
from dagpu.testing import storage_of
from tests.support.handle_cases import line
from tests.support.places import place

DTYPES: list[Any] = sorted((dtype.type for dtype in SUPPORTED - COMPLEX), key=str)
dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def contents(op: Any) -> NDArray[Any]:
    """Return the contents of the op's tensor, after checking its metadata."""
    t = op.sync()
    assert isinstance(t, Tensor)
    shape, dtype = t.shape, t.dtype
    array: NDArray[Any] = t.to_host().sync()
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    return array


def same(got: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Equal to the bit, element type and shape included."""
    assert got.dtype == wanted.dtype
    assert_array_equal(got, wanted, strict=True)


@given(shape=shapes, dtype=dtypes, number=st.integers(0, 100))
def test_constants_are_numpys(shape: tuple[int, ...], dtype: Any, number: int) -> None:
    """`zeros`, `ones` and `full`, of any element type and shape, with no axes and with no elements too."""
    same(contents(zeros(shape, dtype)), np.zeros(shape, dtype))
    same(contents(ones(shape, dtype)), np.ones(shape, dtype))
    held = min(number, 1) if dtype is np.bool_ else number
    same(contents(full(shape, held, dtype)), np.full(shape, held, dtype))
    assert contents(empty(shape, dtype)).shape == shape


@given(shape=shapes, dtype=st.sampled_from([f16, bf16, f32, f64]), number=st.floats(-1e4, 1e4))
def test_full_rounds_as_numpy_does(shape: tuple[int, ...], dtype: Any, number: float) -> None:
    """A fraction lands on the nearest value of a floating type."""
    wanted = np.full(shape, np.float32(number) if dtype is bf16 else number, dtype)
    same(contents(full(shape, number, dtype)), wanted)


@given(stop=st.integers(0, 100), dtype=st.sampled_from([t for t in DTYPES if t is not np.bool_]))
def test_arange_is_numpys(stop: int, dtype: Any) -> None:
    """0 to stop - 1, of shape (stop,)."""
    same(contents(arange(stop, dtype)), np.arange(stop).astype(dtype))


@given(*[st.integers(-50, 50)] * 2, st.integers(-9, 9).filter(bool), st.sampled_from((f64, i8, i64)))
def test_arange_from_a_start_is_numpys(start: int, stop: int, step: int, dtype: Any) -> None:
    """Whole numbers, by position and by name, forwards and backwards; nothing where the stop lies behind the start."""
    wanted = np.arange(start, stop, step).astype(dtype)
    same(contents(arange(start, stop, step, dtype)), wanted)
    same(contents(arange(start=start, stop=stop, step=step, dtype=dtype)), wanted)
    same(contents(arange(start, stop, dtype=dtype)), np.arange(start, stop).astype(dtype))


@given(*[st.floats(-9, 9)] * 2, st.floats(0.01, 3), st.sampled_from((1, -1)))
def test_arange_of_fractions_has_numpys_length(start: float, stop: float, step: float, sign: int) -> None:
    """And its elements, but for the rounding of its steps."""
    wanted = np.arange(start, stop, sign * step)
    found = contents(arange(start, stop, sign * step, f64))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("stop", [12.0, 2.5, -3, -0.5, 0, np.float32(3.2), np.int64(4)])
def test_arange_takes_any_stop(stop: Any) -> None:
    """Its length is NumPy's, of a fraction, too, and 0 below 0."""
    same(contents(arange(stop)), np.arange(stop).astype(f32))


@pytest.mark.parametrize("wrong", [(0, 4, 0), (0, float("inf")), (float("nan"), 4)])
def test_arange_without_a_length_is_refused(wrong: Any) -> None:
    """The message has the numbers and the cure."""
    with pytest.raises(ShapeError, match=r"arange at .*its length is not a finite number. Give finite numbers"):
        arange(*wrong)


@given(start=st.floats(-100, 100), stop=st.floats(-100, 100), num=st.integers(0, 30))
def test_linspace_is_numpys(start: float, stop: float, num: int) -> None:
    """Both ends included; to the bit in f64, rounded once in f32."""
    if abs(stop - start) < 1e-200:
        start = stop
    wanted = np.linspace(start, stop, num)
    same(contents(linspace(start, stop, num, f64)), wanted)
    same(contents(linspace(start, stop, num)), wanted.astype(f32))


@given(n=st.integers(0, 6), m=st.one_of(st.none(), st.integers(0, 6)), dtype=dtypes)
def test_eye_is_numpys(n: int, m: int | None, dtype: Any) -> None:
    """Ones on the main diagonal; square unless `m` says otherwise."""
    same(contents(eye(n, m, dtype)), np.eye(n, m, dtype=dtype))


@pytest.mark.parametrize("number", [np.int8(2), np.uint64(2), np.float32(2), np.float64(2), np.longdouble(2), bf16(2)])
@pytest.mark.parametrize("dtype", [u8, i64, f16, bf16])
def test_numbers_of_numpy(number: Any, dtype: Any) -> None:
    """A scalar of NumPy is the number that it has, whatever the element type."""
    same(contents(full((3,), number, dtype)), np.full(3, 2, dtype))
    same(contents(fill(zeros((3,), dtype).sync(), number)), np.full(3, 2, dtype))
    anyhow: Any = arange  # its annotations know Python's numbers
    same(contents(anyhow(number, 5, number, dtype)), np.array([2, 4], dtype))


def test_f32_unless_said() -> None:
    """Every creation op."""
    plain = [make((2,)) for make in (empty, zeros, ones, rand, randn)]
    for op in (*plain, full((2,), 1), arange(2), linspace(0, 1, 2), eye(2)):
        assert op.sync().dtype == np.dtype(f32)


def test_an_empty_tensor_never_shows_what_lay_there_before() -> None:
    """Memory that was never written reads as zeros, so runs are deterministic."""
    full((1000,), 7).sync()
    assert not contents(empty((1000,))).any()


def test_each_run_makes_fresh_memory() -> None:
    """Two runs of one op share nothing."""
    op = zeros((4,))
    a, b = op.sync(), op.sync()
    fill(a, 3).sync()
    assert not b.to_host().sync().any()


# ---- random numbers


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64])
@pytest.mark.parametrize("make", [rand, randn], ids=["rand", "randn"])
def test_one_seed_gives_the_same_numbers_everywhere(make: Callable[..., Any], dtype: Any) -> None:
    """On every device, in every run and shape; another seed gives others, and without one each run does."""
    first = contents(make((6, 5), dtype, seed=7))
    with use_device(place(1)):
        same(contents(make((6, 5), dtype, seed=7)), first)
    same(contents(make((30,), dtype, seed=7)).reshape(6, 5), first)
    same(contents(make((10,), dtype, seed=7)), first.ravel()[:10])
    assert (contents(make((6, 5), dtype, seed=8)) != first).any()
    op = make((50,), dtype)
    assert (contents(op) != contents(op)).any()
    assert (contents(make((50,), dtype)) != contents(op)).any()


def test_rand_is_uniform_and_randn_normal() -> None:
    """Mean and deviation of 100,000 numbers are within five standard errors; `rand` stays in [0, 1)."""
    uniform = contents(rand((100_000,), f64, seed=1))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 1e5)
    normal = contents(randn((100_000,), f64, mean=3.0, std=2.0, seed=1))
    assert abs(normal.mean() - 3) < 5 * 2 / np.sqrt(1e5)
    assert abs(normal.std() - 2) < 5 * 2 / np.sqrt(2e5)
    assert contents(randn((3,), std=0.0, mean=1.5, seed=1)).tolist() == [1.5] * 3


# ---- from the host and back


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """Any element type and shape, of any strides: transposed, cut, reversed, broadcast."""
    shape = draw(shapes)
    base = np.arange(int(np.prod(shape, dtype=int))).reshape(shape).astype(draw(dtypes))
    base = base.transpose(draw(st.permutations(range(base.ndim)))) if base.ndim else base
    steps = tuple(slice(None, None, draw(st.sampled_from([1, 2, -1, -2]))) for _ in base.shape)
    index: Any = (..., *steps)
    cut: NDArray[Any] = base[index]
    return np.broadcast_to(cut, (2, *cut.shape)) if draw(st.booleans()) else cut


@given(arrays())
def test_from_host_takes_any_strides(array: NDArray[Any]) -> None:
    """The tensor is contiguous, and comes back as the array was."""
    same(contents(from_host(array)), np.ascontiguousarray(array).reshape(array.shape))


def test_from_host_reads_the_array_when_it_runs() -> None:
    """Anew in each run, never before; the tensor does not see what is written later."""
    array = np.zeros(3, np.float32)
    op = from_host(array)
    array[:] = 1
    t = op.sync()
    array[:] = 2
    assert t.to_host().sync().tolist() == [1.0] * 3
    assert contents(op).tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1.0, 2.0], "array is [1.0, 2.0], but a NumPy array is wanted. Make one of it: np.asarray(x)."),
        (
            np.zeros(2, np.clongdouble),
            "array has elements of complex256, which no tensor has. Round it: array.astype(np.complex128)",
        ),
        (np.zeros(2, object), "array has elements of object, which no tensor has. Convert it"),
        (np.zeros(2, ">f4"), "array has elements of >f4, which no tensor has. Its bytes are in the order of"),
        (np.zeros(2, "M8[s]"), "array has elements of datetime64[s], which no tensor has. Convert it to whole"),
    ],
    ids=range(5),
)
def test_from_host_refuses(wrong: Any, message: str) -> None:
    """`from_host` refuses a value that is no array, and an element type that no tensor has: the error names the line
    and the cure."""
    with pytest.raises(ShapeError, match=re.escape(message)) as caught:
        from_host(wrong)
    assert f"from_host at {line(1)}" in str(caught.value)


# ---- copies on the device


@given(array=arrays(), data=st.data())
def test_dup_is_a_copy_of_anything(array: NDArray[Any], data: st.DataObject) -> None:
    """The copy of a tensor, a shared one, a borrow or a strided view is contiguous and has memory of its own."""
    t = from_host(array).sync()
    cut = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in array.shape)
    index: Any = (..., *cut)
    if array.size:
        same(contents(dup(t.slice(*cut))), array[index].copy())
    copy = dup(t.borrow()).sync()
    fill(copy, 0).sync()
    same(t.borrow().to_host().sync(), array.copy())
    shared = t.share()
    same(contents(dup(shared)), array.copy())
    same(contents(dup(shared.try_unwrap())), array.copy())


def test_a_slice_of_nothing() -> None:
    """A tensor without elements may be cut along its other axes, like any."""
    t = zeros((0, 0, 2)).sync()
    assert contents(dup(t.slice(slice(None), slice(None), slice(None, None, -1)))).shape == (0, 0, 2)


@given(shape=shapes, source=dtypes, target=dtypes, seed=st.integers(0, 2**31))
def test_convert_is_numpys_astype(shape: tuple[int, ...], source: Any, target: Any, seed: int) -> None:
    """For values that both element types hold."""
    array = np.random.default_rng(seed).integers(0, 100, shape).astype(source)
    same(contents(convert(from_host(array).sync(), target)), array.astype(target))


def test_convert_rounds_and_cuts_as_c_does() -> None:
    """Fractions are cut towards zero, and rounded to nearest between floating types."""
    t = from_host(np.array([1.75, -1.75, 0.1], f64)).sync()
    assert contents(convert(t.borrow(), i32)).tolist() == [1, -1, 0]
    assert contents(convert(t.borrow(), f16)).tolist() == [1.75, -1.75, float(np.float16(0.1))]
    assert contents(convert(t, np.bool_)).tolist() == [True, True, True]


@given(array=arrays())
def test_memcpy_writes_into_the_lent_tensor(array: NDArray[Any]) -> None:
    """From any kind of handle, of the same shape and element type; it gives None."""
    target = zeros(array.shape, array.dtype.type).sync()
    source = from_host(array).sync()
    assert memcpy(target.borrow_mut(), source.borrow()).sync() is None
    same(target.borrow().to_host().sync(), array.copy())
    fill_value = np.zeros(array.shape, array.dtype)
    memcpy(target.borrow_mut(), from_host(fill_value).sync()).sync()
    same(target.borrow().to_host().sync(), fill_value)
    memcpy(target.borrow_mut(), source.share()).sync()
    same(target.to_host().sync(), array.copy())


@given(shape=shapes, dtype=dtypes, number=st.integers(0, 1))
def test_fill_is_in_place(shape: tuple[int, ...], dtype: Any, number: int) -> None:
    """It moves the tensor, and gives the same memory back."""
    t: Any = zeros(shape, dtype).sync()
    storage = storage_of(t)
    back: Any = fill(t, number).sync()
    assert storage_of(back) is storage
    with pytest.raises(MovedError, match=re.escape("moved by fill()")):
        t.shape
    same(back.to_host().sync(), np.full(shape, number, dtype))


@given(array=arrays())
def test_copies_across_devices(array: NDArray[Any]) -> None:
    """`.on` says where the copy goes; without it a copy stays with its source, whatever the current device is."""
    t = from_host(array).on(place(1)).sync()
    with use_device(place(2)):
        assert dup(t.borrow()).sync().device.name == place(1)
        moved = dup(t.borrow()).on(place(3)).sync()
        assert moved.device.name == place(3)
        changed = convert(t.borrow(), f64).on(place(0)).sync()
        assert changed.device.name == place(0)
        memcpy(moved.borrow_mut(), t.borrow()).sync()
        same(moved.to_host().sync(), array.copy())
        same(changed.to_host().sync(), array.astype(f64))


# ---- what is refused


def tensor(dtype: Any = f32) -> Tensor[Any]:
    return zeros((4,), dtype).sync()


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: zeros((-1,)), "shape (-1,) has a negative extent. Extents count elements: 0 or more."),
    (lambda: zeros((2.0,)), "shape (2.0,) is not a tuple of whole numbers. Write it as (rows, columns), or (n,)"),  # type: ignore[arg-type]  # reason: refused
    (
        lambda: zeros(3),  # type: ignore[arg-type]  # reason: refused
        "shape 3 is not a tuple of whole numbers. Write it as (3,), or with all extents in one tuple: (3, ...).",
    ),
    (lambda: linspace(0, 1, -1), "shape (-1,) has a negative extent"),
    (lambda: eye(-1), "has a negative extent"),
    (lambda: ones((2,), np.clongdouble), "is not an element type of a tensor. Use one of f16 bf16 f32"),
    (lambda: empty((2,), str), "is not an element type of a tensor"),  # type: ignore[type-var]  # reason: refused
    *(
        (lambda text=text: ones((2,), text), f"{text!r} is not an element type of a tensor")
        for text in (",", "0(", "a", "f4,", "(")
    ),
    (lambda: rand((2,), i32), "int32: random numbers are fractions. Use f16, bf16, f32 or f64"),
    (lambda: randn((2,), np.bool_), "bool: random numbers are fractions."),
    (lambda: full((2,), 1j), "fill_value = 1j for elements of float32: it is complex. Take `.real` or `.imag`."),
    (lambda: full((2,), 256, u8), "256 is outside the range of uint8, 0 to 255. Use a wider type."),
    (lambda: full((2,), -129.0, i8), "-129 is outside the range of int8"),
    (lambda: full((2,), 1.5, i32), "fill_value = 1.5: elements of int32 are whole. Use f32, say, or give a whole"),
    (lambda: full((2,), 2, np.bool_), "2 is outside the range of bool, 0 to 1. Use a wider type."),
    (lambda: full((2,), True), "fill_value = True: elements of float32 are numbers. Write 1, or make it a tensor of"),
    (lambda: fill(tensor(i64), 0.5), "fill_value = 0.5: elements of int64 are whole."),
    (lambda: arange(0, 2, 0.5, i32), "step = 0.5: elements of int32 are whole. Use f32, say"),
    (lambda: arange(True), "stop is True, but a number is wanted. Write stop=2, say."),
    (lambda: rand((2,), seed=True), "seed is True, but a whole number is wanted. Write seed=17, say"),
    (lambda: fold_in(3, np.True_), "data is np.True_, but a whole number is wanted."),  # type: ignore[call-overload]  # reason: refused
    (lambda: tensor().slice(slice(False, 2)), "True and False are no numbers. Use whole numbers"),
    (lambda: fill(tensor(i64), 2**63), "9223372036854775808 is outside the range of int64"),
    (lambda: fill(tensor().borrow(), 1), "TensorRef cannot be written. Pass a Tensor, or lend one for writing"),  # type: ignore[call-overload]  # reason: refused
    (lambda: dup(3), "int is nothing to copy from. Pass a Tensor, SharedTensor, TensorRef or TensorMut."),  # type: ignore[call-overload]  # reason: refused
    (lambda: convert(tensor().partition((2,)), f64), "Partition is nothing to copy from"),  # type: ignore[call-overload]  # reason: refused
    (lambda: memcpy(tensor(), tensor()), "Tensor cannot be written to. Pass t.borrow_mut()."),  # type: ignore[arg-type]  # reason: refused
    (lambda: memcpy(tensor().borrow_mut(), zeros((3,)).sync()), "from float32 (3,) to float32 (4,)"),
    (lambda: memcpy(tensor().borrow_mut(), tensor(f64)), "from float64 (4,) to float32 (4,)"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_creation_and_copies_refuse(wrong: Callable[[], object], message: str) -> None:
    """A ShapeError when the op is built, which is a ValueError too."""
    with pytest.raises(ShapeError, match=re.escape(message)) as caught:
        wrong()
    assert isinstance(caught.value, ValueError)


def test_a_copy_to_itself_is_a_borrow_error() -> None:
    """A copy of a tensor to itself, of the whole or of a part, is refused and moves nothing."""
    t = tensor()
    for source in (t.borrow(), t.view((4,)), t.slice(slice(0, 4))):
        with pytest.raises(BorrowError, match="are the same tensor, lent for writing"):
            memcpy(t.borrow_mut(), source)
    assert t.shape == (4,)


UNBUILT: list[Callable[[], object]] = [
    lambda: arange(300, u8),
    lambda: randn((3,), std=-1.0),
    lambda: linspace(0, float("nan"), 3),
    lambda: full((2,), "a"),  # type: ignore[arg-type]  # reason: refused
    lambda: full((2,), float("nan"), i32),
    lambda: full((2,), float("inf"), i32),
]


@pytest.mark.parametrize("wrong", UNBUILT, ids=range(len(UNBUILT)))
def test_values_that_cannot_be_written_are_found_when_the_op_is_built(wrong: Callable[[], object]) -> None:
    """With the line of the op."""
    with pytest.raises(ShapeError, match=re.escape(f"{__file__}:{wrong.__code__.co_firstlineno}")):
        wrong()
