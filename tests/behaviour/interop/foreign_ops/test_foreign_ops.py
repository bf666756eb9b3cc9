"""Foreign ops: the same results on every device, through streams and as graphs, and errors that name the call."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    ForeignError,
    In,
    KernelArgumentError,
    NoDeviceError,
    RoundRobin,
    ShapeError,
    Tensor,
    array,
    bf16,
    current_device,
    f32,
    foreign,
    from_host,
    observe,
    ones,
    pipeline,
    share_array,
    source,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.common.layout import address_of
from dagpu.interop import Lane, View, current_lane, extent, new, require, reserve
from dagpu.testing import EnqueuedWork
from tests.behaviour.interop.foreign_ops.foreign_programs import affine, halves, product, scratched, shifted
from tests.simulated.array_libraries import array_libraries
from tests.simulated.cuda import driver, installed
from tests.simulated.foreign_arrays import Library
from tests.support.paths import ROOT

A = np.arange(6, dtype=f32).reshape(2, 3)
LIBRARIES = ["torch", "cupy"]


@pytest.fixture(name="place", params=["host", "explore:0", *LIBRARIES])
def each_place(request: pytest.FixtureRequest) -> Iterator[str]:
    """The host, explore, and a simulated GPU with each of the libraries."""
    if request.param in LIBRARIES:
        with installed(seed=1) as machine, array_libraries(machine, request.param):
            yield request.param
    else:
        with use_device(request.param):
            yield request.param


# ---- results
def test_new_tensors(place: str) -> None:
    """A call yields the tensor that the declaration made, or a tuple of them."""
    assert_array_equal(affine(from_host(A), 2.0, plus=1.0).to_host().sync(), A * 2 + 1)
    assert_array_equal(product(affine(from_host(A), 2.0), from_host(A.T.copy())).to_host().sync(), 2 * A @ A.T)
    first, second = halves(from_host(A)).sync()
    assert_array_equal(first.to_host().sync(), A + 1)
    assert_array_equal(second.to_host().sync(), A * 2)
    one, two = halves(from_host(A)).unzip(2)
    assert_array_equal(zip_ops(one.to_host(), two.to_host()).map(lambda t: t[0] + t[1]).sync(), A * 3 + 1)


def test_a_tuple_knows_its_components(place: str) -> None:
    """A call with a tuple annotation is unzipped without a number, also where only the run knows the shapes."""
    for op in (ones((2, 3)), ones((2, 3)).sync(), value(3).then(lambda n: ones((2, n)))):
        one, two = halves(op).unzip()
        assert_array_equal(
            zip_ops(one.to_host(), two.to_host()).map(lambda t: t[0] + t[1]).sync(), np.full((2, 3), 4.0)
        )
    with pytest.raises(ShapeError, match=r"2 components. Say unzip\(\)"):
        halves(value(3).then(lambda n: ones((2, n)))).unzip(3)


def test_components_follow_a_source(place: str) -> None:
    """A feed has both results for each value of the source, whose shape only the run knows."""
    values = source(A)
    one, two = halves(values.then(from_host)).unzip()

    async def main() -> None:
        async with observe(zip_ops(one.to_host(), two.to_host()), check=True) as feed:
            for array_now in (A, A + 1, A[:, :2].copy()):
                values.set(array_now)
                found: Any = await feed.next()
                first, second = found
                assert_array_equal(first, array_now + 1)
                assert_array_equal(second, array_now * 2)

    trio.run(main)


def test_outputs_that_are_partitions(place: str) -> None:
    """A call yields its arguments, as a kernel's; the body gets the whole output, whatever its tiles are."""
    x = from_host(A).sync().share()
    for tile in ((1, 3), (2, 1), (2, 3)):
        y, again, by = shifted(zeros((2, 3)).partition(tile), x.clone(), 2.0).sync()
        assert_array_equal(y.unpartition().to_host().sync(), A + 2)
        assert (again.shape, by) == ((2, 3), 2.0)
    assert_array_equal(affine(x.clone().reshape((3, 2)), 3.0).to_host().sync(), A.reshape(3, 2) * 3)


