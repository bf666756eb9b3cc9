"""Devices: names, which is current, streams, and what memory they say is used."""

import copy
import gc
import pickle
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import dagpu
from dagpu import (
    KernelArgumentError,
    Mesh,
    NoDeviceError,
    Spread,
    Stream,
    StreamInterpreter,
    current_device,
    device,
    devices,
    dup,
    from_host,
    full,
    ones,
    use_device,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.cuda import CudaBackend
from dagpu.runtime import device_lookup as places
from dagpu.testing import Gpu, backend, replaced_backend, storage_of
from tests.programs.arithmetic import scale
from tests.simulated.cuda import installed
from tests.support.places import place


@pytest.mark.parametrize(
    ("asked", "name", "index"),
    [("host", "host:0", 0), ("host:0", "host:0", 0), ("host:3", "host:3", 3), ("auto", "host:0", 0)],
)
def test_a_device_by_name(asked: str, name: str, index: int) -> None:
    """A kind alone is its number 0; "auto" is the host where there is no GPU; a name gives one object."""
    if asked == "auto" and any(found.kind == "cuda" for found in devices()):
        pytest.skip("there is a CUDA device here")
    found = device(asked)
    assert (found.name, found.kind, found.index) == (name, "host", index)
    assert device(asked) is found
    assert device(name) == found
    assert repr(found) == f"device({name!r})"
    assert hash(found) == hash(device(name))
    assert device("host:1") != device("host:2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "no backend for devices of kind 'tpu' is installed. Known: "),
        ("", "no backend for devices of kind ''"),
        ("host:", "'host:' is not a device. Write a kind, or a kind and a number: 'host', 'host:1', 'cuda:0'."),
        ("host:-1", "'host:-1' is not a device."),
        ("host:x", "'host:x' is not a device."),
        (
            "host:8",
            "there is no device host:8: the host has host:0 to host:7. Use one of these, or set DAGPU_HOST_DEVICES=9.",
        ),
    ],
)
def test_a_device_that_is_not_there(name: str, message: str) -> None:
    """NoDeviceError says which part is missing, from every way of naming a device."""
    with pytest.raises(NoDeviceError, match=re.escape(message)) as caught:
        device(name)
    assert caught.value.code == 0
    with pytest.raises(NoDeviceError, match=re.escape(message)), use_device(name):
        pass
    with pytest.raises(NoDeviceError, match=re.escape(message)):
        zeros((1,)).on(name).sync()


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_a_gpu_that_is_not_there(name: str) -> None:
    """NoDeviceError, from every way of naming it; what is missing depends on the machine."""
    if any(found.kind == "cuda" for found in devices()):
        pytest.skip("there is a CUDA device here")
    for ask in (lambda: device(name), lambda: zeros((1,)).on(name).sync(), lambda: use_device(name)):
        with pytest.raises(NoDeviceError):
            ask()


@pytest.fixture
def searches() -> Iterator[list[str]]:
    """Nobody has asked for a GPU yet, and there is none (CUDA_ERROR_NO_DEVICE). Gets an entry for each search."""
    made = []

    def open_gpus() -> list[Gpu]:
        made.append("search")
        raise NoDeviceError("there is no CUDA device here: the driver says so.", 100)

    with replaced_backend("cuda", CudaBackend(gpus=open_gpus)):
        yield made


@pytest.mark.usefixtures("searches")
def test_the_run_that_first_looks_for_a_gpu_is_let_go() -> None:
    """With no GPU, "auto" is the host, and nothing keeps the tensors of the run in which that came out."""
    host = device("host")
    gc.collect()
    gc.disable()
    before = host.memory_used()
    try:
        with use_device("host"):
            t = full((1 << 16,), 3).sync()
            assert host.memory_used() > before
            dup(t).on("auto").sync()
        assert host.memory_used() == before
    finally:
        gc.enable()


def test_a_search_in_vain_is_made_once(searches: list[str]) -> None:
    """Whoever asks later gets the same words and code, in a new error: one that is kept would keep the frames that it
    came through."""
    found = []
    for _ in range(3):
        with pytest.raises(NoDeviceError, match="the driver says so") as caught:
            device("cuda")
        found.append(caught.value)
    assert len(searches) == 1
    assert len({id(error) for error in found}) == 3
    assert len({str(error) for error in found}) == 1
    assert {error.code for error in found} == {100}
    assert len({id(error.__context__) for error in found}) == 3


