"""Arrays of another library on simulated GPUs: late producers, late consumers, and memory that is used again."""

import gc
import sys
from contextlib import ExitStack
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagpu import (
    BorrowError,
    DeviceError,
    InteropError,
    OutOfMemoryError,
    adopt,
    current_device,
    dup,
    expr,
    f32,
    fill,
    from_array,
    from_host,
    full,
    lend,
    lend_mut,
    lent_out,
    ones,
    pipeline,
    share_array,
    source,
    stream_of,
    use_device,
    zeros,
)
from dagpu.backends.cuda.resources.pools import Pool
from dagpu.testing import live_state
from tests.behaviour.live.live_trials import Trial
from tests.behaviour.tiles.tile_kernels import N, turned
from tests.simulated.array_libraries import array_libraries
from tests.simulated.cuda import driver, installed
from tests.simulated.foreign_arrays import Library, imported_libraries

SEEDS = st.integers(0, 10_000)


@expr(f32)
def plus_one(x: Any) -> Any:
    return x + 1.0


CONTENTS = np.arange(12, dtype=f32).reshape(3, 4)


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    verb=st.sampled_from(["adopt", "share", "lend", "copy"]),
    protocol=st.sampled_from(["DLPack", "PyTorch", "CuPy", "interface"]),
)
def test_a_run_waits_on_the_device_for_a_late_producer(seed: int, verb: str, protocol: str) -> None:
    """However late the producer is, a run reads what it wrote; to import an array, no thread waits."""
    with ExitStack() as entered:
        machine = entered.enter_context(installed(seed=seed))
        library = Library(machine)
        plus_one(zeros((3, 4))).sync()  # compiled
        gpu = library.gpu
        array: Any = library.array(CONTENTS)
        if protocol == "interface":
            array = array.interface()
        elif protocol != "DLPack":
            make = entered.enter_context(imported_libraries(library))[protocol]
            share_array(make(library.array(CONTENTS)), f32)  # from now on arrays of its form are read by attributes
            array = make(array)
        waits = gpu.calls["cuEventSynchronize"] + gpu.calls["cuStreamSynchronize"] + gpu.calls["cuCtxSynchronize"]
        if verb == "copy":
            assert_array_equal(from_array(array, f32).to_host().sync(), CONTENTS)
            return
        used = current_device().memory_used()
        if verb == "lend":
            with lend(array, f32) as lent:
                op = plus_one(lent).to_host()
                assert waits == sum(
                    gpu.calls[name] for name in ("cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")
                )
                assert_array_equal(op.sync(), CONTENTS + 1)
            return
        handle = adopt(array, f32) if verb == "adopt" else share_array(array, f32)
        assert current_device().memory_used() == used
        assert_array_equal(plus_one(handle).to_host().sync(), CONTENTS + 1)


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, runs=st.integers(1, 5))
def test_a_graph_waits_for_a_late_producer(seed: int, runs: int) -> None:
    """A pipeline that has become a graph, and a captured graph, wait as any other run does."""
    with installed(seed=seed) as machine:
        library = Library(machine)
        step = pipeline(graph_from=2)(lambda x: plus_one(x))
        for _ in range(3):
            step(share_array(library.array(CONTENTS), f32)).sync()
        for number in range(runs):
            contents = CONTENTS * number
            shared = share_array(library.array(contents), f32)
            assert_array_equal(step(shared).to_host().sync(), contents + 1)
        late = share_array(library.array(CONTENTS), f32)
        graph = plus_one(late).graph()
        output = graph.take_output()
        graph.launch().sync()
        assert_array_equal(output.borrow().to_host().sync(), CONTENTS + 1)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, shared=st.booleans())
def test_memory_that_a_late_consumer_reads_is_not_used_again(seed: int, shared: bool) -> None:
    """A consumer drops its array while its stream still reads it: dagpu waits for an idle device to use that memory."""
    with installed(seed=seed, memory=1 << 20) as machine:
        library = Library(machine)
        tensor = full((1024,), 3.0).sync()
        taken = library.take(tensor.share() if shared else tensor)
        del tensor
        seen = taken.read_later()
        del taken
        gc.collect()
        for number in range(6):  # the pool is asked for blocks of the same size
            assert_array_equal(full((1024,), float(number)).to_host().sync(), np.full(1024, number, f32))
        with library.gpu.current():
            library.gpu.synchronize()
        assert_array_equal(seen[0], np.full(1024, 3.0, f32))