def test_shapes_that_only_the_run_knows(place: str) -> None:
    """The declaration runs in the trace then, with the place of the call in its errors."""
    assert product(value(3).then(lambda n: ones((n, 2))), from_host(A)).to_host().sync().shape == (3, 3)
    wrong = product(value(3).then(lambda n: ones((2, n))), from_host(A))
    with pytest.raises(ShapeError, match=r"product at \S+test_foreign_ops.py:\d+: the inner extents 3 and 2 differ"):
        wrong.sync()


PIPELINES = st.lists(
    st.tuples(st.sampled_from(["affine", "product", "halves", "sum"]), st.integers(-3, 3)), min_size=1, max_size=5
)


def program(x: Any, steps: Any, y: Any) -> Any:
    """A DAG of foreign ops and ops of dagpu's, of 3 by 3 matrices of whole numbers."""
    for kind, number in steps:
        if kind == "affine":
            x = affine(x, float(number), 1.0)
        elif kind == "product":
            x = product(x, y)
        elif kind == "halves":
            x = product(*halves(x).unzip(2))
        else:
            x = affine(array.cumsum(x, 0), 1.0, float(number))
    return x


def in_numpy(x: Any, steps: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        for kind, number in steps:
            if kind == "affine":
                x = x * f32(number) + f32(1)
            elif kind == "product":
                x = x @ y
            elif kind == "halves":
                x = (x + f32(1)) @ (x * f32(2))
            else:
                x = np.cumsum(x, 0, dtype=f32) + f32(number)
    return x


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), steps=PIPELINES, lanes=st.integers(1, 4), library=st.sampled_from(LIBRARIES))
def test_the_same_results_on_each_way(seed: int, steps: Any, lanes: int, library: str) -> None:
    """On the host, on explore, through streams on several lanes, and as a CUDA graph whose inputs move: equal bits."""
    x = (np.arange(9, dtype=f32).reshape(3, 3) % 3) - 1
    y = np.eye(3, dtype=f32)[::-1].copy()
    wanted = in_numpy(x, steps, y)
    for device in ("host", "explore:0"):
        with use_device(device):
            assert_array_equal(program(from_host(x), steps, from_host(y).sync().share()).to_host().sync(), wanted)
    with installed(seed=seed) as machine, array_libraries(machine, library):
        shared = from_host(y).sync().share()
        op = program(from_host(x), steps, shared.clone()).to_host()
        assert_array_equal(op.schedule(RoundRobin(lanes)).sync(), wanted)
        step = pipeline(graph_from=2)(lambda a, b: program(a, steps, b))
        held = []
        for number in range(4):
            held.append(from_host(x + number).sync().share())
            expected = in_numpy(x + f32(number), steps, y)
            assert_array_equal(step(held[-1], shared).to_host().sync(), expected)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), library=st.sampled_from(LIBRARIES), graph=st.booleans())
def test_a_body_touches_its_operands_and_temporaries_alone(seed: int, library: str, graph: bool) -> None:
    """Tensors of other runs keep their contents, and all memory comes back: temporaries are not used again before the
    stream has come to them, in graphs not before the graph is gone."""
    with installed(seed=seed, memory=1 << 20) as machine, array_libraries(machine, library) as found:
        kept = [from_host(A + number).sync() for number in range(4)]
        step = pipeline(graph_from=1 if graph else None)(lambda x: affine(affine(x, 2.0, 1.0), 3.0, 1.0))
        x = from_host(A).sync().share()
        before = current_device().memory_used()
        for _ in range(5):
            results = [step(x.clone()) for _ in range(2)]
            one, two = zip_ops(*[result.to_host() for result in results]).sync()
            assert_array_equal(one, A * 6 + 4)
            assert_array_equal(two, A * 6 + 4)
            assert_array_equal(from_host(A * 9).to_host().sync(), A * 9)  # it takes what is idle
        for number, tensor in enumerate(kept):
            assert_array_equal(tensor.borrow().to_host().sync(), A + number)
        assert found[library].temporaries > 0
        if not graph:
            assert current_device().memory_used() == before


