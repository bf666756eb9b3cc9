"""Mistakes with what the launches of a kernel share: the variables of its module, and its grid."""

import threading
from collections.abc import Callable
from typing import Any, Final

import trio

from dagpu import DeviceOp, Here, In, Out, f32, f64, i32, kernel, observe, ones, source, zeros
from tests.behaviour.errors.cures.catalogue import TILE, Catalogue, N, out, suppressed_groups

CATALOGUE = Catalogue()
case = CATALOGUE.add

ONE: Final = "__global__ void k(Tile<float, 1> y"


def one_output(y: Out[f32]) -> None: ...


one_output.__name__ = "k"


def many() -> Any:
    """Return an output of 1,000 tiles."""
    return zeros((4000,)).partition((4,))


def odd() -> Any:
    """Return an output of 3 tiles."""
    return zeros((12,)).partition((4,))


def declare(text: str, **settings: Any) -> Any:
    @kernel(cuda=text, **settings)
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


def declare_with_input_or_none(text: str) -> Any:
    @kernel(cuda=text)
    def k(y: Out[f32], c: In[f32] | None) -> None: ...

    return k


def declare_with_doubles(text: str) -> Any:
    @kernel(cuda=text)
    def k(y: Out[f32], c: In[f64]) -> None: ...

    return k


def set_with_body(variable: str = "c[2]") -> Any:
    def body(y: Any, c: Any) -> None: ...

    made = declare_with_input(SET.replace("c[2]", variable))
    made.host(body)
    return made


def declare_with_input(text: str, **settings: Any) -> Any:
    @kernel(cuda=text, **settings)
    def k(y: Out[f32], c: In[f32]) -> None: ...

    return k


HOOK: Final[list[Callable[[], object]]] = [lambda: None]
SHARED: Final = "__device__ int n, m; __global__ void other(float* y) { n = 1; } "
COUNTED: Final = declare(f"__device__ int n; {ONE}) {{ ++n; }}")
COUNTED_OUT: Final = declare_with_output(f"{ONE}, Tile<int, 1> n) {{ ++n(0); }}")
MEET: Final = "cooperative_groups::this_grid().sync(); "
MET_TEXT: Final = f"{ONE}) {{ y[0] = 1; {MEET}y[1] = y[0]; }}"
MET: Final = declare(MET_TEXT)
HALVES: Final = "<cuda_fp16.h>"
UNREAD: Final = declare(f"#define FILE {HALVES}\n#include FILE\n{ONE}) {{ y[0] = 1; }}")
READ: Final = declare(f"#include {HALVES}\n{ONE}) {{ y[0] = 1; }}")

