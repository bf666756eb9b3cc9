"""The host backend's devices, memory and threads."""

import random
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from dagpu.backends.host import HostMemory
from dagpu.backends.host.backend import SPREAD
from dagpu.backends.host.body_checks import Tile
from dagpu.backends.protocol import Backend
from dagpu.common.errors import NoDeviceError, PlanError
from dagpu.common.layout import address_of, bf16
from dagpu.handles.device_handles import Driver
from dagpu.testing import Cell, CopyHtoD, HostBackend, Instruction, View, contiguous_layout, driver_of
from tests.unit.backends.host.host_plans import F32, PATIENCE, Builder, adding, bytes_of, finish, used
from tests.unit.backends.host.host_plans import backend as backend

# ---- devices


def test_it_is_a_backend(backend: HostBackend) -> None:
    """It has the shape of `Backend`, one device unless asked for more, and 20 us of spinning."""
    as_backend: Backend = backend
    driver: Driver = driver_of(backend.device(0))
    assert (as_backend.kind, as_backend.device_count(), as_backend.spin()) == ("host", 1, 20e-6)
    assert driver.stream_handle(driver.open_stream()) == 0


def test_devices_exist_up_to_the_limit(backend: HostBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is the same object each time; past the limit the error names the variable that raises it."""
    assert backend.device(7) is backend.device(7)
    assert backend.device(7).name == "host:7"
    with pytest.raises(NoDeviceError, match=r"no device host:8.*set DAGPU_HOST_DEVICES=9"):
        backend.device(8)
    monkeypatch.setenv("DAGPU_HOST_DEVICES", "9")
    assert backend.device(8).index == 8
    monkeypatch.setenv("DAGPU_HOST_DEVICES", "many")
    with pytest.raises(ValueError, match="DAGPU_HOST_DEVICES='many' is not a whole number, 1 or more"):
        backend.device(10)


def test_memory_info_is_of_the_machine(backend: HostBackend) -> None:
    """Free memory is some, and no more than the total."""
    free, total = backend.device(0).memory_info()
    assert 0 < free <= total


def test_a_plan_for_another_kind_is_refused(backend: HostBackend) -> None:
    """A device name that is not the host's is an error at once."""
    with pytest.raises(NoDeviceError, match="'cuda:0'"):
        backend.prepare(Builder(devices=("cuda:0",)).plan()).submit([])


def test_a_lane_of_another_device_is_refused(backend: HostBackend) -> None:
    """A user's stream works on its own device only."""
    with pytest.raises(PlanError, match="not a stream of that device"):
        backend.prepare(Builder(backend.device(1).stream().lane).plan()).submit([])


# ---- memory and threads


def test_memory_is_aligned_and_counted(backend: HostBackend) -> None:
    """Blocks start at a multiple of 64 bytes, and count for as long as somebody holds them."""
    build = Builder()
    sizes = [1, 0, 100, 4096, 3]
    buffers = [build.buffer(size) for size in sizes]
    freed = build.buffer(1 << 20)
    build.release(freed)
    memory = build.run(backend)
    held = [memory[buffer] for buffer in buffers]
    starts = [m.block.ctypes.data for m in held if isinstance(m, HostMemory) and m.nbytes]
    assert [start % 64 for start in starts] == [0] * 4
    assert [m.block.nbytes for m in held if isinstance(m, HostMemory)] == sizes
    assert memory[freed] is None
    assert used(backend) == sum(sizes)
    del memory, held
    assert used(backend) == 0


def test_a_finished_run_holds_nothing(backend: HostBackend) -> None:
    """Once it is done, neither it nor the idle workers keep the bindings, the plan, its functions or its
    arrays."""

    class Function:
        def __call__(self, argument: object) -> None:
            pass

    array, function = np.zeros(16, np.float32), Function()
    watched: list[weakref.ref[Any]] = [weakref.ref(array), weakref.ref(function)]
    build = Builder(0, 1)
    source, device, out = build.cell(array), build.buffer(), build.cell()
    build.put(CopyHtoD(View(device, contiguous_layout((16,), F32)), Cell(source), (source,), (device,), 0, None))
    build.after(0, 1)
    build.call(function, Cell(source), out, source, lane=1)
    run, bindings = build.start(backend)
    finish(run)
    del array, function, build, bindings, source
    assert [ref() for ref in watched] == [None, None]
    assert backend.device(0).memory_used() == 0
    assert run.done()


def test_an_error_of_ours_keeps_no_memory(backend: HostBackend) -> None:
    """Holding on to the exception of a failed run does not hold on to the run."""
    build = Builder()
    build.launch(None, build.buffer())
    error = build.fail(backend)
    assert error.__traceback__ is None
    assert backend.device(0).memory_used() == 0


def test_a_stream_of_ones_own_ends_with_its_last_reference(backend: HostBackend) -> None:
    """Its thread starts with the first work and goes when nobody has the stream any more."""
    stream = backend.device(0).stream()
    threads: list[threading.Thread] = []
    build = Builder(stream.lane)
    build.call(lambda x: threads.append(threading.current_thread()), None, build.cell())
    build.run(backend)
    build.run(backend)
    (thread,) = set(threads)
    assert thread.name == "dagpu-host:0/own-1"
    assert thread.daemon
    del stream, build
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_threads_of_a_backend_end_with_it() -> None:
    """Pool threads are named after their lane, are at most 64 for each device, and go with the backend."""
    backend = HostBackend()
    threads: set[threading.Thread] = set()
    build = Builder(*range(100))
    for lane in range(100):
        build.call(lambda x: threads.add(threading.current_thread()), None, build.cell(), lane=lane)
    build.run(backend)
    assert {thread.name for thread in threads} == {f"dagpu-host:0/{n}" for n in range(64)}
    del backend
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


SCRIPT = """
import os, threading
from tests.unit.backends.host.host_plans import Builder, adding
from dagpu.backends.host import HostBackend, HostMemory
backend = HostBackend()
def run():
    build = Builder(0, 1)
    a, b = build.buffer(), build.buffer()
    build.launch(adding(1), a)
    build.after(0, 1)
    build.launch(adding(2), b, a, lane=1)
    return build.run(backend)[b].block[:4].view('f4')[0]
assert run() == 3
child = os.fork()
if child == 0:
    assert threading.active_count() == 1
    assert run() == 3 and run() == 3
    assert threading.active_count() == 3
    print("child", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert run() == 3
print("parent")
"""


def test_a_forked_child_starts_anew() -> None:
    """After a fork the child has no threads, starts its own, and both go on; the end of the process is
    quiet."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT],
        capture_output=True, text=True, check=False, timeout=PATIENCE * 2,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr, done.returncode) == (["child", "parent"], "", 0)


def random_plan(rng: random.Random, fails: bool) -> tuple[Builder, dict[int, float], list[Instruction]]:
    """Launches over up to 4 lanes, each after all that it depends on; what each output should hold; what
    should fail.

    Every step into another lane is ordered by an event, so the plan is right by construction.
    """
    lanes = rng.randint(1, 4)
    build = Builder(*rng.sample(range(6), lanes))
    made: list[tuple[int, int, int]] = []  # buffer, lane, when
    value: dict[int, float] = {}
    bad: set[int] = set()
    failing: list[Instruction] = []

    def fail(y: Tile[Any], *xs: object) -> None:
        raise ValueError("at random")

    for _ in range(rng.randint(1, 20)):
        lane = rng.randrange(lanes)
        inputs = rng.sample(made, min(len(made), rng.randint(0, 2)))
        for _, other, _ in inputs:
            if other != lane:
                build.after(other, lane)
        out = build.buffer(lane=lane)
        reads = tuple(buffer for buffer, _, _ in inputs)
        broken = fails and rng.random() < 0.1
        launched = build.launch(fail if broken else adding(len(made)), out, *reads, lane=lane)
        if broken or bad.intersection(reads):
            if not bad.intersection(reads):
                failing.append(launched)
            bad.add(out)
        else:
            value[out] = len(made) + sum(value[r] for r in reads)
        made.append((out, lane, len(build.steps)))
    return build, value, failing


@pytest.mark.parametrize("seed", range(3))
def test_many_plans_at_once(backend: HostBackend, seed: int) -> None:
    """200 plans from 4 threads with failures and cancels at random: no hang, right results, nothing left
    behind."""
    errors: list[BaseException] = []

    def client(number: int) -> None:
        rng = random.Random(1000 * seed + number)
        try:
            running = []
            for _ in range(50):
                build, value, failing = random_plan(rng, fails=rng.random() < 0.5)
                run, bindings = build.start(backend)
                cancelled = rng.random() < 0.3
                if cancelled:
                    run.cancel()
                running.append((run, bindings, value, failing, cancelled))
                if rng.random() < 0.3:
                    finish(run)
            for run, bindings, value, failing, cancelled in running:
                finish(run)
                failed = [failure.instruction for failure in run.failures()]
                if cancelled:
                    assert [one for one in failing if one in failed] == failed
                    continue
                assert failed == failing
                for buffer, expected in value.items():
                    assert bytes_of(bindings[buffer]).tolist() == [expected] * 16
        except BaseException as error:
            errors.append(error)

    before = threading.active_count()
    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(4)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(4 * PATIENCE)
    assert not any(thread.is_alive() for thread in clients)
    assert errors == []
    assert threading.active_count() <= before + SPREAD
    assert used(backend) == 0


class _Subclass(np.ndarray[Any, Any]):
    pass


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3)), np.zeros((2, 3))[::-1, 1:], np.zeros(()), np.zeros(0)[0:], np.zeros(4, bf16)[1:],
        np.frombuffer(b"abcd", np.uint8, offset=1), np.broadcast_to(np.ones(1), (9,)), np.zeros(4).view(_Subclass)[2:],
        np.arange(6, dtype=">i2"), np.array([object()]), np.zeros(3, "U4"),
        np.zeros(2, [("a", "u1"), ("b", "f8")])["b"],
    ],
    ids=lambda array: f"{array.dtype}{array.shape}{array.strides}",
)  # fmt: skip
def test_the_address_of_an_array(array: "np.ndarray[Any, Any]") -> None:
    """It is the one that the array itself says, whatever its elements, strides and type."""
    assert address_of(array) == array.__array_interface__["data"][0]