# ---- bodies
def test_a_raw_body_gets_a_lane_views_and_scratch() -> None:
    """The scratch memory is the plan's; a view speaks the CUDA array interface and DLPack, and names no stream."""
    seen: list[Any] = []

    @foreign
    def negated(x: In[f32], by: int) -> Tensor[f32]:
        reserve(64 * extent(x, 0))
        return new(x)

    @negated.raw
    def _(lane: Lane, x: View[f32], by: int, out: View[f32], scratch: View[np.uint8]) -> None:
        seen.append((lane.device, lane.capturing, by, x.shape, scratch.shape, out.__cuda_array_interface__["data"][1]))
        assert lane.__cuda_stream__() == (0, lane.handle)
        assert current_lane() is lane
        assert x.__cuda_array_interface__["stream"] is None
        assert x.__dlpack_device__() == (2, 0)
        gpu: Any = driver().gpu
        addresses = [each.address for each in (x, out, scratch)]

        def act() -> None:
            source, target, room = [gpu.bytes_at(address, 24) for address in addresses]
            room[...] = source
            target.view(f32)[...] = -room.view(f32)

        with gpu.machine.changed:
            enqueued = EnqueuedWork("kernel `neg`", tuple(addresses))
            gpu.machine.stream_of(lane.handle).put(act, takes_room=True, enqueued=enqueued)

    with installed(seed=3):
        assert_array_equal(negated(from_host(A), 7).to_host().sync(), -A)
        graph = negated(from_host(A), 7).graph()
        out = graph.take_output()
        graph.launch().sync()
        assert_array_equal(out.borrow().to_host().sync(), -A)
    assert seen[0] == (0, False, 7, (2, 3), (128,), False)
    assert seen[-1][1]


