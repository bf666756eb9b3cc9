"""Expressions with several results: one kernel with an output for each, of the bits of an expression of each alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagpu import Elem, bool_, dup, expr, f16, f32, f64, from_host, i32, pipeline, plan_of, value, zip_ops
from dagpu.kernels import numpy_twin
from dagpu.kernels.expression import Expression, TupleExpression
from dagpu.ops.compose import Launch
from dagpu.plans.program import Launch as PlannedLaunch
from dagpu.testing import nodes_of
from tests.conftest import DEEP
from tests.simulated.each_device import where as where
from tests.support.bits import same_bits
from tests.support.text_runs import launch_text
from tests.unit.kernels.expressions.element_trees import TYPES, Tree, on_elements, samples, trees

both: Any = expr(f32, f32)(lambda x, y: (x + y, x * y))
turned: Any = expr(f32, f32)(lambda x, y: (y, x, x < y))


def up(array: Any) -> Any:
    return from_host(np.asarray(array))


def down(results: Any) -> list[Any]:
    return [each.to_host().sync() for each in results]


# ---- random ones
@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[Any, ...], tuple[Tree, ...]]:
    """The types of one to three parameters, and two to four expressions of them, parameters among them."""
    types = tuple(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3)))
    count = draw(st.integers(2, 4))
    found = tuple([draw(trees(types, draw(st.sampled_from(TYPES)), 3)) for _ in range(count)])
    return types, tuple([tree for tree in found if tree.operation != "constant"][:1] + list(found[1:]))


def made(types: tuple[Any, ...], of: Any) -> Any:
    """The expression of a function of a list of elements."""
    functions: dict[int, Any] = {
        1: lambda a: of((a,)),
        2: lambda a, b: of((a, b)),
        3: lambda a, b, c: of((a, b, c)),
    }
    return expr(*types)(functions[len(types)])


def several(types: tuple[Any, ...], forest: tuple[Tree, ...]) -> TupleExpression[..., Any]:
    found: TupleExpression[..., Any] = made(types, lambda given: tuple([on_elements(tree, given) for tree in forest]))
    return found


def alone(types: tuple[Any, ...], tree: Tree) -> Expression[..., Any]:
    found: Expression[..., Any] = made(types, lambda given: on_elements(tree, given))
    return found


@settings(max_examples=80)
@given(cases(), st.integers(0, 99), st.booleans())
def test_each_result_has_the_bits_of_its_own_expression(
    case: tuple[tuple[Any, ...], tuple[Tree, ...]], seed: int, in_parts: bool
) -> None:
    """For every element type; also where large outputs are computed in parts, in the memory of the arguments."""
    types, forest = case
    arrays = [samples(dtype, 200, seed + n) for n, dtype in enumerate(types)]
    expected = [alone(types, tree)(*map(from_host, arrays)).to_host().sync() for tree in forest]
    with pytest.MonkeyPatch.context() as patch:
        if in_parts:
            patch.setattr(numpy_twin, "FEW", 0)
            patch.setattr(numpy_twin, "PART_NBYTES", 256)
        run = several(types, forest)
        kept = down(run(*map(from_host, arrays)).sync())
        consumed = [each.sync() for each in run(*[from_host(array).then(dup) for array in arrays]).unzip()]
        for found in (kept, down(consumed)):
            for one, other in zip(found, expected, strict=True):
                assert same_bits(one, other), (one, other)


@pytest.mark.deep
@settings(max_examples=4 if DEEP else 1, phases=(Phase.explicit, Phase.generate))
@given(st.lists(st.tuples(cases(), st.integers(0, 99)), min_size=8, max_size=8))
def test_the_cuda_text_gives_the_bits_of_the_host_body(drawn: Any) -> None:
    """Each expression over contiguous arrays, run on the host thread by thread."""
    for (types, forest), seed in drawn:
        arrays = [samples(dtype, 70, seed + n) for n, dtype in enumerate(types)]
        op = several(types, forest)(*map(from_host, arrays))
        (launch,) = {id(node): node for node in nodes_of(op) if isinstance(node, Launch)}.values()
        expected = down(op.sync())
        found = [np.zeros_like(each) for each in expected]
        launch_text(launch.kernel, [*found, *arrays], [(64,)] * len(found))
        for one, other in zip(found, expected, strict=True):
            assert same_bits(one, other), f"{launch.kernel.cuda}\n{one}\n{other}"


# ---- calls
def test_the_text_is_what_one_would_write() -> None:
    """The results of an index are computed before the first one is written."""
    assert (
        both.cuda
        == """\
__device__ __forceinline__ dagpu::Results<float, float> element(const float x, const float y) {
    const float t0 = x + y;
    const float t1 = x * y;
    return {t0, t1};
}

