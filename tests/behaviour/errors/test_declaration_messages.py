"""Mistakes in declarations of kernels and in policies: the message names the cure."""

import re
from pathlib import Path
from typing import Any

import pytest

import dagpu
from dagpu import (
    CostModel,
    KernelArgumentError,
    ListSchedule,
    Out,
    RoundRobin,
    SingleStream,
    f32,
    kernel,
    ones,
    trace,
    zeros,
)
from tests.behaviour.errors.message_kernels import add, refused

HERE = re.escape(__file__) + r":\d+"


# ---- declaring a kernel


def test_kernel_without_parentheses() -> None:
    """The def's name, its place, and what to write."""
    bare: Any = kernel

    def wrong() -> None:
        def scale(y: Out[f32], by: float) -> None: ...

        bare(scale)  # what `@kernel` above the def does

    text = refused(KernelArgumentError, wrong)
    assert re.match(rf"kernel 'scale', declared at {HERE}: @kernel has no CUDA source\. ", text)
    assert text.endswith("Write @kernel(cuda=...), with CUDA C++ source or the path of a .cu file.")


@pytest.mark.parametrize("source", ["__global__ void f(Tile<float, 1> y) {}", Path("f.cu")])
def test_kernel_with_its_source_by_position(source: object) -> None:
    """The source has a name to be given by."""
    bare: Any = kernel
    text = refused(KernelArgumentError, lambda: bare(source))
    assert re.match(rf"@kernel at {HERE} takes its arguments by name\. Write @kernel\(cuda=\.\.\.\)", text)


def test_kernel_with_empty_parentheses() -> None:
    """Python's own words are clear: they name the argument."""
    bare: Any = kernel
    assert "missing 1 required keyword-only argument: 'cuda'" in refused(TypeError, lambda: bare())


def test_unzip_into_the_wrong_number_of_names() -> None:
    """Python's own words are clear, and it is raised on the user's line."""
    op: Any = add(ones((4,)).partition((2,)), ones((4,)))

    def wrong() -> object:
        y, x, z = op.unzip()
        return y, x, z

    assert refused(ValueError, wrong) == "not enough values to unpack (expected 3, got 2)"
    assert issubclass(dagpu.KernelArgumentError, TypeError)


# ---- policies and pictures of them


@pytest.mark.parametrize("policy", [ListSchedule, RoundRobin])
@pytest.mark.parametrize("limit", ["3M", -1, 1.5])
def test_a_memory_limit_is_a_number_of_bytes(policy: Any, limit: object) -> None:
    """Refused where the policy is made, with an example."""
    with pytest.raises(
        ValueError, match=r"memory_limit is .* but a number of bytes is wanted. Write memory_limit=8 << 20"
    ):
        policy(memory_limit=limit)


def test_a_policy_is_an_object() -> None:
    """The class itself is a slip of the pen."""
    with pytest.raises(TypeError, match=r"policy is the class SingleStream.*Make one of the class: SingleStream\(\)"):
        zeros((4,)).schedule(SingleStream)  # type: ignore[arg-type]  # reason: that is the mistake


def test_explain_takes_the_costs_of_the_ops_own_policy() -> None:
    """The makespan uses the cost that was declared for a kernel in the op's own policy."""
    slow = ListSchedule(costs=CostModel().declare({"add": 5e-3}))
    op = add(zeros((4,)).partition((2,)), ones((4,)))
    assert "Makespan, predicted: 5.0" in op.schedule(slow).explain()
    assert "Makespan, predicted: 5.0" not in op.explain()


def test_overlap_of_nothing_is_said_to_be_that() -> None:
    """A trace in which nothing ran, and a plan that allows no overlap."""
    with trace() as nothing:
        pass
    with pytest.raises(AssertionError, match="no run ended within the trace"):
        nothing.assert_overlap(0.5)
    with trace() as chain:
        zeros((4,)).sync()
    with pytest.raises(AssertionError, match=r"the plans allow no more than 0%.*op.explain\(\) says why"):
        chain.assert_overlap(0.5)
