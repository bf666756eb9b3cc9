"""The names of C types, and the values that a scalar parameter accepts."""

from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.common.errors import KernelArgumentError
from dagpu.kernels.cuda_signature import CudaParam, check_scalar
from dagpu.kernels.declaration import ScalarCheck
from tests.support.cuda_text import only


@pytest.mark.parametrize(
    ("c", "dtype"),
    [
        ("float", "float32"), ("double", "float64"), ("bool", "bool"),
        ("half", "float16"), ("__half", "float16"),
        ("nv_bfloat16", "bfloat16"), ("__nv_bfloat16", "bfloat16"),
        ("char", "int8"), ("signed char", "int8"), ("unsigned char", "uint8"), ("int8_t", "int8"),
        ("short", "int16"), ("short int", "int16"), ("unsigned short", "uint16"), ("std::uint16_t", "uint16"),
        ("int", "int32"), ("signed", "int32"), ("signed int", "int32"), ("int32_t", "int32"),
        ("std::int32_t", "int32"), ("cuda::std::int32_t", "int32"), ("::std::int32_t", "int32"),
        ("unsigned", "uint32"), ("unsigned int", "uint32"), ("int unsigned", "uint32"), ("uint", "uint32"),
        ("long", "int64"), ("long long", "int64"), ("long long int", "int64"), ("long int long", "int64"),
        ("unsigned long", "uint64"), ("unsigned long long int", "uint64"), ("long unsigned", "uint64"),
        ("size_t", "uint64"), ("::size_t", "uint64"), ("std :: size_t", "uint64"), ("uint64_t", "uint64"),
    ],
)  # fmt: skip
def test_every_spelling_of_a_type_has_one_dtype(c: str, dtype: str) -> None:
    """A C type means one NumPy name, as a scalar, as an element, with a name and without."""
    assert only(f"{c} n") == CudaParam("n", "scalar", dtype, False, None, 2)
    assert only(c) == CudaParam("", "scalar", dtype, False, None, 2)
    assert only(f"View<const {c}, 3> x").ctype == dtype
    assert only(f"{c} const *x", "pointers") == CudaParam("x", "pointer", dtype, True, None, 2)


# ---- values ----------------------------------------------------------------------------------------
class _Level(IntEnum):
    HIGH = 7


def scalar(ctype: str, name: str = "n") -> CudaParam:
    return CudaParam(name, "scalar", ctype, False, None, 4)


@pytest.mark.parametrize(
    ("ctype", "value", "expected"),
    [
        ("int32", 5, 5), ("int32", -(2**31), -(2**31)), ("uint8", 255, 255), ("uint64", 2**64 - 1, 2**64 - 1),
        ("int8", np.int64(-128), -128), ("uint16", np.uint8(3), 3), ("int32", _Level.HIGH, 7),
        ("float32", 1.5, 1.5), ("float32", 2, 2.0), ("float64", np.float32(0.5), 0.5),
        ("float16", 65519.0, 65519.0), ("float32", 3.4028235e38, 3.4028235e38), ("float64", 1e308, 1e308),
        ("float32", float("inf"), float("inf")), ("float16", np.float64("-inf"), float("-inf")),
        ("float32", np.longdouble(2), 2.0), ("bfloat16", ml_dtypes.bfloat16(1.5), 1.5),
        ("bool", True, True), ("bool", np.bool_(False), False),
    ],
)  # fmt: skip
def test_a_scalar_that_fits_becomes_a_plain_number(ctype: str, value: object, expected: float) -> None:
    """The passed value is exactly an int, float or bool, equal to the given value."""
    result = check_scalar(value, scalar(ctype), kernel="k")
    assert (type(result), result) == (type(expected), expected)


def test_nan_is_a_number_here() -> None:
    """NaN passes, like the infinities: it is what was meant."""
    assert np.isnan(check_scalar(float("nan"), scalar("float16"), kernel="k"))


@pytest.mark.parametrize(
    ("ctype", "value"),
    [
        ("int32", 2**31), ("int32", -(2**31) - 1), ("uint8", -1), ("uint8", 256), ("int64", 2**63),
        ("int32", 2**200), ("int32", 3.0), ("int32", np.float32(3)), ("int32", True), ("int32", np.True_),
        ("int32", "3"), ("int32", None), ("int32", np.array(3)), ("int32", np.timedelta64(3, "ns")),
        ("float32", True), ("float32", 1e39), ("float16", 65520), ("float16", -70000.0), ("bfloat16", 3.4e38),
        ("float64", 10**400), ("float32", 1j), ("float32", np.complex64(1)), ("float32", "1"),
        ("float32", np.zeros((), "f4,f4")[()]),
        ("bool", 1), ("bool", np.int8(0)), ("bool", 1.0), ("bool", None),
    ],
)  # fmt: skip
def test_a_scalar_that_does_not_fit_is_refused(ctype: str, value: object) -> None:
    """Nothing is wrapped, truncated, rounded to infinity or read as a truth value."""
    with pytest.raises(KernelArgumentError, match="kernel 'k': argument 'n' is "):
        check_scalar(value, scalar(ctype), kernel="k")


@pytest.mark.parametrize(
    ("ctype", "value", "expected"),
    [
        ("uint8", 300, "'n' is int 300; its CUDA parameter 'unsigned char n' (CUDA source line 4) takes"),
        ("uint8", -1, "takes an int from 0 to 255. Cure: pass one in the range, or declare a wider type."),
        pytest.param("int32", 10**5000, "is int of 16610 bits; its CUDA parameter 'int n'", id="huge"),
        ("int16", 2.5, "an int from -32768 to 32767. Cure: convert it with int(...) if that is meant."),
        ("float16", 70000, "is int 70000; its CUDA parameter '__half n'"),
        ("float16", 70000, "takes a number from -65504 to 65504."),
        ("bool", 1, "takes a bool. Cure: convert it with bool(...) if that is meant."),
        ("float32", [1.0], "is list; its CUDA parameter 'float n'"),
    ],
)  # fmt: skip
def test_a_refused_scalar_says_what_came_and_what_is_wanted(ctype: str, value: object, expected: str) -> None:
    """The message has the argument, its value, the C type, the line, the range and the cure."""
    with pytest.raises(KernelArgumentError) as caught:
        check_scalar(value, scalar(ctype), kernel="k")
    assert expected in str(caught.value)


def test_a_number_for_an_array_is_refused() -> None:
    """A number cannot stand where the kernel takes a view."""
    param = CudaParam("x", "view", "float32", True, 2, 4)
    with pytest.raises(KernelArgumentError, match=r"'View<const float, 2> x' .* takes device data"):
        check_scalar(1.0, param, kernel="k")


@given(
    st.sampled_from(["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]),
    st.one_of(
        st.integers(-(2**65), 2**65), st.sampled_from([2**n + off for n in (7, 8, 31, 32, 63, 64) for off in (-1, 0)]),
        st.floats(), st.sampled_from([65504.0, 65504.5, 3.4028234663852886e38, 3.5e38, -0.0, 1e400]), st.booleans(),
        st.sampled_from([np.int8(1), np.float32(1.5), np.bool_(True), _Level.HIGH, None, "1"]),
    ),
)  # fmt: skip
def test_a_number_in_the_range_of_the_check_is_passed_unchanged(ctype: str, value: Any) -> None:
    """The table of a direct call compares a number with the range alone. No value in it is refused or converted."""
    check = ScalarCheck("n", np.dtype(ctype), "k", 1)
    if type(value) is check.kind and check.low <= value <= check.high:
        assert check(value) is value
