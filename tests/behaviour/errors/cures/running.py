"""Mistakes in running ops."""

import asyncio
import contextlib
import importlib
import threading
import warnings
from pathlib import Path
from typing import Any, TypeVar

import trio

from dagpu import (
    Cluster,
    CostModel,
    Device,
    DeviceOp,
    Interpreter,
    ListSchedule,
    RoundRobin,
    SingleStream,
    StreamInterpreter,
    Tls,
    checkpoint,
    device,
    dup,
    from_host,
    ones,
    pipeline,
    plan_of,
    record_origins,
    spawn,
    trace,
    use_device,
    use_interpreter,
    value,
    zip_ops,
)
from dagpu.plans.policies import Placement
from dagpu.runtime import plan_lookup
from tests.behaviour.errors.cures.catalogue import (
    KEPT,
    Catalogue,
    Gives,
    N,
    Program,
    add,
    anything,
    awaited,
    awaits,
    new,
    out,
    suppressed_groups,
    with_limit,
)

T = TypeVar("T")
CATALOGUE = Catalogue()
case = CATALOGUE.add


def awaited_in_asyncio() -> object:
    async def main() -> object:
        return await value(1)

    return asyncio.run(main())


case(
    awaited_in_asyncio,
    ("Use op.sync()", lambda: value(1).sync()),
    ("await it in an async function that trio.run(...) runs", lambda: awaited(value(1))),
)