@pytest.mark.usefixtures("searches")
def test_each_way_of_naming_a_device_passes_the_code_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """NoDeviceError has the driver's code, whichever call found that there is no GPU."""

    def by_the_environment() -> object:
        monkeypatch.setenv("DAGPU_DEVICE", "cuda")
        return zeros((1,)).sync()

    asking: tuple[Callable[[], object], ...] = (
        lambda: device("cuda"),
        lambda: use_device("cuda"),
        lambda: zeros((1,)).on("cuda").sync(),
        lambda: StreamInterpreter("cuda").run_sync(zeros((1,))),
        by_the_environment,
    )
    for ask in asking:
        with pytest.raises(NoDeviceError, match="the driver says so") as caught:
            ask()
        assert caught.value.code == 100


def test_a_replaced_backend_is_put_back(searches: list[str]) -> None:
    """Within the `with` block the replacement brings the devices of its kind; then the backend of before does."""
    before = backend("cuda")
    with replaced_backend("cuda", CudaBackend(gpus=list)):
        assert backend("cuda") is not before
        with pytest.raises(NoDeviceError, match="shows no device to this process"):
            device("cuda")
    assert backend("cuda") is before
    assert searches == []


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_device_is_copied_by_its_name(way: str) -> None:
    """A configuration that names devices or a mesh can be copied, and sent to another process."""
    mesh = Mesh([place(0), place(1)]) if place(0) != place(1) else Mesh([place(0)])
    for held in (device(place(0)), mesh, Spread(mesh, streams=2)):
        assert WAYS[way](held) == held
    assert ones((2,)).on(WAYS[way](device(place(0)))).sync().device == device(place(0))


def test_devices_are_all_that_is_here() -> None:
    """The host counts once, though more of it can be had by name."""
    found = devices()
    assert [d.name for d in found if d.kind == "host"] == ["host:0"]
    assert any(d is device("host") for d in found)


@pytest.mark.host_only("it puts simulated GPUs in the place of real ones")
def test_auto_is_the_first_gpu_where_there_is_one() -> None:
    """`"auto"`, and the current device of a program that says nothing, are `cuda:0` where a driver finds a GPU."""
    search = vars(places)["_automatic"]
    search.cache_clear()
    try:
        with installed(), pytest.MonkeyPatch.context() as patch:
            patch.delenv("DAGPU_DEVICE")
            assert device("auto").name == current_device().name == "cuda:0"
    finally:
        search.cache_clear()


@pytest.mark.host_only("it names devices of the host")
def test_tensors_of_one_kernel_on_several_devices_are_told_one_by_one() -> None:
    """The error names each tensor's parameter and device, no number's, and the device of the output as the place for
    all of them."""
    op = scale(zeros((4, 4)).on("host:2").partition((4, 4)), 2.0, ones((4, 4)).on("host:1"))
    with pytest.raises(KernelArgumentError, match=r"are on several devices: z on host:2, x on host:1\. Copy .*host:2"):
        op.sync()


def test_the_environment_sets_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_DEVICE, unless `use_device` says otherwise; a wrong one is NoDeviceError when it is first needed."""
    monkeypatch.setenv("DAGPU_DEVICE", "host:2")
    assert current_device().name == "host:2"
    assert zeros((1,)).sync().device.name == "host:2"
    with use_device("host:1"):
        assert current_device().name == "host:1"
    monkeypatch.setenv("DAGPU_DEVICE", "nowhere")
    with pytest.raises(NoDeviceError, match="'nowhere'"):
        zeros((1,)).sync()
    monkeypatch.delenv("DAGPU_DEVICE")
    assert current_device().kind in ("host", "cuda")


def test_more_host_devices_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAGPU_HOST_DEVICES says how many; what is no number is refused."""
    monkeypatch.setenv("DAGPU_HOST_DEVICES", "9")
    assert zeros((1,)).on("host:8").sync().device.index == 8
    monkeypatch.setenv("DAGPU_HOST_DEVICES", "many")
    with pytest.raises(ValueError, match="DAGPU_HOST_DEVICES='many' is not a whole number, 1 or more"):
        device("host:12")


def test_the_current_device_belongs_to_the_task() -> None:
    """Tasks and threads each have their own; a child starts with its parent's."""
    seen: dict[str, str] = {}

    async def child(name: str, place: str | None) -> None:
        if place is None:
            await trio.lowlevel.checkpoint()
            seen[name] = (await zeros((1,))).device.name
            return
        with use_device(place):
            await trio.lowlevel.checkpoint()
            seen[name] = (await zeros((1,))).device.name

    async def main() -> None:
        with use_device("host:3"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child, "own", "host:4")
                nursery.start_soon(child, "inherited", None)

    trio.run(main)
    assert seen == {"own": "host:4", "inherited": "host:3"}
    with use_device("host:5"):
        thread = threading.Thread(target=lambda: seen.update(thread=current_device().name))
        thread.start()
        thread.join()
    assert seen["thread"] == "host:0"