__global__ void expression(
    Tile<float, 1> out0,
    Tile<float, 1> out1,
    View<const float, 1> x,
    View<const float, 1> y
) {
    if (dagpu::by_sides<4>(
            dagpu::tiles(out0, out1), [=](float x, float y) { return element(x, y); }, x, y))
        return;
    for (auto i : out0) dagpu::write_results(i, element(x[i], y[i]), out0, out1);
}
"""
    )
    assert "(x: f32, y: f32) -> (f32, f32, bool_) declared at" in repr(turned)


def test_all_results_have_the_shape_of_the_broadcast_arguments(where: Any) -> None:
    """Also one that depends on the smaller argument alone; a number is an argument too."""
    x, y = np.arange(6, dtype=f32).reshape(2, 3), np.full((3,), 2, f32)
    found = down(turned(up(x), up(y)).sync())
    for one, other in zip(found, (np.broadcast_to(y, (2, 3)), x, x < y), strict=True):
        np.testing.assert_array_equal(one, other)
    columns = np.arange(2, dtype=f32).reshape(2, 1)
    np.testing.assert_array_equal(both(up(columns), up(y)).last().to_host().sync(), columns * y)
    np.testing.assert_array_equal(both(2.0, up(y)).first().to_host().sync(), [4, 4, 4])
    without_axes = both(up(f32(3)), up(f32(4))).sync()
    assert [each.to_host().sync().item() for each in without_axes] == [7, 12]
    assert [each.shape for each in both(up(np.zeros((0, 3), f32)), up(y)).sync()] == [(0, 3), (0, 3)]


def test_results_may_be_in_the_memory_of_arguments_that_end(where: Any) -> None:
    """Two results in the memory of two arguments, turned around: both are read before one is written."""
    x, y = np.arange(3000, dtype=f32), np.arange(3000, dtype=f32)[::-1].copy()
    halves = expr(f32)(lambda x: x * 0.5)

    def swapped() -> Any:
        first, second, _ = turned(halves(up(x)), halves(up(y))).unzip()
        return zip_ops(both(first, second), up(x))

    for one, other in zip(down(swapped().sync()[0]), ((x + y) / 2, x * y / 4), strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_results_take_no_memory_but_that_of_two_arguments() -> None:
    """The plan of a call on values that end with it has no further memory."""
    quarter = expr(f32)(lambda x: x * 0.25)
    x = np.zeros(4096, f32)

    def chain(times: int) -> Any:
        first, second = quarter(up(x)), quarter(up(x))
        for _ in range(times):
            first, second = both(first, second).unzip()
        return both(first, second).unzip()[0]

    assert plan_of(chain(4)).peak_bytes == plan_of(chain(1)).peak_bytes


def test_an_op_of_an_unknown_shape_gives_a_tuple_too(where: Any) -> None:
    """Its trace finds the shapes; `unzip` knows the number of the results before."""
    x = np.arange(6, dtype=f32)
    unknown = value(3).then(lambda n: up(x[:n]))
    op: Any = both(unknown, 2.0)
    np.testing.assert_array_equal(op.unzip()[1].to_host().sync(), x[:3] * 2)
    assert len(down(both(value(3).then(lambda n: up(x[:n])), 2.0).sync())) == 2


def test_it_is_one_launch_in_a_pipeline_too() -> None:
    """Arguments go by name, and numbers vary without another plan."""

    @pipeline
    def planned(x: Any, a: float) -> Any:
        return both(y=a, x=x)

    x = up(np.arange(4, dtype=f32)).sync().share()
    for a in (2.0, 3.0):
        np.testing.assert_array_equal(down(planned(x, a).sync())[1], np.arange(4) * a)
    instructions = plan_of(planned(x, 2.0)).program.instructions
    assert len([each for each in instructions if isinstance(each, PlannedLaunch)]) == 1


def test_annotations_and_equal_results() -> None:
    """A decorated function; a result that occurs twice is written twice."""

    @expr
    def parts(x: Elem[f32], n: Elem[i32]) -> Any:
        return x.to(f64), n, n, (x > 0) & (n > 1), x.to(f16)

    made_of = [f64, i32, i32, bool_, f16]
    assert [t.dtype for t in parts(up(np.ones(3, f32)), up(np.ones(3, i32))).sync()] == [np.dtype(t) for t in made_of]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: (x,), "a tuple of one. Return the element itself"),
        (lambda x: (), r"returned \(\), which is not an element"),
        (lambda x: (x, 1.0), r"returned 1.0, which is not an element"),
        (lambda x: [x, x], r"which is not an element"),
        (lambda x: (x, (x, x)), r"which is not an element"),
    ],
)
def test_what_is_no_tuple_of_elements_is_refused(function: Any, found: str) -> None:
    """At the declaration, with the place and what to return."""
    with pytest.raises(TypeError, match=found):
        expr(f32)(function)
