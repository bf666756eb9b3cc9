"""The host backend keeps the order of streams and events, and cancels runs."""

import threading
import time
from typing import Any

from dagpu.backends.host.body_checks import Tile
from dagpu.testing import HostBackend, Lane, Record, Wait
from tests.unit.backends.host.host_plans import PATIENCE, Builder, adding, bytes_of, finish
from tests.unit.backends.host.host_plans import backend as backend

# ---- order


def test_lanes_overlap(backend: HostBackend) -> None:
    """Two launches in two lanes run at the same time: each waits inside its body for the other."""
    both = threading.Barrier(2)

    def meet(y: Tile[Any]) -> None:
        both.wait(PATIENCE)

    build = Builder(0, 1)
    for lane in (0, 1):
        build.launch(meet, build.buffer(lane=lane), lane=lane)
    build.run(backend)


def test_devices_overlap(backend: HostBackend) -> None:
    """Lane 0 of one device is not lane 0 of another."""
    both = threading.Barrier(2)

    def meet(y: Tile[Any]) -> None:
        both.wait(PATIENCE)

    build = Builder(devices=("host:0", "host:1"))
    build.lanes.append(Lane(1, 0))
    for lane in (0, 1):
        build.launch(meet, build.buffer(lane=lane), lane=lane)
    build.run(backend)


def test_all_threads_that_wait_for_a_run_see_its_end(backend: HostBackend) -> None:
    """Those with a limit, those without, and the one that gave up before."""
    go, found = threading.Event(), list[bool]()
    build = Builder()

    def body(y: Tile[Any]) -> None:
        assert go.wait(PATIENCE)

    build.launch(body, build.buffer())
    run, _ = build.start(backend)
    assert not run.wait(1e-6)
    assert not run.poll(1e-6)
    waits = [run.wait, lambda: run.wait(PATIENCE), lambda: run.poll(1e30), lambda: run.succeeds(PATIENCE)]
    threads = [threading.Thread(target=lambda wait=wait: found.append(wait())) for wait in waits * 2]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [True] * len(threads)


def test_a_wait_holds_until_the_record(backend: HostBackend) -> None:
    """Lane 1 does nothing until lane 0 has written, however long that takes."""
    log: list[str] = []
    go = threading.Event()
    build = Builder(0, 1)
    a, b = build.buffer(), build.buffer()

    def first(y: Tile[Any]) -> None:
        assert go.wait(PATIENCE)
        log.append("first")

    build.launch(first, a)
    build.after(0, 1)
    build.launch(lambda y, x: log.append("second"), b, a, lane=1)
    run, _ = build.start(backend)
    assert not run.wait(0.0)
    assert not run.done()
    go.set()
    finish(run)
    assert log == ["first", "second"]


def test_a_record_wakes_all_that_wait_for_it(backend: HostBackend) -> None:
    """Three lanes that are blocked at one event go on, all of them."""
    started = threading.Event()
    runs: list[Any] = []
    build = Builder(0, 1, 2, 3)
    outs = [build.buffer(lane=lane) for lane in range(4)]

    def hold(y: Tile[Any]) -> None:
        assert started.wait(PATIENCE)
        end = time.monotonic() + PATIENCE
        while len(runs[0]._blocked.get(0, ())) < 3:  # noqa: SLF001  # reason: nothing else tells who is blocked
            assert time.monotonic() < end
            time.sleep(0)  # lets the other lanes run
        y[...] = 1

    build.launch(hold, outs[0])
    build.steps += [Record(0, 0), *[Wait(0, lane) for lane in (1, 2, 3)]]
    build.events = 1
    for lane in (1, 2, 3):
        build.launch(adding(lane), outs[lane], outs[0], lane=lane)
    run, bindings = build.start(backend)
    runs.append(run)
    started.set()
    finish(run)
    assert [bytes_of(bindings[out])[0] for out in outs] == [1, 2, 3, 4]


def test_lanes_that_are_one_stream(backend: HostBackend) -> None:
    """Lanes of one key, and lanes 64 apart, share a thread; events between them are in the plan's order."""
    for other in (0, 64):
        build = Builder(0, other)
        a, b = build.buffer(), build.buffer()
        build.launch(adding(1), a)
        build.after(0, 1)
        build.launch(adding(2), b, a, lane=1)
        build.after(1, 0)
        build.launch(adding(3), a, b)
        assert bytes_of(build.run(backend)[a])[0] == 6


def test_a_plan_of_no_steps_is_done_at_once(backend: HostBackend) -> None:
    """Nothing to do takes no thread."""
    run, _ = Builder(0, 1).start(backend)
    called: list[int] = []
    run.when_done(lambda: called.append(1))
    assert (run.done(), run.wait(), run.failures(), called) == (True, True, [], [1])


def test_when_done_calls_back_once(backend: HostBackend) -> None:
    """`wake` is called after the end, whether asked for before it or after."""
    go, woken = threading.Event(), threading.Semaphore(0)

    def hold(y: Tile[Any]) -> None:
        go.wait(PATIENCE)

    build = Builder()
    build.launch(hold, build.buffer())
    run, _ = build.start(backend)
    states: list[bool] = []

    def wake() -> None:
        states.append(run.done())
        woken.release()

    for _ in range(2):
        run.when_done(wake)
    assert states == []
    go.set()
    assert woken.acquire(timeout=PATIENCE)
    assert woken.acquire(timeout=PATIENCE)
    run.when_done(lambda: states.append(True))
    assert states == [True] * 3


# ---- cancelling


def test_cancelling_skips_what_has_not_begun(backend: HostBackend) -> None:
    """After `cancel`, an instruction that runs goes on to its end, and only then is the run done.

    Lanes that wait for it do not hang.
    """
    began, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow(y: Tile[Any]) -> None:
        began.set()
        assert go.wait(PATIENCE)
        ran.append("slow")

    build = Builder(0, 1)
    a, b = build.buffer(), build.buffer()
    build.launch(slow, a)
    build.after(0, 1)
    build.launch(lambda y, x: ran.append("next"), b, a, lane=1)
    run, _ = build.start(backend)
    assert began.wait(PATIENCE)
    run.cancel()
    assert not run.done()
    go.set()
    finish(run)
    assert (ran, run.failures()) == (["slow"], [])
    after = Builder(0, 1)
    after.launch(lambda y: ran.append("after"), after.buffer(lane=1), lane=1)
    after.run(backend)
    assert ran == ["slow", "after"]
