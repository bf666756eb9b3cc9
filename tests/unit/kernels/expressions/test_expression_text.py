"""The CUDA text of expressions can be read, has names of the user's, and computes shared parts once."""

from typing import Any

import numpy as np
import pytest

from dagpu import Elem, array, bf16, bool_, c64, c128, expr, f16, f32, f64, from_host, i32, u8
from dagpu.arrays import element_functions
from dagpu.kernels.cuda_signature import parse_cuda_signature
from dagpu.kernels.element import operate
from dagpu.kernels.expression import Expression
from dagpu.kernels.operations import DOMAINS, HELPERS, OPERATIONS, TRANSCENDENTAL, helper_texts
from dagpu.ops.compose import Launch
from dagpu.testing import KernelSpec, nodes_of
from tests.conftest import sampled
from tests.support.bits import same_bits
from tests.support.text_runs import by_text, launch_text


def spec_of(op: Any) -> KernelSpec:
    """The only kernel of an op."""
    (launch,) = [node for node in nodes_of(op) if isinstance(node, Launch)]
    return launch.kernel


def test_the_text_is_what_one_would_write() -> None:
    """One line for each operation, a part that is used twice once, and the names of the parameters."""

    @expr(f32, f32)
    def swish(x: Elem[f32], beta: Elem[f32]) -> Elem[f32]:
        return beta * x / (1 + array.exp(-(beta * x)))

    assert swish.cuda == (
        "__device__ __forceinline__ float element(const float x, const float beta) {\n"
        "    const float t0 = beta * x;\n"
        "    const float t1 = -t0;\n"
        "    const float t2 = expf(t1);\n"
        "    const float t3 = 1.0f + t2;\n"
        "    const float t4 = t0 / t3;\n"
        "    return t4;\n"
        "}\n"
        "\n"
        "__global__ void swish(\n"
        "    Tile<float, 1> out,\n"
        "    View<const float, 1> x,\n"
        "    View<const float, 1> beta\n"
        ") {\n"
        "    if (dagpu::by_sides<4>(\n"
        "            out, [=](float x, float beta) { return element(x, beta); }, x, beta))\n"
        "        return;\n"
        "    for (auto i : out) out[i] = element(x[i], beta[i]);\n"
        "}\n"
    )
    assert repr(swish).startswith("<expression swish(x: f32, beta: f32) -> f32 declared at ")


def test_a_broadcast_is_an_index() -> None:
    """A row follows the last axis, a column the first, and a number is a scalar of the kernel."""
    total: Expression[..., Any] = expr(f32, f32, f32, f16)(lambda x, row, column, a: x + row + column + a.to(f32))
    x = np.zeros((3, 4), f32)
    op = total(from_host(x), from_host(x[0]), from_host(x[:, :1].copy()), 2.0)
    head, body = spec_of(op).cuda.split("\n__global__ void expression(\n")[1].split("\n) {\n")
    assert head == (
        "    Tile<float, 2> out,\n"
        "    View<const float, 2> x,\n"
        "    View<const float, 1> row,\n"
        "    View<const float, 1> column,\n"
        "    __half a"
    )
    assert "element(x[i], row(i[1]), column(i[0]), __half2float(a))" in body


@pytest.mark.parametrize("names", ["float, out", "i, t0", "half, __x", "é, e", "element, register"])
def test_a_name_that_cuda_reserves_is_changed(names: str) -> None:
    """The text declares what Python and CUDA agree on, whatever the names are."""
    first, second = names.split(", ")
    made = expr(f32, f32)(eval(f"lambda {first}, {second}: {first} + {second} * 2"))
    found = parse_cuda_signature(made.cuda, "expression", abi="views")
    assert len({param.name for param in found.params}) == 3


TYPED = [
    (name, dtype)
    for dtype in (f32, c64, f16, bf16, f64, i32, u8, c128)
    for name, entry in OPERATIONS.items()
    if np.dtype(dtype) in DOMAINS[entry.domain]
]
"""Each operation of the table with each element type that it takes."""


