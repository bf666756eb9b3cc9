"""What the functions of `dagpu.array` say and take beside their values: NumPy's names, types of other names, numbers
out of range, overflow without a word, strides that no step makes."""

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest

import dagpu
from dagpu import (
    DeviceOp,
    Elem,
    KernelArgumentError,
    ShapeError,
    array,
    c64,
    convert,
    expr,
    f16,
    f32,
    from_host,
    full,
    i32,
    ones,
    pipeline,
    share_array,
    u8,
    zeros,
)
from dagpu.arrays.numpy_names import LEFT_OUT, NUMPY_NAMES, OPERATORS, PACKAGE_NAMES
from tests.project.docs.made.names_page import PAGE, page

anyhow: Any = array
anypackage: Any = dagpu


@pytest.mark.parametrize("name", NUMPY_NAMES)
def test_a_name_of_numpys_leads_to_the_name_here(name: str) -> None:
    """The error names the public module, and a function that exists or an expression that is one."""
    assert name not in array.__all__
    with pytest.raises(AttributeError) as caught:
        getattr(array, name)
    text = str(caught.value)
    assert text.startswith(f"module 'dagpu.array' has no attribute {name!r}. Write ")
    check_names(text.partition(". Write ")[2])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_name_that_is_left_out_says_why(name: str) -> None:
    """And what to do."""
    assert name not in array.__all__
    with pytest.raises(AttributeError) as caught:
        getattr(array, name)
    text = str(caught.value)
    assert re.match(rf"module 'dagpu.array' has no attribute '{name}'. (It|The shape of its result) ", text)
    check_names(text.partition("attribute ")[2])


def check_names(text: str) -> None:
    """Assert that what a text names of the package exists."""
    assert set(re.findall(r"array\.(\w+)", text.replace("dagpu.array", ""))) <= set(array.__all__)
    assert set(re.findall(r"dagpu\.(\w+)", text)) <= {*dagpu.__all__, "array"}


def test_each_function_of_numpy_and_of_the_array_api_has_an_answer() -> None:
    """It is here by its name, has another one, or says why it is left out; the guide has the counts of the three."""
    functions = {n for n in np.__all__ if callable(getattr(np, n)) and not isinstance(getattr(np, n), type)}
    functions |= {n for n in np.linalg.__all__ if n != "LinAlgError"} | set(np.fft.__all__)
    assert sorted(functions - {*array.__all__, *NUMPY_NAMES, *LEFT_OUT}) == []
    assert not NUMPY_NAMES.keys() & LEFT_OUT.keys()
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.project.docs.made.names_page writes it"


def test_expressions_for_names_of_numpys_are_right() -> None:
    """Each that an error names can be traced."""
    texts = [found[0] for cure in NUMPY_NAMES.values() if (found := re.search(r"expr\((\w+(, )?)+\)\(.*\)$", cure))]
    names = {"array": array, "expr": expr, "f32": f32, "i32": i32, "c64": c64, "bool_": np.bool_, "math": math}
    for text in texts:
        eval(text, names)
    assert len(texts) > 10


@pytest.mark.parametrize("text", sorted(set(OPERATORS.values())))
def test_operators_for_names_of_numpys_are_right(text: str) -> None:
    """Each that an error names runs, of masks, of whole numbers or of floats."""
    of_bits = any(sign in text for sign in ("&", "|", "^", "~", "<<", ">>"))
    operands = {name: full((3,), 2, i32 if of_bits else f32).sync().share() for name in "xy"}
    eval(text, {"array": array, "math": math, **operands}).sync()