def test_a_numba_body_names_its_stream() -> None:
    """Numba has no current stream: `current_lane()` is the one to use."""

    @foreign
    def doubled(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @doubled.on("numba")
    def _(x: Any, out: Any) -> None:
        from numba import cuda  # type: ignore[import-not-found, unused-ignore]  # reason: a stand-in

        with cuda.external_stream(current_lane().handle):
            out.written_by(lambda a: a * 2, x)

    with installed(seed=3) as machine, array_libraries(machine, "numba"):
        assert_array_equal(doubled(from_host(A)).to_host().sync(), A * 2)


def test_old_versions_of_cupy() -> None:
    """Before version 14 a stream of others is an `ExternalStream`."""
    from tests.simulated.array_libraries import FakeLibrary, fake_cupy

    with installed() as machine, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        patch.setitem(sys.modules, "cupy", fake_cupy(FakeLibrary(machine), version=13))
        assert_array_equal(affine(from_host(A), 2.0).to_host().sync(), A * 2)


def test_the_choice_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first whose library can be imported; DAGPU_FOREIGN names another."""
    with installed() as machine, array_libraries(machine, "torch", "cupy") as found:
        affine(from_host(A), 2.0).sync()
        assert found["torch"].used_streams
        assert not found["cupy"].used_streams
        monkeypatch.setenv("DAGPU_FOREIGN", "cupy")
        affine(from_host(A + 1), 3.0).to_host().sync()
        assert found["cupy"].used_streams


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_pytorch_is_left_as_it_was(fails: bool, records: bool, elsewhere: bool) -> None:
    """The current stream and the recording of operations are those from before the call, whatever the body does, and
    on whatever device the current stream is."""

    @foreign
    def careless(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @careless.on("torch")
    def _(x: Any, out: Any) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]  # reason: a stand-in

        assert not torch.is_grad_enabled()
        out.copy_(x)
        torch.set_grad_enabled(not records)
        if fails:
            raise ZeroDivisionError

    with installed() as machine, array_libraries(machine, "torch") as found:
        library, own = found["torch"], Library(machine).stream
        library.here.streams[:] = [own]
        library.here.without_grad = not records
        library.current_device = int(elsewhere)
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            assert_array_equal(careless(from_host(A)).to_host().sync(), A)
        assert library.here.streams == [own]
        assert library.here.without_grad is not records
        assert library.used_streams.isdisjoint({own.handle, 1})


def test_the_host_runs_bodies_of_pytorch_on_its_tensors() -> None:
    """`host=True`: the same body, on tensors over the memory of the arrays; also of bfloat16."""
    with installed() as machine, array_libraries(machine, "torch"), use_device("host"):
        y = shifted(zeros((2, 3)).partition((1, 3)), from_host(A), 2.0).first().unpartition()
        assert_array_equal(y.to_host().sync(), A + 2)

        @foreign
        def same(x: In[bf16]) -> Tensor[bf16]:
            return new(x)

        @same.on("torch", host=True)
        def _(x: Any, out: Any) -> None:
            out.copy_(x)

        halved = A.astype(bf16)
        assert_array_equal(same(from_host(halved)).to_host().sync(), halved)


def test_a_body_may_change_the_shape_of_its_array() -> None:
    """Each call gets arrays of its own."""

    @foreign
    def flat(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @flat.on("torch")
    def _(x: Any, out: Any) -> None:
        x.shape, x.strides = (6,), (4,)
        out.shape, out.strides = (6,), (4,)
        out.copy_(x)

    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        for repeat in range(3):
            assert_array_equal(flat(x).to_host().sync(), A, f"{repeat}")


def test_nothing_is_imported() -> None:
    """`import dagpu`, a declaration and a run on the host import none of the libraries."""
    text = (
        "import sys, numpy as np\n"
        "from tests.behaviour.interop.foreign_ops.foreign_programs import affine\n"
        "from dagpu import ones\n"
        "assert affine(ones((2,)), 2.0).to_host().sync().tolist() == [2, 2]\n"
        "assert not {'torch', 'cupy', 'numba', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, cwd=ROOT, timeout=60)


# ---- failures
@pytest.mark.parametrize("graph_from", [1, None])
def test_an_exception_fails_the_results_of_its_op_alone(graph_from: int | None) -> None:
    """It has a note with the declaration and the call; other branches run, and so does the next run."""
    broken = threading.Event()

    @foreign
    def breaks(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @breaks.on("torch")
    def _(x: Any, out: Any) -> None:
        if broken.is_set():
            raise ZeroDivisionError("in a body")
        out.copy_(x + 1.0)

    ran: list[Any] = []
    with installed() as machine, array_libraries(machine, "torch"):
        x = from_host(A).sync().share()
        broken.set()
        op = zip_ops(affine(breaks(x), 2.0).to_host(), affine(x, 2.0).to_host().host_map(ran.append))
        with pytest.raises(ZeroDivisionError, match="in a body") as caught:
            op.sync()
        (note,) = caught.value.__notes__
        assert "the body of foreign op breaks, declared at" in note
        assert note.count("test_foreign_ops.py:") == 2
        assert_array_equal(ran[0], A * 2)
        assert not machine.gpus[0].machine.stack()
        broken.clear()
        step = pipeline(graph_from=graph_from)(lambda t: breaks(t))
        for repeat in range(3):
            assert_array_equal(step(x).to_host().sync(), A + 1, f"{repeat}")


def test_a_value_that_a_body_returns_is_refused() -> None:
    """It would be a hidden copy, or lost."""

    @foreign
    def gives(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @gives.on("torch")
    def _(x: Any, out: Any) -> Any:
        return x + 1.0

    refused = pytest.raises(ForeignError, match=r"its torch body \(\S+:\d+\) returned .*out.copy_\(...\)")
    with installed() as machine, array_libraries(machine, "torch"), refused:
        gives(from_host(A)).sync()


def test_a_missing_library_and_a_missing_body() -> None:
    """The error names the call, and what to install or write."""
    with installed() as machine, array_libraries(machine):
        with pytest.raises(NoDeviceError, match=r"affine at \S+:\d+ on cuda:0: none .*torch.*pip install torch"):
            affine(from_host(A), 1.0).sync()
        with pytest.raises(NoDeviceError, match=r"scratched at \S+:\d+ on cuda:0: it has no body for a GPU. Give it"):
            scratched(from_host(A)).sync()
        assert_array_equal(scratched(from_host(A)).on("host").to_host().sync(), -A)


def test_a_refused_call_leaves_its_handles() -> None:
    """A wrong shape or element type is refused at the call, and no handle has moved."""
    x = from_host(A).sync()
    with pytest.raises(ShapeError, match=r"product at \S+:\d+: the inner extents 3 and 2 differ"):
        product(x, from_host(A))
    with pytest.raises(KernelArgumentError, match="elements of float32 are wanted"):
        affine(from_host(A.astype(np.float64)).sync(), 1.0)  # type: ignore[arg-type]  # reason: it is refused
    with pytest.raises(KernelArgumentError, match="lacks argument"):
        affine(x)  # type: ignore[call-arg]  # reason: it is refused
    assert_array_equal(x.borrow().to_host().sync(), A)


def test_require_is_for_declarations() -> None:
    """Outside of one each of these functions is refused, and so is `current_lane` outside of a body."""
    for call in (lambda: require(True, "x"), lambda: reserve(1), lambda: new((1,), f32), lambda: extent(ones((1,)), 0)):
        with pytest.raises(ForeignError, match="is for the declaration of a foreign op"):
            call()
    with pytest.raises(ForeignError, match="no body of a foreign op runs"):
        current_lane()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(5, 9), st.sampled_from(LIBRARIES))
def test_bodies_of_torch_keep_to_four_streams(seed: int, lanes: int, library: str) -> None:
    """PyTorch keeps memory for each stream, so its bodies in further lanes make a detour; the order is the data's. CuPy
    has as many streams as there are lanes."""
    with installed(seed=seed) as machine, array_libraries(machine, library) as found:
        x = from_host(A).sync().share()
        branches = [
            affine(array.cumsum(affine(array.cumsum(x.clone(), 0), float(n)), 0), 2.0).to_host() for n in range(lanes)
        ]
        results = zip_ops(*branches).schedule(RoundRobin(lanes)).sync()
        for number, each in enumerate(results):
            expected = np.cumsum(np.cumsum(A, 0) * f32(number), 0) * 2
            assert_array_equal(each, expected)
        assert len(found[library].used_streams) == (4 if library == "torch" else lanes)
        assert machine.problems == []


@pytest.mark.parametrize("graph_from", [None, 2])
@pytest.mark.parametrize("library", LIBRARIES)
def test_operands_may_be_any_views(library: str, graph_from: int | None) -> None:
    """Parts, transposed, reversed, repeated and empty arrays of another library reach the body as they are. PyTorch has
    no reversed ones, which the error says."""
    base = np.arange(24, dtype=f32).reshape(2, 3, 4)
    views = [base[1:], base[:, ::2, 1::2], base.T, base[:0], base[1, 2, 3:], base[::-1, :, ::-1]]
    with installed(seed=1) as machine, array_libraries(machine, library):
        theirs = Library(machine).array(base)
        step = pipeline(graph_from=graph_from)(lambda x: affine(x, 2.0, 1.0))
        for view in (*views, np.broadcast_to(base[0, 0], (3, 4))):
            offset = address_of(view) - address_of(base) if view.size else 0
            data, strides = (theirs.address + offset, True), view.strides
            interface = theirs.interface(shape=view.shape, strides=strides, data=data)
            for _ in range(3):
                shared = share_array(interface, f32)
                if library == "torch" and min(strides) < 0:
                    with pytest.raises(ForeignError, match="PyTorch has no negative ones"):
                        step(shared).sync()
                else:
                    assert_array_equal(step(shared).to_host().sync(), view * 2 + 1)
        assert machine.problems == []