@pytest.mark.parametrize("which", ["source", "adopted", "result"])
def test_memory_that_a_late_consumer_reads_is_not_written_in_place(which: str) -> None:
    """A consumer drops the array of a source, or of a feed's result, while its stream may still read it: a write to a
    part of the source, and the update of the tiles that see it, go to other memory. The write after that is in place
    again."""
    part, patch = (slice(0, 2), slice(0, 2)), np.full((2, 2), 9.0, f32)
    with installed() as machine:
        library = Library(machine)
        threes = np.full((N, N), 3.0, f32)
        given = source(adopt(library.array(threes), f32) if which == "adopted" else from_host(threes).sync())
        trial = Trial(turned(given).share(), [given])
        places: list[int] = []
        for number in range(5):
            given.write(part, patch + number)
            value = trial.update()
            tensor = value if which == "result" else given.get()
            places.append(live_state(tensor).storage.memory.address)  # type: ignore[attr-defined]  # a block of a pool
            if number == 2:
                library.take(tensor)
            del tensor, value
        assert places[1] == places[2] != places[3] == places[4]
        assert_array_equal(trial.update().to_host().sync()[part], 1 - (patch + 4))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, reads=st.booleans())
def test_a_copy_waits_for_the_stream_in_which_it_was_asked_for(seed: int, reads: bool) -> None:
    """The library's current stream is another one when the run begins, in another thread, or after `with stream:`."""
    with installed(seed=seed) as machine:
        library = Library(machine)
        with imported_libraries(library) as makers:
            current = [library.stream.handle]
            patched: Any = sys.modules["torch"]
            patched._C._cuda_getCurrentRawStream = lambda index: current[0]  # noqa: SLF001  # as PyTorch has it
            if reads:  # by attributes, else by DLPack
                share_array(makers["PyTorch"](library.array(CONTENTS)), f32)
            op = from_array(makers["PyTorch"](library.array(CONTENTS + 1)), f32).to_host()
            current[0] = 1
            assert_array_equal(op.sync(), CONTENTS + 1)


def test_parked_memory_comes_back() -> None:
    """After many exports, and when memory is short, parked blocks serve runs again."""
    with installed(memory=1 << 20) as machine:
        library = Library(machine)
        for _ in range(64):  # 64 of 64 KiB: four times the device's memory
            taken = library.take(ones((1 << 14,)).sync())
            del taken
        gc.collect()
        assert driver().memory.held <= 1 << 20
        assert_array_equal(ones((1 << 17,)).to_host().sync(), np.ones(1 << 17, f32))


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, writes=st.booleans())
def test_runs_come_after_what_was_enqueued_in_the_block(seed: int, writes: bool) -> None:
    """Work that a consumer enqueued inside of `lent_out` comes before later runs on the tensor."""
    with installed(seed=seed) as machine:
        library = Library(machine)
        tensor = full((8,), 1.0).sync()
        if writes:
            with lent_out(tensor.borrow_mut()) as x:
                library.take(x).write_later(5.0)
        else:
            with lent_out(tensor.borrow()) as x:
                seen = library.take(x).read_later()
        gc.collect()
        fill(tensor.borrow_mut(), 2.0).sync() if not writes else None
        expected = np.full(8, 5.0 if writes else 2.0, f32)
        assert_array_equal(tensor.borrow().to_host().sync(), expected)
        if not writes:
            with library.gpu.current():
                library.gpu.synchronize()
            assert_array_equal(seen[0], np.full(8, 1.0, f32))


def test_a_capsule_that_outlives_the_block_keeps_its_lock() -> None:
    """A consumer that still holds the array after the block blocks conflicting runs, until it drops it."""
    with installed() as machine:
        library = Library(machine)
        tensor = full((8,), 1.0).sync()
        with lent_out(tensor.borrow_mut(), stream=1) as x:
            taken = library.take(x)
        with pytest.raises(BorrowError, match="lent out to another library"):
            tensor.borrow().to_host().sync()
        del taken
        assert_array_equal(tensor.borrow().to_host().sync(), np.full(8, 1.0, f32))


def test_an_import_that_is_exported_again_makes_the_consumer_wait() -> None:
    """Memory that is still arriving goes out with its event: the consumer's stream waits, not dagpu."""
    for seed in range(30):
        with installed(seed=seed) as machine:
            producer, consumer = Library(machine), Library(machine)
            shared = share_array(producer.array(CONTENTS), f32)
            seen = consumer.take(shared).read_later()
            with consumer.gpu.current():
                consumer.gpu.synchronize()
            assert_array_equal(seen[0], CONTENTS)


def test_each_deleter_runs_once() -> None:
    """The library's memory goes back once, by a call of dagpu and not inside of a finaliser."""
    with installed() as machine:
        library = Library(machine)
        tensor = adopt(library.array(CONTENTS), f32)
        with lend_mut(library.array(CONTENTS), f32):
            pass
        del tensor
        gc.collect()
        share_array(library.array(CONTENTS), f32)
        gc.collect()
        ones((1,)).sync()  # the next run releases it
        assert library.freed == 3