def test_use_device_ends_with_its_block_even_when_it_raises() -> None:
    """`use_device` returns the device, and ends with its block even if the block raises."""

    def fails(given: dagpu.Device) -> None:
        assert given is current_device() is device("host:1")
        raise KeyError(given)

    with pytest.raises(KeyError), use_device("host:1") as one:
        fails(one)
    assert current_device().name == "host:0"


# ---- memory


def test_memory_info_is_free_and_total() -> None:
    """In bytes, free not above total."""
    free, total = device("host").memory_info()
    assert 0 < free <= total


@given(sizes=st.lists(st.integers(0, 4096), max_size=6), data=st.data())
def test_memory_used_counts_what_handles_hold(sizes: list[int], data: st.DataObject) -> None:
    """On the device where they lie, to the byte, until the last handle goes, in any order."""
    one, other = device(place(6)), device(place(7))
    before, elsewhere = one.memory_used(), other.memory_used()
    with use_device(one):
        held = [zeros((size,), np.uint8).sync() for size in sizes]
    assert one.memory_used() - before == sum(sizes)
    for at in data.draw(st.permutations(range(len(sizes)))):
        size = held[at].nbytes
        now = one.memory_used()
        held[at] = None  # type: ignore[call-overload]  # reason: let go of it
        assert one.memory_used() == now - size
    assert (one.memory_used(), other.memory_used()) == (before, elsewhere)


def test_a_runs_memory_is_returned() -> None:
    """Temporaries go with the run, intermediates of a chain too; a result's memory with its last handle."""
    where = device(place(5))
    before = where.memory_used()
    with use_device(where):
        chain = zeros((1000,))
        for _ in range(50):
            chain = chain.then(dup)
        result = zip_ops(chain, ones((10,)).to_host()).sync()
        assert where.memory_used() == before + 4000
        del result
        assert where.memory_used() == before


def test_host_arrays_die_when_the_last_handle_does() -> None:
    """The block of memory itself, not only its count; views, clones and ops all hold it."""
    where = current_device()
    gc.disable()
    try:
        gc.collect()  # what earlier tests left in cycles
        before = where.memory_used()
        t: Any = zeros((1024,)).sync()
        storage: Any = storage_of(t)
        memory = weakref.ref(storage.memory)
        del storage
        shared = t.share()
        op = zip_ops(value(shared.clone()), dup(shared))
        assert memory() is not None
        del t, shared
        assert memory() is not None
        assert where.memory_used() == before + 4096
        del op
        assert memory() is None
        assert where.memory_used() == before
    finally:
        gc.enable()


def test_arrays_from_and_to_the_host_are_copies_that_die() -> None:
    """The input array is let go of with the op, and the tensor with its handle; the output is the user's own."""
    gc.disable()
    try:
        array = np.ones(512, np.float32)
        alive = weakref.ref(array)
        op = from_host(array)
        t = op.sync().share()
        array[:] = 5
        assert (op.to_host().sync() == 5).all()  # each run reads it anew
        del array, op
        assert alive() is None
        out = t.to_host().sync()
        assert (out == 1).all()
        assert out.flags.writeable
        out[:] = 7
        assert (t.to_host().sync() == 1).all()
        again = weakref.ref(out)
        del out
        assert again() is None
    finally:
        gc.enable()


def test_a_shared_op_holds_its_value_as_long_as_it_lives() -> None:
    """A shared op holds its value as long as the op lives, and no longer."""
    where = current_device()
    gc.collect()  # what earlier tests left in cycles
    before = where.memory_used()
    op = zeros((256,)).shared()
    op.to_host().sync()
    assert where.memory_used() == before + 1024
    del op
    assert where.memory_used() == before


# ---- streams


def test_a_stream_belongs_to_its_device() -> None:
    """Each is its own; on the host it has no CUstream, and lives as long as somebody refers to it."""
    where = device("host:1")
    one, other = where.stream(), where.stream()
    assert isinstance(one, Stream)
    assert one is not other
    assert one.device is where
    assert one.handle == 0
    assert repr(one) == "<Stream on host:1>"
    names: list[str] = []
    for stream in (one, other, one):
        value(0).host_map(lambda _: names.append(threading.current_thread().name)).sync_on(stream)
    assert names[0] == names[2] != names[1]
    threads = [thread for thread in threading.enumerate() if thread.name in names]
    assert len(threads) == 2
    del one, other, stream
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_work_for_another_device_is_refused_by_a_stream() -> None:
    """The error names the op, both devices, and the cure."""
    t = ones((2,)).on("host:2").sync()
    with pytest.raises(dagpu.DagpuError) as caught:
        t.borrow().to_host().sync_on(device("host:1").stream())
    for part in (__file__, "belongs on host:2", "stream of host:1", "give a stream of host:2"):
        assert part in str(caught.value)
    assert t.to_host().sync().tolist() == [1.0, 1.0]