@pytest.mark.parametrize("name", [*PACKAGE_NAMES, "sum", "where"])
def test_a_name_of_numpys_is_not_one_of_the_package(name: str) -> None:
    """Of functions of `dagpu.array`, of element types, and of what CuPy calls otherwise."""
    assert name not in dagpu.__all__
    with pytest.raises(AttributeError) as caught:
        getattr(dagpu, name)
    text = str(caught.value)
    assert text.startswith(f"module 'dagpu' has no attribute {name!r}. Write ")
    ours = re.search(r"Write dagpu\.(array\.)?(\w+)", text)
    assert ours is None or ours[2] in (array.__all__ if ours[1] else dagpu.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """It names the public module, and `hasattr` is false, of what protocols look up, too."""
    with pytest.raises(AttributeError, match=r"^module 'dagpu' has no attribute 'nothing'$"):
        _ = anypackage.nothing
    assert not hasattr(dagpu, "__wrapped__")
    with pytest.raises(AttributeError, match=r"^module 'dagpu.array' has no attribute 'nothing'$"):
        _ = anyhow.nothing
    assert not hasattr(array, "__wrapped__")


@pytest.mark.parametrize("alias", [np.longlong, np.ulonglong, np.intc, np.uintc, np.int_, np.uint, np.short, np.byte])
def test_other_names_of_an_element_type_are_that_type(alias: Any) -> None:
    """Where elements are declared, made and converted; equal types meet in one operation."""
    same = np.dtype(alias).newbyteorder("=")
    x = np.arange(4).astype(alias)
    canonical = next(t for t in (np.int8, np.int16, np.int32, np.int64, np.uint32, np.uint64) if np.dtype(t) == same)
    assert expr(alias)(lambda n: n + 1)(from_host(x)).to_host().sync().tolist() == [1, 2, 3, 4]
    assert expr(canonical)(lambda n: n.to(alias) + n)(from_host(x)).to_host().sync().tolist() == [0, 2, 4, 6]

    def doubled(n: Any) -> Any:
        return n + n

    doubled.__annotations__ = {"n": Elem[alias]}
    anyexpr: Any = expr
    assert anyexpr(doubled)(from_host(x.astype(canonical))).to_host().sync().tolist() == [0, 2, 4, 6]
    assert array.maximum(from_host(x), zeros((4,), canonical)).to_host().sync().tolist() == [0, 1, 2, 3]
    for op in (zeros((2,), alias), convert(ones((2,)), alias)):
        assert op.to_host().sync().dtype == canonical


def test_a_long_double_is_no_element_type() -> None:
    """Nor is an abstract type; the error says so, with a type that tensors have."""
    if np.dtype(np.longdouble) == np.float64:
        pytest.skip("a long double is an f64 here")
    anyexpr: Any = expr
    for wrong in (np.longdouble, np.floating, np.generic, float):
        with pytest.raises(KernelArgumentError, match=r"but an element type for each parameter is wanted"):
            anyexpr(wrong)
    with pytest.raises(ShapeError, match=r"Convert it: array.astype\(np.float64\)"):
        from_host(np.zeros(2, np.longdouble))


OUT_OF_RANGE: dict[str, tuple[Any, str]] = {
    "maximum": (lambda: array.maximum(full((3,), 1, u8), 300), "'b': got int 300; elements of uint8 take an int"),
    "clip": (lambda: array.clip(full((3,), 1, u8), -1, 3), "'low': got int -1; elements of uint8 take an int"),
    "where": (
        lambda: array.where(ones((3,), np.bool_), ones((3,), f16), 1e6),
        "'b': got float 1000000.0; elements of float16 take a number from -65504 to 65504",
    ),
    "of an expression": (
        lambda: expr(u8, u8)(lambda a, b: a + b).sum()(full((3,), 1, u8), 256),
        "'b': got int 256; elements of uint8 take an int from 0 to 255",
    ),
    "a fraction": (
        lambda: anyhow.maximum(full((3,), 1, i32), 1.5),
        "'b': got float 1.5; elements of int32 take an int",
    ),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_number_that_the_elements_cannot_be(name: str) -> None:
    """The error names the function, the parameter as the user knows it, the number and the range, and no CUDA."""
    build, says = OUT_OF_RANGE[name]
    with pytest.raises(KernelArgumentError) as caught:
        build()
    assert says in str(caught.value)
    assert "CUDA" not in str(caught.value)
    assert "declare" not in str(caught.value)


def test_overflow_is_silent_in_transforms_and_products() -> None:
    """As in all functions of tensors, with warnings as errors and NumPy told to raise."""
    large = np.full((4, 4), 1e308)
    z = np.full(4, 1e308 + 1e308j)
    ops = [
        array.rfft(from_host(large)), array.fft(from_host(z)), array.ifft(from_host(z)), array.irfft(from_host(z)),
        array.matmul(from_host(large), from_host(large)), array.sum(from_host(large)),
    ]  # fmt: skip
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        for op in ops:
            assert not np.isfinite(op.to_host().sync()).all()


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 6), (7, 4)), ((6, 1), (4, 3)), ((1, 6), (-7, 4)), ((0, 6), (7, 5))]
)
def test_a_stride_along_one_element_does_not_count(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    """No step is made along an extent of 1, nor in an array without elements: such an array is shared, read and
    reshaped as if it were contiguous."""
    base = np.arange(64, dtype=f32)
    view = np.lib.stride_tricks.as_strided(base[8:], shape, strides)
    t = share_array(view)
    assert array.sum(t).to_host().sync() == view.sum()
    np.testing.assert_array_equal(t.to_host().sync(), view)
    np.testing.assert_array_equal(t.reshape((view.size,)).to_host().sync(), view.reshape(-1))
    scaled = expr(f32)(lambda x: x * 2)(t).to_host().sync()
    np.testing.assert_array_equal(scaled, view * 2)


def test_the_warning_about_an_expression_names_it() -> None:
    """A number that comes to the host before an expression begins: no word of `.then`, which nobody wrote."""
    scaled = expr(f32, f32)(lambda x, a: x * a)

    def normal(x: Any) -> DeviceOp[Any]:
        t = from_host(x).shared()
        return scaled(t, array.sum(t).to_host().map(float)).to_host()

    p = pipeline(normal)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(3):
            assert p(np.full(4, n, f32)).sync()[0] == 4 * n * n
    [text] = [str(each.message) for each in told]
    assert ".then" not in text
    assert re.search(rf"expression.* at .*{re.escape(__file__.rsplit('/', 1)[-1])}:\d+ needs values", text), text
