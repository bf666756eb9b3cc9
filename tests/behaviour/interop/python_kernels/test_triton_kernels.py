"""`triton_kernel` with what versions of Triton once gave: declarations, stores, variants, launches and graphs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from dagpu import (
    CompileError,
    DeviceOp,
    In,
    Kernel,
    KernelArgumentError,
    Lazy,
    Out,
    Tensor,
    Tile,
    bf16,
    current_device,
    f32,
    from_host,
    i64,
    pipeline,
    triton_kernel,
    use_device,
    zeros,
)
from dagpu.interop.triton_stores import find_writes
from tests.behaviour.interop.python_kernels.stand_ins import AXPY, TRITON, FakeTriton, Jit, installed_triton
from tests.simulated.cuda import installed
from tests.simulated.each_device import where as where

KERNELS = [(path, name) for path in TRITON for name in json.loads(path.read_text())["kernels"]]
X = np.arange(12, dtype=f32)
pytestmark = pytest.mark.host_only("recorded machine code; tests/gpu/libraries launches what the libraries give")


@pytest.fixture(name="triton")
def newest() -> Iterator[FakeTriton]:
    with installed_triton(TRITON[-1]) as triton:
        yield triton


def declared(constexprs: Any = lambda tile: {"BLOCK": tile[0]}, **options: Any) -> Kernel[Any]:
    @triton_kernel(AXPY, constexprs=constexprs, **options)
    def axpy(y: Out[f32], x: In[f32], a: Lazy[float], n: int) -> None: ...

    @axpy.host
    def _(y: Tile[f32], x: NDArray[f32], a: float, n: int) -> None:
        y[...] += a * x[y.at]

    return axpy


def result(axpy: Kernel[Any], a: Any, tile: int = 4, x: Any = None) -> Any:
    x = from_host(X) if x is None else x
    return axpy(from_host(np.ones(12, f32)).partition((tile,)), x, a, 12).first().unpartition().to_host()


@pytest.mark.parametrize(("recorded", "name"), KERNELS, ids=lambda each: getattr(each, "stem", each))
def test_writes_are_found_in_the_first_ir(recorded: Path, name: str) -> None:
    """Through arithmetic, loops, branches, calls, integers, descriptors and assembly; each with the line of a write."""
    kernel = json.loads(recorded.read_text())["kernels"][name]
    found = find_writes(kernel["ttir"])
    passed = [each for each in kernel["names"] if each != "BLOCK"]
    assert {passed[number] for number in found.parameters} == set(kernel["written"])
    lines = (Path(__file__).parent / "triton_programs.py").read_text().splitlines()
    for place in [*found.parameters.values(), *found.unknown]:
        file, _, line = place.rpartition(":")
        assert file.endswith("triton_programs.py")
        assert any(word in lines[int(line) - 1] for word in ("store", "atomic", "asm"))
    assert bool(found.unknown) == (name == "address_in_memory")


@pytest.mark.parametrize("recorded", TRITON, ids=lambda path: path.stem)
def test_every_device_and_version(recorded: Path, where: Any) -> None:
    """A kernel runs plainly and in a pipeline whose number and tensor change; the parameters of the recorded machine
    code are those that are passed."""
    with installed_triton(recorded):
        axpy = declared()
        assert_array_equal(result(axpy, 2.0).sync(), 1 + 2 * X)

        @pipeline(graph_from=2)
        def twice(x: In[f32], a: float) -> DeviceOp[Tensor[f32], Any]:
            y = axpy(from_host(np.ones(12, f32)).partition((4,)), x, a, 12).first()
            made: DeviceOp[Tensor[f32], Any] = y.unpartition()
            return made

        for number in range(5):
            x = from_host(X + number).sync().share()
            assert_array_equal(twice(x, float(number)).to_host().sync(), 1 + number * (X + number))


def test_variants(triton: FakeTriton) -> None:
    """Machine code is made once for the constexprs and the alignment of each pointer."""
    with installed(0, 1):
        axpy = declared(num_warps=8, num_stages=2)
        whole = from_host(np.arange(16, dtype=f32)).sync()
        for start, tile in ((0, 4), (0, 4), (4, 4), (1, 4), (2, 4), (0, 6)):
            found = result(axpy, 1.0, tile, whole.slice(slice(start, start + 12))).sync()
            assert_array_equal(found, 1 + np.arange(start, start + 12))
    made = [source for source, target, options in triton.sources if len(options) == 2 and target == ("cuda", 90, 32)]
    launched = [(source.constexprs, sorted(source.attrs)) for source in made[1:]]  # the first: the declaration's
    assert launched == [({(4,): 4}, [(0,), (1,)]), ({(4,): 4}, [(0,)]), ({(4,): 6}, [(0,), (1,)])]
    types = {"y_ptr": "*fp32", "x_ptr": "*fp32", "a": "fp32", "n": "i32", "BLOCK": "constexpr"}
    assert all(source.signature == types for source in made)
    assert triton.sources[0][2] == {"num_warps": 8, "num_stages": 2}


def test_constants_of_different_types(triton: FakeTriton) -> None:
    """1, True and 1.0 are equal in Python, and different constexprs."""
    given: dict[int, object] = {1: 1, 2: True, 3: 1.0, 4: 1}
    code = declared(lambda tile: {"BLOCK": given.get(tile[0], 128)}).spec.python
    assert code is not None
    first, second, third, again = [code.variant((), (tile,)) for tile in given]
    assert again == first
    assert len({first, second, third}) == 3


def test_launch_shape(triton: FakeTriton) -> None:
    """The block and the shared memory are those of the machine code; too much of either is refused."""
    triton.about = {"shared": 100_000}
    with installed(0, 1) as machine:
        axpy = declared(num_warps=8)
        assert_array_equal(result(axpy, 2.0).sync(), 1 + 2 * X)
        assert machine.shapes == {("axpy", (256, 1, 1), 100_000)}
    triton.about = {"shared": 300_000}
    with installed(0, 1), pytest.raises(KernelArgumentError, match=r"300000 bytes of shared memory.*num_stages"):
        result(declared(), 2.0).sync()


@pytest.mark.parametrize(
    ("about", "needs"),
    [
        ({"global_scratch_size": 128}, "scratch memory"),
        ({"profile_scratch_size": 8}, "memory for a profiler"),
        ({"tensordesc_meta": [1]}, "tensor descriptors"),
        ({"cluster_dims": (2, 1, 1)}, "a cluster"),
        ({"launch_cooperative_grid": True}, "a cooperative launch"),
    ],
)
def test_what_a_launch_does_not_give(triton: FakeTriton, about: dict[str, Any], needs: str) -> None:
    """Machine code that needs more than parameters and shared memory is refused."""
    triton.about = about
    with pytest.raises(CompileError, match=rf"'axpy', declared at .*: Triton [\d.]+: the kernel needs {needs}"):
        declared().compile("sm_90")


def with_descriptors(name: str = "descriptors", **options: Any) -> Kernel[Any]:
    """A kernel whose IR makes tensor descriptors."""
    jit = Jit(name, ("y_ptr", "x_ptr", "a", "n", "BLOCK"))

    @triton_kernel(jit, constexprs=options.get("constexprs", {"BLOCK": 4}))
    def kernel(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

    @kernel.host
    def _(y: Tile[f32], x: NDArray[f32], a: float, n: int) -> None:
        y[...] += a * x[y.at]

    return kernel


@pytest.mark.parametrize("graph_from", [None, 2])
def test_scratch_memory_is_planned(triton: FakeTriton, graph_from: int | None) -> None:
    """Each program of a kernel that makes tensor descriptors has its own scratch memory, in streams, in graphs, and in
    a task that may not wait for the compiler. It is memory of the plan, and none is left."""
    triton.about = {"global_scratch_size": 384}
    with installed(0, 1):
        kernel = with_descriptors()
        used = current_device().memory_used()

        @pipeline(graph_from=graph_from)
        def twice(x: Tensor[f32]) -> DeviceOp[Tensor[f32], Any]:
            y = kernel(from_host(np.ones(12, f32)).partition((4,)), x, 2.0, 12).first().unpartition()
            return kernel(from_host(np.zeros(12, f32)).partition((3,)), y, 1.0, 12).first().unpartition()

        for _ in range(4):
            assert_array_equal(twice(from_host(X).sync()).to_host().sync(), 1 + 2 * X)
        assert current_device().memory_used() == used
        plan = kernel(zeros((12,)).partition((4,)), from_host(X), 2.0, 12).explain()
        assert f"Memory beyond the inputs: {2 * 48 + 3 * 384:,} bytes" in plan

        async def in_a_task() -> Any:
            return await with_descriptors()(zeros((12,)).partition((4,)), from_host(X), 2.0, 12).first().unpartition()

        assert_array_equal(trio.run(in_a_task).to_host().sync(), 2 * X)
    with use_device("host"):
        assert_array_equal(result(with_descriptors(), 2.0).sync(), 1 + 2 * X)
    assert len({source.fn.name for source, _, _ in triton.sources}) == 1


def test_other_parameters_in_the_machine_code(triton: FakeTriton) -> None:
    """A version of Triton that passes other parameters is found out before a launch."""

    @triton_kernel(AXPY, constexprs={"BLOCK": 4})
    def axpy(y: Out[f32], x: In[f32], a: float, n: i64) -> None: ...

    with pytest.raises(CompileError, match=r"takes parameters at .* 20:4 .*a launch passes .* 24:8 "):
        axpy.compile("sm_90")


def test_stores_to_an_input_are_refused() -> None:
    """At the declaration, and for a tile that could not be tried there."""
    with installed_triton(TRITON[0]), pytest.raises(KernelArgumentError, match=r"y_ptr.*:16, which is declared y: In"):

        @triton_kernel(AXPY, constexprs={"BLOCK": 4})
        def stores(y: In[f32], x: Out[f32], a: float, n: int) -> None: ...

    with installed_triton(TRITON[0]) as triton:
        triton.refuses = "no such tile"
        late = declared()
        triton.refuses = ""
        kernels = triton.recorded["kernels"]
        kernels["axpy"]["ttir"] = kernels["axpy"]["ttir"].replace("tt.store %", "tt.store %x_ptr, %")
        with installed(0, 1), pytest.raises(KernelArgumentError, match="stores to parameter 'x_ptr'"):
            result(late, 1.0).sync()


def test_triton_refuses(triton: FakeTriton) -> None:
    """What Triton says comes with the place of the declaration."""
    triton.refuses = "arange's range must be a power of 2"
    with pytest.raises(
        CompileError, match=r"(?s)'axpy', declared at .*test_triton_kernels.py:\d+: Triton .*power of 2"
    ):
        declared({"BLOCK": 4})


def test_element_types(triton: FakeTriton) -> None:
    """Each element type and each type of a number has Triton's name."""
    other = Jit("axpy", ("y", "x", "a", "n", "BLOCK"), BLOCK=4)

    @triton_kernel(other)
    def axpy(y: Out[bf16], x: In[np.bool_], a: np.float64, n: bool) -> None: ...

    assert triton.sources[0][0].signature == {"y": "*bf16", "x": "*i1", "a": "fp64", "n": "u1", "BLOCK": "constexpr"}
    assert triton.sources[0][0].constexprs == {(4,): 4}