def shared_in_one_thread() -> object:
    """A task makes a shared value; another blocks for it in the same thread."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    remembered = value(1).host_map(hold).shared()

    async def main(waits_by_sync: bool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaits, remembered)
            await trio.to_thread.run_sync(begun.wait, 30)
            try:
                if waits_by_sync:
                    remembered.sync()
            finally:
                go_on.set()
            await remembered

    with suppressed_groups(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return trio.run(main, WAITS_BY_SYNC[-1])


WAITS_BY_SYNC = [True]


def shared_and_awaited() -> object:
    WAITS_BY_SYNC.append(False)
    try:
        return shared_in_one_thread()
    finally:
        WAITS_BY_SYNC.pop()


case(shared_in_one_thread, ("Use await here", shared_and_awaited))


def spawning(make: Program, *, cancel: bool = False, times: int = 1) -> object:
    made: list[Any] = [make()]

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, made.pop())
            if cancel:
                pending.cancel()
            for _ in range(times):
                found = await pending
            return found

    with suppressed_groups():
        return trio.run(main)


def lending() -> Any:
    KEPT.append(new())
    return KEPT[-1].borrow().to_host()


case(
    lambda: spawning(lending),
    ("share() the tensor and pass that", lambda: spawning(lambda: new().share().to_host())),
    ("await the op", lambda: awaited(lending())),
)
case(
    lambda: spawning(lambda: ones((2,)), cancel=True),
    ("Run it again", lambda: spawning(lambda: ones((2,)))),
)
case(
    lambda: spawning(lambda: ones((2,)), times=2),
    ("Await once", lambda: spawning(lambda: ones((2,)))),
    ("spawn op.shared()", lambda: spawning(lambda: ones((2,)).shared(), times=2)),
)


def spawned_in(nursery: Any, op: Any) -> object:
    async def main() -> None:
        async with trio.open_nursery() as real:
            await spawn(real if nursery is None else nursery, op)

    with suppressed_groups():
        return trio.run(main)


case(lambda: spawned_in(3, value(1)), ("async with trio.open_nursery()", lambda: spawned_in(None, value(1))))
case(lambda: spawned_in(None, 3), ("Pass an op", lambda: spawned_in(None, value(3))))


def escaped() -> object:
    aside: list[Any] = []
    with contextlib.suppress(ZeroDivisionError):
        ones((N,)).inspect(aside.append).host_map(lambda _: 1 / 0).sync()
    return add(out(), aside[0]).sync()


case(escaped, ("Make it again", lambda: add(out(), ones((N,)).sync()).sync()))


def used_in_another_run() -> object:
    aside: list[Any] = []
    return ones((N,)).inspect(aside.append).then(lambda _: two_step(aside)).sync()


def two_step(aside: list[Any]) -> Any:
    inner = trio.lowlevel  # a run of its own, in another thread
    del inner
    found: list[BaseException] = []

    def other() -> None:
        try:
            dup(aside[0].borrow()).sync()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    raise found[0]


case(
    used_in_another_run,
    ("A handle leaves its run as part of the run's result", lambda: dup(ones((N,)).sync().borrow()).sync()),
)
case(lambda: device("tpu"), ("Known: cuda, explore, host", lambda: device("host")))
case(lambda: device("host:x"), ("'host', 'host:1', 'cuda:0'", lambda: (device("host"), device("host:1"))))
case(
    lambda: device("host:99"),
    ("Use one of these", lambda: device("host:7")),
)
case(
    lambda: device("explore:99"),
    ("Use one of explore:0 to explore:7", lambda: (device("explore:0"), device("explore:7"))),
)
case(lambda: device(anything(3)), ('Write device("host:1")', lambda: device("host:1")))
case(
    lambda: use_device(anything(3)),
    ('Write use_device("host:1")', lambda: use_device("host:1")),
    ('pass device("host:1")', lambda: use_device(device("host:1"))),
)
case(
    lambda: zip_ops(ones((2,)).on("host"), ones((2,)).on("explore:0")).sync(),
    (
        "array = await op.to_host(), then from_host(array)",
        lambda: zip_ops(
            ones((2,)).on("host"), from_host(ones((2,)).on("explore:0").to_host().sync()).on("host")
        ).sync(),
    ),
)
case(
    lambda: ones((2,)).sync_on(anything("x")),
    ("device().stream()", lambda: ones((2,)).sync_on(device().stream())),
)
case(
    lambda: ones((2,)).on("host:1").sync_on(device("host:0").stream()),
    ("give a stream of host:1", lambda: ones((2,)).on("host:1").sync_on(device("host:1").stream())),
    ("make the op and its inputs on host:0", lambda: ones((2,)).on("host:0").sync_on(device("host:0").stream())),
)
case(
    lambda: ones((2,)).schedule(anything("fast")),
    ("SingleStream()", lambda: ones((2,)).schedule(SingleStream()).sync()),
    ("RoundRobin(4)", lambda: ones((2,)).schedule(RoundRobin(4)).sync()),
    ("ListSchedule(4)", lambda: ones((2,)).schedule(ListSchedule(4)).sync()),
    (".on(...) takes a device", lambda: ones((2,)).on("host:1").sync()),
)
case(
    lambda: ones((2,)).schedule(anything(SingleStream)),
    ("SingleStream()", lambda: ones((2,)).schedule(SingleStream()).sync()),
)
case(
    lambda: ones((2,)).on(anything(3)),
    ("device('host:1')", lambda: ones((2,)).on(device("host:1")).sync()),
    ("'host:1'", lambda: ones((2,)).on("host:1").sync()),
    ("RoundRobin(4)", lambda: ones((2,)).on(RoundRobin(4)).sync()),
)
case(
    lambda: StreamInterpreter(anything(3)),
    ('Write "host:1"', lambda: StreamInterpreter("host:1").run_sync(ones((2,)))),
    ("leave it out for the current device", lambda: StreamInterpreter().run_sync(ones((2,)))),
)
case(
    lambda: StreamInterpreter(policy=anything(3)),
    ("policy=RoundRobin(4)", lambda: StreamInterpreter(policy=RoundRobin(4)).run_sync(ones((2,)))),
    ("leave it out for ListSchedule(4)", lambda: StreamInterpreter(policy=ListSchedule(4)).run_sync(ones((2,)))),
)
case(
    lambda: use_interpreter(anything(3)),
    ("Write use_interpreter(StreamInterpreter(...))", lambda: use_interpreter(StreamInterpreter())),
)


class OnlyRuns:
    """An interpreter that runs ops and plans nothing."""

    async def run(self, op: DeviceOp[T, Any, Any], /) -> T:
        return await StreamInterpreter().run(op)

    def run_sync(self, op: DeviceOp[T, Any, Any], /) -> T:
        return StreamInterpreter().run_sync(op)


def under(interpreter: Interpreter, program: Program) -> object:
    """Run a program with an interpreter in use."""
    with use_interpreter(interpreter):
        return program()


case(
    lambda: under(OnlyRuns(), lambda: plan_of(ones((2,)))),
    ("Add that method", lambda: under(StreamInterpreter(), lambda: plan_of(ones((2,))))),
    (
        "use_interpreter(StreamInterpreter())",
        lambda: under(OnlyRuns(), lambda: under(StreamInterpreter(), lambda: plan_of(ones((2,))))),
    ),
)
case(lambda: plan_of(anything(3)), ("value(x)", lambda: plan_of(value(3))))
case(lambda: RoundRobin(anything("4")), ("Write streams=4, say", lambda: RoundRobin(streams=4)))
case(lambda: ListSchedule(runs=-1), ("Write runs=1000", lambda: ListSchedule(runs=1000)))
case(
    lambda: RoundRobin(memory_limit=anything("8M")),
    ("Write memory_limit=8 << 20 for 8 MiB", lambda: RoundRobin(memory_limit=8 << 20)),
    ("leave it out", RoundRobin),
)
case(
    lambda: ones((1 << 10,)).schedule(RoundRobin(memory_limit=64)).sync(),
    ("Raise the limit", lambda: ones((1 << 10,)).schedule(RoundRobin(memory_limit=1 << 20)).sync()),
    ("cut the work into smaller pieces", lambda: ones((1 << 3,)).schedule(RoundRobin(memory_limit=64)).sync()),
)
case(
    lambda: ListSchedule(costs=anything(3)),
    ("Write costs=CostModel()", lambda: ListSchedule(costs=CostModel())),
    ("leave it out", ListSchedule),
)
case(
    lambda: ones((2,)).schedule(Gives(lambda n: [])).sync(),
    ("return one lane key for each", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
)
case(
    lambda: ones((2,)).schedule(Gives(lambda n: [[0]] * n)).sync(),
    ("Return a number for each instruction", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
)
case(
    lambda: ones((2,)).to_host().schedule(Gives(lambda n: Placement([0] * n, ()))).sync(),
    (
        "Return a permutation of range(len(program.instructions))",
        lambda: ones((2,)).to_host().schedule(Gives(lambda n: Placement([0] * n, range(n)))).sync(),
    ),
    ("or None for program order", lambda: ones((2,)).to_host().schedule(Gives(lambda n: Placement([0] * n))).sync()),
)
case(
    lambda: ones((2,)).to_host().schedule(Gives(lambda n: Placement([0] * n, range(n - 1, -1, -1)))).sync(),
    (
        "Return an order that keeps producers before consumers",
        lambda: ones((2,)).to_host().schedule(Gives(lambda n: Placement([0] * n, range(n)))).sync(),
    ),
)


def on_own_stream(where: Device) -> object:
    stream = where.stream()
    return ones((2,)).schedule(Gives(lambda n: [stream.lane] * n)).sync()


case(
    lambda: ones((2,)).schedule(Gives(lambda n: ["a"] * n)).sync(),
    ("Use a number", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
    (
        "stream.lane of a stream = device.stream() of the same device",
        lambda: on_own_stream(device("host:0")),
    ),
)
case(
    lambda: CostModel(bandwidth=0),
    ("Write 4.29e12, say", lambda: CostModel(bandwidth=4.29e12)),
)
case(
    lambda: CostModel().count(anything(["gemm"])),
    ('Write .count({"gemm": 4096})', lambda: CostModel().count({"gemm": 4096})),
)
case(
    lambda: CostModel().count({"gemm": -1}),
    ('Write .count({"gemm": 4096})', lambda: CostModel().count({"gemm": 4096})),
)
case(
    lambda: CostModel().count(anything({"gemm": 0.5})),
    ('Write .count({"gemm": 4096})', lambda: CostModel().count({"gemm": 4096})),
)
case(lambda: CostModel().declare({"add": -1.0}), ("Write 3e-5, say", lambda: CostModel().declare({"add": 3e-5})))
case(
    lambda: CostModel().declare(anything(["add"])),
    ('Write .declare({"gemm": 3e-5})', lambda: CostModel().declare({"gemm": 3e-5})),
)


def measured() -> Any:
    with trace() as found:
        add(out(), ones((N,))).sync()
    return found


case(
    lambda: CostModel().learn(anything([1])),
    (".learn(trace.kernel_times())", lambda: CostModel().learn(measured().kernel_times())),
)
case(lambda: trace(costs=anything(3)), ("Write costs=CostModel()", lambda: trace(costs=CostModel())))
case(lambda: trace(anything(3)), ('"run.json"', lambda: trace("run.json")))
case(
    lambda: trace(nvtx=True).__enter__(),
    ("leave nvtx=True out", lambda: trace().__enter__().end()),
)
case(lambda: trace(nvtx=anything(3)), ("Say nvtx=True or nvtx=False", lambda: trace(nvtx=False)))


def overlap(at_least: Any, *, ran: bool = True) -> object:
    with trace() as found:
        if ran:
            add(out(), ones((N,))).sync()
    found.assert_overlap(at_least)
    return found


case(lambda: overlap("half"), ("Write 0.5 for a half", lambda: overlap(0.0)))
case(lambda: overlap(0.0, ran=False), ("run an op in its block", lambda: overlap(0.0)))
case(lambda: overlap(0.99), ("op.explain() says why", lambda: add(out(), ones((N,))).explain()))


def out_of_memory() -> object:
    return ones((1 << 50,)).sync()


case(
    out_of_memory,
    ("Drop handles that are no longer needed", lambda: ones((1 << 5,)).sync()),
    ("cut the work into smaller pieces", lambda: ones((1 << 5,)).sync()),
)
case(lambda: record_origins(anything(3)), ("Say record_origins(True)", lambda: record_origins(True)))
case(
    lambda: with_limit(anything("many"), lambda: value(1).map(str).sync()),
    ("Set DAGPU_MAX_CLOSURES=100000, for example", lambda: with_limit(100000, lambda: value(1).map(str).sync())),
)
case(
    lambda: importlib.import_module("dagpu").zeroes,
    ("has no attribute 'zeroes'", lambda: importlib.import_module("dagpu").zeros),
)


def certificates() -> Tls:
    """Files as those of a user who has made certificates."""
    for name in ("ca.pem", "own.pem", "own-key.pem"):
        Path(name).write_text("", encoding="utf-8")
    return Tls("ca.pem", "own.pem", "own-key.pem")


case(lambda: Tls("none.pem", "own.pem", "own-key.pem"), ("Make the certificates first", certificates))
case(
    lambda: Cluster.connect("tls://head:8786"),
    ("Pass tls=Tls(ca, certificate, key)", lambda: Cluster.connect("tls://head:8786", tls=certificates())),
)
case(
    lambda: Cluster.connect("tcp://head:8786"),
    (
        "connect to tls://... with tls=Tls(ca, certificate, key)",
        lambda: Cluster.connect("tls://head:8786", tls=certificates()),
    ),
)
case(
    lambda: Cluster.connect(8786),  # type: ignore[arg-type]  # reason: the mistake
    ('Write "tls://head:8786"', lambda: Cluster.connect("tls://head:8786", tls=certificates())),
)
case(
    lambda: checkpoint(3.0, "weights.npy"),  # type: ignore[arg-type]  # reason: the mistake
    ("Write checkpoint(t, path)", lambda: checkpoint(ones((2,)).sync(), "weights.npy").sync()),
)
case(
    lambda: plan_of(ones((2,))).to_svg(costs={"gemm": 3e-5}),  # type: ignore[arg-type]  # reason: the mistake
    (
        'Write costs=CostModel().declare({"gemm": 3e-5})',
        lambda: plan_of(ones((2,))).to_svg(costs=CostModel().declare({"gemm": 3e-5})),
    ),
)
case(
    lambda: plan_of(ones((2,))).to_svg(until=-1.0),
    ("Write until=100e-6", lambda: plan_of(ones((2,))).to_svg(until=100e-6)),
)


def traced_again(f: Any) -> object:
    """Call a pipeline whose plan may be kept; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        plan_lookup._warned.clear()  # noqa: SLF001  # a warning comes once in a process
        return pipeline(lambda x: x.to_host().map(f))(ones((4,)).sync()).sync()


def summed(x: Any) -> Any:
    return x.sum()


case(
    lambda: traced_again(lambda x, seen=[]: seen),  # that is the point
    (
        "Define it at the top level of a module, and give it what it reads as its argument",
        lambda: traced_again(summed),
    ),
)
