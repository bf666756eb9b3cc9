"""Random expressions: the host body gives what NumPy gives, and the CUDA text gives the bits of the host body."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagpu import expr, f16, f32, from_host
from dagpu.kernels import numpy_twin
from dagpu.kernels.expression import Expression
from dagpu.kernels.numpy_twin import SCRATCH
from dagpu.ops.compose import Launch, Map
from dagpu.testing import nodes_of
from tests.conftest import DEEP
from tests.support.bits import same_bits
from tests.support.text_runs import launch_text
from tests.unit.kernels.expressions.element_trees import TYPES, Tree, on_arrays, on_elements, samples, trees


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[Any, ...], Tree]:
    """The types of one to three parameters, and an expression of them that is no parameter."""
    types = tuple(draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3)))
    tree = draw(trees(types, draw(st.sampled_from(TYPES)), 4).filter(lambda tree: tree.operation != "parameter"))
    return types, tree


def made(types: tuple[Any, ...], tree: Tree) -> Expression[..., Any]:
    """The expression of a tree."""
    functions: dict[int, Any] = {
        1: lambda a: on_elements(tree, (a,)),
        2: lambda a, b: on_elements(tree, (a, b)),
        3: lambda a, b, c: on_elements(tree, (a, b, c)),
    }
    found: Expression[..., Any] = expr(*types)(functions[len(types)])
    return found


@settings(max_examples=150)
@given(cases(), st.integers(0, 99))
def test_the_host_gives_what_numpy_gives(case: tuple[tuple[Any, ...], Tree], seed: int) -> None:
    """To the bit, for every element type, with infinities, NaNs, zeros of both signs and integers that wrap."""
    types, tree = case
    arrays = [samples(dtype, 200, seed + n) for n, dtype in enumerate(types)]
    expected = np.broadcast_to(on_arrays(tree, arrays), (200,))
    found = made(types, tree)(*map(from_host, arrays)).to_host().sync()
    assert same_bits(found, np.asarray(expected).astype(np.dtype(tree.dtype))), (found, expected)


@settings(max_examples=60)
@given(cases(), st.integers(0, 99))
def test_parts_and_kept_arrays_change_nothing(case: tuple[tuple[Any, ...], Tree], seed: int) -> None:
    """Large outputs are computed in parts, in arrays that the thread keeps: the bits are those of one small part."""
    types, tree = case
    arrays = [samples(dtype, 200, seed + n) for n, dtype in enumerate(types)]
    run = made(types, tree)
    expected = run(*map(from_host, arrays)).to_host().sync()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_twin, "FEW", 0)
        patch.setattr(numpy_twin, "PART_NBYTES", 256)
        assert same_bits(run(*map(from_host, arrays)).to_host().sync(), expected)


# A counterexample of twelve would take minutes to shrink, since each try is compiled; the message has the one.
@pytest.mark.deep
@settings(max_examples=6 if DEEP else 1, phases=(Phase.explicit, Phase.generate))
@given(st.lists(st.tuples(cases(), st.integers(0, 99)), min_size=12, max_size=12))
def test_the_cuda_text_gives_the_bits_of_the_host_body(drawn: Any) -> None:
    """Each expression over contiguous arrays, run on the host thread by thread."""
    ops = []
    for (types, tree), seed in drawn:
        arrays = [samples(dtype, 70, seed + n) for n, dtype in enumerate(types)]
        op = made(types, tree)(*map(from_host, arrays))
        (launch,) = [node for node in nodes_of(op) if isinstance(node, Launch)]
        ops.append((op, launch.kernel, arrays))
    for op, spec, arrays in ops:
        assert isinstance(op, Map)
        expected = op.to_host().sync()
        found = np.zeros_like(expected)
        launch_text(spec, [found, *arrays], [(64,)])
        assert same_bits(found, expected), f"{spec.cuda}\n{found}\n{expected}"


@pytest.mark.parametrize("count", [15, 16, 17])
def test_a_half_may_be_used_after_many_steps(count: int) -> None:
    """A function of a step has no name that a type has: step 32 is an operation here."""

    def summed(x: Any, h: Any) -> Any:
        for n in range(count):
            x = x + float(n)
        return x + h.to(f32)

    x, h = np.arange(9, dtype=f32), np.arange(9).astype(f16)
    made: Expression[..., Any] = expr(f32, f16)(summed)
    found = made(from_host(x), from_host(h)).to_host().sync()
    np.testing.assert_array_equal(found, x + h + sum(range(count)))


def test_equals_is_the_operator() -> None:
    """`x.equals(y)` and `x == y` are one expression, between elements and with a number."""
    same = expr(f32, f32)(lambda x, y: x.equals(y) | x.equals(2.0))
    assert same.cuda == expr(f32, f32)(lambda x, y: (x == y) | (x == 2.0)).cuda


def test_a_host_body_can_be_sent_to_another_process() -> None:
    """Its temporary arrays stay at home: it uses those of the process in which it runs."""
    cloudpickle = pytest.importorskip("cloudpickle")
    op = expr(f32)(lambda x: x / (1 + x * x))(from_host(np.ones(8, f32)))
    bodies = [node.kernel.host.function for node in nodes_of(op) if isinstance(node, Launch)]
    assert len(bodies) == 1
    arrived = cloudpickle.loads(cloudpickle.dumps(bodies[0]))
    assert callable(arrived)
    assert pickle.loads(pickle.dumps(SCRATCH)) is SCRATCH