def test_annotated_numbers(triton: FakeTriton) -> None:
    """Where Triton's kernel annotates a number, its type counts, and another is refused."""
    jit = Jit("axpy", ("y", "x", "a", "n", "BLOCK"), BLOCK=4)
    jit.params[3].annotation_type = "i64"

    @triton_kernel(jit)
    def axpy(y: Out[f32], x: In[f32], a: float, n: int) -> None: ...

    assert triton.sources[0][0].signature["n"] == "i64"
    with pytest.raises(KernelArgumentError, match="'n' is int32, but Triton's 'n' is annotated i64"):

        @triton_kernel(jit)
        def other(y: Out[f32], x: In[f32], a: float, n: np.int32) -> None: ...


def test_strides_and_grids_are_refused(triton: FakeTriton) -> None:
    """A pointer has no strides, and Triton counts programs along three axes."""
    with installed(0, 1):
        strided = from_host(np.arange(24, dtype=f32).reshape(12, 2)).sync()
        with pytest.raises(KernelArgumentError, match=r"Triton [\d.]+ is passed a plain pointer"):
            result(declared(), 1.0, 4, strided.slice(slice(0, 12), slice(0, 1))).sync()
        flat = declared({"BLOCK": 1})
        y = from_host(np.ones((2, 1, 2, 2), f32)).partition((1, 1, 1, 1))
        with pytest.raises(KernelArgumentError, match="counts blocks along three axes"):
            flat(y, from_host(X), 1.0, 8).sync()