@pytest.mark.parametrize(
    "part", sampled([TYPED[at : at + 8] for at in range(0, len(TYPED), 8)], 8), ids=lambda part: "-".join(part[0][:1])
)
def test_every_operation_has_its_text_and_its_function(part: Any) -> None:
    """In its CUDA text and on the host: the same bits, or 2 ulp for those that say so."""
    for name, dtype in part:
        made = single(name, dtype)
        values = np.array([0.0, 0.3, 0.9, 1.0, 1.2, 2.5, 3.0, 5.5, 7.0], np.float64)
        left = np.concatenate([values, -values, values[::-1]]).astype(dtype)
        if np.dtype(dtype).kind == "c":
            left = (left + np.roll(left, 5) * 1j).astype(dtype)
        right = np.roll(np.concatenate([values[1:], [0.5], values]), 3).astype(dtype)[: len(left)]
        right = np.roll(left, 7) if np.dtype(dtype).kind == "c" else np.resize(right, left.shape)
        op = made(*map(from_host, [left, right][: len(made.traced.names)]))
        expected, found = op.to_host().sync(), by_text(op)
        if np.dtype(dtype).kind == "c" and name in ("absolute", "angle", "exp", "sqrt"):
            np.testing.assert_allclose(found, expected, rtol=1e-6 if left.itemsize == 8 else 1e-15)
            continue
        if name not in TRANSCENDENTAL:
            assert same_bits(found, expected), (name, spec_of(op).cuda, found, expected)
            continue
        wide, want = found.astype(np.float64), expected.astype(np.float64)
        assert (np.isnan(wide) == np.isnan(want)).all(), (name, wide, want)
        digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[expected.dtype.name]
        want = np.where(np.isinf(want), np.sign(want) * 1e300, want)
        wide = np.where(np.isinf(wide), np.sign(wide) * 1e300, wide)
        unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(want), 1e-30))) + 1 - digits)
        assert (np.isnan(want) | (np.abs(wide - want) <= 2 * unit) | (wide == want)).all(), (name, wide, want)


def test_powers_of_special_numbers_are_those_of_c() -> None:
    """On the host too, where NumPy computes with one number for an exponent otherwise than with an array of them."""
    numbers = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, np.inf, -np.inf, np.nan])
    cases = []
    for dtype in (f16, bf16, f32, f64):
        exponent, base = map(np.ravel, np.meshgrid(numbers.astype(dtype), numbers.astype(dtype), indexing="ij"))
        cases.append((base, exponent, array.pow(from_host(base), from_host(exponent))))
    for base, exponent, whole in cases:
        found = np.zeros_like(base)
        launch_text(spec_of(whole), [found, base, exponent], [(8,)])
        assert_same_kinds(found, whole.to_host().sync())
        for n, number in enumerate(numbers):
            part = slice(n * len(numbers), (n + 1) * len(numbers))
            one = array.pow(from_host(base[part]), float(number))
            assert_same_kinds(found[part], one.to_host().sync())


def assert_same_kinds(found: Any, expected: Any) -> None:
    """Assert that NaNs, infinities, zeros and signs are at the same places, and the rest within 2 ulp of bf16."""
    wide, want = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(wide, want, rtol=2**-6, atol=0)
    np.testing.assert_array_equal(np.signbit(wide)[~np.isnan(wide)], np.signbit(want)[~np.isnan(want)])


def test_a_power_is_of_the_type_of_its_base() -> None:
    """So a fraction is no exponent of a whole number, nor is a bool, or a negative number."""
    x = from_host(np.array([-3, 2], i32))
    assert expr(i32)(lambda x: x**3)(x).to_host().sync().tolist() == [-27, 8]
    assert expr(f32)(lambda x: x**2.0)(from_host(np.array([-3, 2], f32))).to_host().sync().tolist() == [9, 4]
    refused: Any = [(dtype, n) for dtype in (i32, bool_) for n in (2.0, 1.0, 0.5, True, -1)] + [(f32, True)]
    for dtype, n in refused:
        with pytest.raises(TypeError, match=r"^\*\* at"):
            expr(dtype)(to_the(n))


def to_the(n: Any) -> Any:
    return lambda x: x**n


OF_TWO = ("minimum", "maximum", "atan2", "hypot", "logaddexp", "copysign", "nextafter")
"""The named operations with two operands."""


def single(name: str, dtype: Any) -> Expression[..., Any]:
    """The expression of one operation."""
    named = OPERATIONS[name].shown.isidentifier() and name not in OF_TWO
    if named or name in ("negative", "invert"):
        of_one: Expression[..., Any] = expr(dtype)(lambda x: operate(name, x))
        return of_one
    of_two: Expression[..., Any] = expr(dtype, dtype)(lambda a, b: operate(name, a, b))
    return of_two


def test_every_helper_comes_after_those_it_calls() -> None:
    """All helper functions together, each once."""
    text = helper_texts(set(HELPERS))
    for name, (needed, own) in HELPERS.items():
        assert text.count(own) == 1
        for other in needed:
            assert text.index(HELPERS[other][1]) < text.index(own), name


def test_the_module_array_has_the_functions_of_expressions() -> None:
    """Every named operation is a function of `dagpu.array`."""
    named = {entry.shown for entry in OPERATIONS.values() if entry.shown.isidentifier()} | {"pow", "where", "clip"}
    assert named <= set(dir(element_functions)) & set(array.__all__)
