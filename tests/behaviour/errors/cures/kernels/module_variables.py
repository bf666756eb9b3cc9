"""Mistakes with what the launches of a kernel share: the variables of its module, and its grid."""

import threading
from collections.abc import Callable
from typing import Any, Final

import trio

from dagpu import DeviceOp, In, Out, f32, i32, kernel, observe, ones, source, zeros
from tests.behaviour.errors.cures.catalogue import TILE, Catalogue, N, out, suppressed_groups

CATALOGUE = Catalogue()
case = CATALOGUE.add

ONE: Final = "__global__ void k(Tile<float, 1> y"


def declare(text: str) -> Any:
    @kernel(cuda=text)
    def k(y: Out[f32]) -> None: ...

    @k.host
    def _(y: Any) -> None:
        HOOK[0]()

    return k


def declare_with_output(text: str) -> Any:
    @kernel(cuda=text)
    def k(y: Out[f32], n: Out[i32]) -> None: ...

    @k.host
    def _(y: Any, n: Any) -> None:
        HOOK[0]()

    return k


def declare_with_input(text: str) -> Any:
    @kernel(cuda=text)
    def k(y: Out[f32], c: In[f32]) -> None: ...

    return k


HOOK: Final[list[Callable[[], object]]] = [lambda: None]
SHARED: Final = "__device__ int n, m; __global__ void other(float* y) { n = 1; } "
COUNTED: Final = declare(f"__device__ int n; {ONE}) {{ ++n; }}")
COUNTED_OUT: Final = declare_with_output(f"{ONE}, Tile<int, 1> n) {{ ++n(0); }}")
MEET: Final = "cooperative_groups::this_grid().sync(); "
MET: Final = declare(f"{ONE}) {{ y[0] = 1; {MEET}y[1] = y[0]; }}")
HALVES: Final = "<cuda_fp16.h>"
UNREAD: Final = declare(f"#define FILE {HALVES}\n#include FILE\n{ONE}) {{ y[0] = 1; }}")
READ: Final = declare(f"#include {HALVES}\n{ONE}) {{ y[0] = 1; }}")
BEFORE, AFTER = declare(f"{ONE}) {{ y[0] = 1; }}"), declare(f"{ONE}) {{ y[1] = y[0]; }}")

case(
    lambda: declare(f"__constant__ float c[2]; {ONE}) {{ y[0] = c[1]; }}"),
    ("Initialise it in the source", lambda: declare(f"__constant__ float c[2] = {{1, 2}}; {ONE}) {{ y[0] = c[1]; }}")),
    (
        "or pass its contents as an input",
        lambda: declare_with_input(f"{ONE}, View<const float, 1> c) {{ y[0] = c[1]; }}"),
    ),
)
case(
    lambda: declare(f"{SHARED}{ONE}) {{ ++n; }}"),
    (
        "Pass it to both as an argument",
        lambda: declare_with_output(
            f"{ONE}, Tile<int, 1> n) {{ ++n(0); }} __global__ void other(int* n) {{ *n = 1; }}"
        ),
    ),
    ("or give each one of its own", lambda: declare(f"{SHARED}{ONE}) {{ ++m; }}")),
)
case(
    lambda: MET(out()).sync(),
    ("Cut it there into two kernels", lambda: AFTER(BEFORE(out()).first()).sync()),
)


def counted_with_output() -> DeviceOp[Any]:
    made: DeviceOp[Any] = COUNTED_OUT(out(), zeros((2,), i32).partition((1,)))
    return made


def while_it_runs(work: Callable[[], Any], first: Callable[[], Any] | None = None, *, after: bool = False) -> object:
    """Run an op while another run launches the kernel, or `after` that has been awaited."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(30)

    async def awaited(op: Any) -> None:
        await op

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            if after:
                await COUNTED(out())
                return await work()
            HOOK[0] = hold
            nursery.start_soon(awaited, (first or work)())
            await trio.to_thread.run_sync(begun.wait, 30)
            HOOK[0] = lambda: None
            try:
                return await work()
            finally:
                go_on.set()

    try:
        with suppressed_groups():
            return trio.run(main)
    finally:
        HOOK[0] = lambda: None


case(
    lambda: while_it_runs(lambda: COUNTED(out())),
    ("Await that run first", lambda: while_it_runs(lambda: COUNTED(out()), after=True)),
    ("or pass the variable as an output", lambda: while_it_runs(counted_with_output)),
)

case(
    lambda: while_it_runs(lambda: UNREAD(out())),
    ("(name the file itself)", lambda: while_it_runs(lambda: READ(out()))),
    ("Await that run first", lambda: while_it_runs(lambda: UNREAD(out()), after=True)),
    ("or pass the variable as an output", lambda: while_it_runs(counted_with_output)),
)


def observed(op: Any) -> None:
    async def main() -> None:
        async with observe(op) as feed:
            await feed.next()

    with suppressed_groups():
        trio.run(main)


def over_source(launch: Callable[[Any], Any]) -> Any:
    number = source(1.0)
    filled: Any = number.then(lambda _: ones((N,)))
    return launch(filled.partition(TILE)).first().unpartition().to_host()


case(
    lambda: observed(over_source(COUNTED)),
    (
        "Pass the variable as an output",
        lambda: observed(over_source(lambda y: COUNTED_OUT(y, zeros((2,), i32).partition((1,))))),
    ),
)