def test_work_on_a_foreign_stream_is_in_its_order() -> None:
    """`op.sync_on(stream_of(s))` runs in the other library's stream, after what is in it."""
    for seed in range(20):
        with installed(seed=seed) as machine:
            library = Library(machine)
            array = library.array(CONTENTS)
            stream = stream_of(library.stream.handle)
            assert stream.handle == library.stream.handle
            assert stream.__cuda_stream__() == (0, library.stream.handle)
            assert stream_of(stream).lane is stream.lane
            assert_array_equal(plus_one(share_array(array, f32)).to_host().sync_on(stream), CONTENTS + 1)
            assert plus_one(zeros((2,))).to_host().sync_on(stream_of(1)).tolist() == [1.0, 1.0]


def test_what_the_interface_does_not_say_is_asked_for() -> None:
    """Masks, old versions and streams that are none are refused."""
    with installed() as machine:
        library = Library(machine)
        array = library.array(CONTENTS)
        with pytest.raises(InteropError, match="a mask"):
            share_array(array.interface(mask=array))
        with pytest.raises(InteropError, match="version 2"):
            share_array(array.interface(version=2, stream=None))
        old = share_array(array.interface(version=2, stream=None), f32, stream=library.stream.handle)
        assert_array_equal(dup(old).to_host().sync(), CONTENTS)
        with pytest.raises(InteropError, match="not a stream"):
            share_array(array, f32, stream="default")  # type: ignore[call-overload]
        with pytest.raises(InteropError, match="has no CUDA streams"), use_device("host"):
            stream_of(1)
        shared = zeros((2,)).sync().share()
        interface = shared.__cuda_array_interface__
        assert (interface["shape"], interface["data"][1], interface["version"]) == ((2,), True, 3)


def test_a_block_that_is_parked_amid_the_wait_stays_parked() -> None:
    """Work on it may be newer than the wait for the device. The blocks that were parked before are idle then, and a
    wait that fails makes none idle."""
    addresses = count(1 << 20, 1 << 20)
    pool = Pool(lambda _: next(addresses), lambda _: None)
    early, late = pool.take(512), [pool.take(512)]
    first, second = early.address, late[0].address
    pool.visited |= {first, second}
    del early

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.unpark(fail)
    assert pool.take(512).address not in (first, second)

    def synchronize() -> None:
        late.clear()
        assert pool.used == 0  # the other thread's call finds the dropped block

    pool.unpark(synchronize)
    taken = [pool.take(512) for _ in range(4)]
    assert first in {each.address for each in taken}
    assert second not in {each.address for each in taken}
    assert pool.parked_bytes == 512


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_what_another_library_keeps_idle_makes_room(name: str) -> None:
    """Before a run is refused, PyTorch and CuPy give back what they have freed. What they use stays, and the error
    says how much it is."""
    with installed(memory=1 << 20) as machine, array_libraries(machine, name) as found:
        library = found[name]
        held = [library.own_memory(1 << 17) for _ in range(7)]
        del held[1:]
        gc.collect()
        assert_array_equal(ones((3 << 16,)).to_host().sync(), np.ones(3 << 16))  # 768 KiB
        assert sum(library.held.values()) == 1 << 17
        held += [library.own_memory(1 << 16)]
        says = f"; {'PyTorch' if name == 'torch' else 'CuPy'} holds {(1 << 17) + (1 << 16):,}\\."
        with pytest.raises(OutOfMemoryError, match=says):
            ones((7 << 15,)).sync()
        assert len(library.held) == 2
        assert ones((2,)).to_host().sync().tolist() == [1, 1]


def test_a_library_that_gives_nothing_back_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user sees dagpu's error, also where a call of the library fails."""
    with installed(memory=1 << 20) as machine, array_libraries(machine, "torch"):
        monkeypatch.setattr("torch.cuda.empty_cache", lambda: 1 / 0)
        monkeypatch.setattr("torch.cuda.memory_reserved", lambda: 1 / 0)
        with pytest.raises(OutOfMemoryError, match=r"dagpu's handles and runs hold 0\."):
            ones((1 << 20,)).sync()


def test_a_call_that_a_capture_forbids_loses_no_device() -> None:
    """Another library's capture may refuse a call of ours (CUresult 900). Only that run fails."""
    with installed() as machine:
        ones((4,)).sync()
        machine.gpus[0].fail("cuMemsetD32Async", 900)
        with pytest.raises(DeviceError) as caught:
            full((4,), 2.0).sync()
        assert type(caught.value) is DeviceError
        assert_array_equal(full((4,), 2.0).to_host().sync(), np.full(4, 2, f32))