case(
    lambda: declare(f"__constant__ float c[2]; {ONE}) {{ y[0] = c[1]; }}"),
    ("Initialise it in the source", lambda: declare(f"__constant__ float c[2] = {{1, 2}}; {ONE}) {{ y[0] = c[1]; }}")),
    (
        "or pass its contents as an input",
        lambda: declare_with_input(f"{ONE}, View<const float, 1> c) {{ y[0] = c[1]; }}"),
    ),
    (
        "or set it by a parameter of its name in Python",
        lambda: declare_with_input(f"__constant__ float c[2]; {ONE}) {{ y[0] = c[1]; }}"),
    ),
)
case(
    lambda: declare(f"__device__ float c[2]; {ONE}) {{ y[0] = c[1]; }}"),
    ("Initialise it in the source", lambda: declare(f"__device__ float c[2] = {{1, 2}}; {ONE}) {{ y[0] = c[1]; }}")),
    (
        "or pass its contents as an input",
        lambda: declare_with_input(f"{ONE}, View<const float, 1> c) {{ y[0] = c[1]; }}"),
    ),
)
SET: Final = f"__constant__ float c[2]; {ONE}) {{ y[0] = c[1]; }}"
case(
    lambda: declare_with_input(SET.replace("c[1]", "1")),
    ("Use it", lambda: declare_with_input(SET)),
    ("or leave out 'c'", lambda: declare(SET.replace("c[1]", "1"))),
)
case(
    lambda: declare_with_input(SET.replace("float c[2]", "float* c")),
    (
        "Pass the contents as an input of the kernel",
        lambda: declare_with_input(f"{ONE}, View<const float, 1> c) {{ y[0] = c[1]; }}"),
    ),
)
case(
    lambda: declare_with_input(SET.replace("float c", "double c")),
    ("Declare 'c: In[np.float64]'", lambda: declare_with_doubles(SET.replace("float c", "double c"))),
)
case(
    lambda: declare_with_input_or_none(SET),
    ("Declare 'c: In[np.float32]'", lambda: declare_with_input(SET)),
)
case(
    lambda: declare_with_input(SET.replace("float c", "Unknown c")),
    (
        "Pass the contents as an input of the kernel",
        lambda: declare_with_input(f"{ONE}, View<const float, 1> c) {{ y[0] = c[1]; }}"),
    ),
)
OPEN: Final = "c[] = {1, 2}"
case(
    lambda: set_with_body(OPEN)(out(), ones((300,))).sync(),
    ("Pass at most as many", lambda: set_with_body(OPEN)(out(), ones((2,))).sync()),
    simulated=True,
)
case(
    lambda: declare_with_input(SET)(out(), ones((3,))).sync(),
    ("Pass at most as many", lambda: set_with_body()(out(), ones((2,))).sync()),
    ("or declare more", lambda: set_with_body("c[3]")(out(), ones((3,))).sync()),
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
SUMS: Final = declare(f"{ONE}) {{ extern __shared__ float s[]; y[0] = s[0]; }}")
case(
    lambda: SUMS(out()).sync(),
    (
        "@kernel(shared_memory=1024, ...)",
        lambda: kernel(cuda=SUMS.spec.cuda, shared_memory=1024)(one_output).new((N,), TILE)().to_host(),
    ),
    ("or k.shared_memory(1024)", lambda: SUMS.shared_memory(1024)(out()).sync()),
    ("0 if it needs none", lambda: SUMS.shared_memory(0)(out()).sync()),
)
case(
    lambda: declare(MET_TEXT, shared_memory=-1),
    ("Give a number of bytes, 0 or more", lambda: declare(MET_TEXT, shared_memory=0)),
)
case(
    lambda: declare(MET_TEXT, cluster=(4, 4)),
    ("A cluster has at most 8, all its extents multiplied", lambda: declare(MET_TEXT, cluster=(4, 2))),
)
MET_INPUT: Final = f"{ONE}, View<const float, 1> c) {{ y[0] = c[0]; {MEET}}}"
case(
    lambda: declare_with_input(MET_INPUT, sees={"c": Here()}),
    ("Leave sees= out", lambda: declare_with_input(MET_INPUT)),
)
case(
    lambda: MET(many()).sync(),
    ("Give fewer: k.grid(...)", lambda: MET.grid(4)(many()).sync()),
    ("or another tile", lambda: MET(out()).sync()),
    simulated=True,
)
PAIRS: Final = declare(f"{ONE}) {{ y[0] = 1; }}", cluster=2)
case(
    lambda: PAIRS(odd()).sync(),
    ("Give another grid: k.grid(...)", lambda: PAIRS.grid(4)(odd()).sync()),
    ("or another tile", lambda: PAIRS(many()).sync()),
    simulated=True,
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
    ("or pass the variable as an argument of the kernel", lambda: while_it_runs(counted_with_output)),
)

case(
    lambda: while_it_runs(lambda: UNREAD(out())),
    ("(name the file itself)", lambda: while_it_runs(lambda: READ(out()))),
    ("Await that run first", lambda: while_it_runs(lambda: UNREAD(out()), after=True)),
    ("or pass the variable as an argument of the kernel", lambda: while_it_runs(counted_with_output)),
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
