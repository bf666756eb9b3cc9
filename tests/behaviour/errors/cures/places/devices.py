"""Mistakes with explore devices and GPUs, and functions with other arguments."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    CostModel,
    DeviceOp,
    In,
    Link,
    Links,
    Mesh,
    Out,
    Spread,
    Tensor,
    Tile,
    arange,
    device,
    dup,
    empty,
    f32,
    from_host,
    kernel,
    memcpy,
    ones,
    pipeline,
    use_device,
    use_mesh,
    value,
    zeros,
    zip_ops,
)
from dagpu.testing import exploring
from tests.behaviour.errors.cures.catalogue import (
    ONE,
    SCALE,
    TILE,
    Catalogue,
    Gives,
    N,
    anything,
    awaits,
    cuda,
    declare,
    lazily,
    new,
    out,
    scale,
    suppressed_groups,
)
from tests.simulated.kernels import Violation

CATALOGUE = Catalogue()
case = CATALOGUE.add


def shifting(y: Any, x: Any) -> None:
    y[...] = np.roll(x[...], 1)[y.at]


def in_place(body: Any, *, says: bool = True) -> object:
    @kernel(cuda="__global__ void k(Tile<float, 1> y, View<const float, 1> x) {}", in_place=says)
    def k(y: Out[f32], x: In[f32]) -> None: ...

    k.host(body)
    with use_device("explore:0"):
        return k(empty((N,)).partition((N,)), arange(N)).first().unpartition().to_host().sync()


def elementwise(y: Any, x: Any) -> None:
    y[...] = x[y.at]


# ---- explore devices


case(
    lambda: in_place(shifting),
    ("Leave in_place=True out", lambda: in_place(shifting, says=False)),
    ("read an element of that input only to write the same one", lambda: in_place(elementwise)),
)


def explored(*, on: str = "explore:0", **asked: Any) -> object:
    with exploring(**asked), use_device(on):
        return zip_ops(ones((2,)), zeros((2,))).sync()


case(
    lambda: explored(seed=1, choices=[0]),
    ("not both", lambda: explored(seed=1)),
)
case(
    lambda: explored(on="host"),
    ('Put use_device("explore:0") around it', explored),
)
case(
    lambda: explored(choices=[7]),
    ("Choices belong to the plan they were made for", lambda: explored(choices=[])),
)


def explored_out_of_memory() -> object:
    with use_device("explore:0"):
        return ones((1 << 50,)).sync()


case(
    explored_out_of_memory,
    ("Drop handles that are no longer needed", explored),
    ("cut the work into smaller pieces", explored),
)
case(
    lambda: lazily(out(), anything("2")),
    ("Convert it with float(...) if that is meant", lambda: lazily(out(), float("2")).sync()),
)
case(
    lambda: lazily(out(), anything(new(1))),
    (
        "Take the number out of it first, on the host: .to_host()",
        lambda: lazily(out(), new(1).to_host().map(lambda a: a.item())).sync(),
    ),
)
case(partial(declare, cuda(f"{ONE}, void by")), ("Write the C type out", partial(declare, SCALE)))


def changed_in_the_run() -> object:
    array = np.zeros(4, f32)
    return zip_ops(from_host(array), value((2, 2)).map(lambda shape: array.resize(shape, refcheck=False))).sync()


case(
    changed_in_the_run,
    ("Do not change the array in place between giving it and the run", lambda: from_host(np.zeros(4, f32)).sync()),
)


def plus(a: int, b: int) -> int:
    return a + b


def three() -> int:
    return 3


def with_factor(a: int, *, by: int) -> int:
    return a * by


# ---- functions with other arguments


case(
    lambda: value((1, 2)).map(anything(plus)).sync(),
    ("unpack it: .map(lambda x: f(*x))", lambda: value((1, 2)).map(lambda x: plus(*x)).sync()),
)
case(
    lambda: value(1).host_map(anything(three)),
    ("Write .host_map(lambda _: f())", lambda: value(1).host_map(lambda _: three())),
)
case(
    lambda: value(1).map(anything(with_factor)),
    ("lambda x: f(x, ...)", lambda: value(1).map(lambda x: with_factor(x, by=2)).sync()),
)


@pipeline
def uploaded(x: NDArray[f32], by: float = 1.0) -> DeviceOp[Tensor[f32]]:
    return from_host(x)


case(lambda: anything(uploaded)(), ("call uploaded(x, by=1.0)", lambda: uploaded(np.ones(2, f32), by=1.0).sync()))


def while_it_is_read(work: Callable[[Any, Any], DeviceOp[Any]]) -> object:
    """Like `while_it_is_written`, of a tensor that another run reads."""
    t = new()
    copy = dup(t.borrow()).sync()
    begun, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        go_on.wait(30)

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(awaits, zip_ops(dup(t.borrow()), value(0).host_map(hold)))
            await trio.to_thread.run_sync(begun.wait, 30)
            try:
                return await work(t, copy)
            finally:
                go_on.set()

    with suppressed_groups():
        return trio.run(main)


case(
    lambda: while_it_is_read(lambda t, _: scale(t.borrow_mut().partition(TILE), 2.0)),
    (
        "work on a copy that was made before it: dup(t.borrow())",
        lambda: while_it_is_read(lambda _, copy: scale(copy.borrow_mut().partition(TILE), 2.0)),
    ),
)


on_gpus = partial(case, simulated=True)


# ---- GPUs


on_gpus(lambda: device("cuda:5"), ("Use one of these", lambda: (device("cuda:0"), device("cuda:1"))))
on_gpus(
    lambda: ones((1 << 40,)).sync(),
    ("Drop handles that are no longer needed", lambda: ones((1 << 5,)).sync()),
    ("cut the work into smaller pieces", lambda: ones((1 << 5,)).sync()),
)
on_gpus(
    lambda: scale.shared_memory(300 << 10)(out(), 2.0).sync(),
    ("Give fewer: scale.shared_memory(...)", lambda: scale.shared_memory(1 << 10)(out(), 2.0).sync()),
)


@kernel(cuda="__global__ void plain(float* y, const float* x) {}", abi="pointers", block=4)
def plain(y: Out[f32], x: In[f32]) -> None:
    """y = x, by pointers"""


@plain.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at]


@kernel(cuda="__global__ void viewed(Tile<float, 1> y, View<const float, 1> x) {}")
def viewed(y: Out[f32], x: In[f32]) -> None:
    """y = x, by views"""


@viewed.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at]


def strided(call: Any, *, copied: bool = False) -> object:
    t = new(2 * N)
    part = t.slice(slice(None, None, 2))
    return call(empty((N,)).partition(TILE), dup(part) if copied else part).sync()


def strided_output(call: Any, *, copied: bool = False) -> None:
    t = zeros((2 * N,)).sync()
    part = t.borrow_mut()[::2]
    if copied:
        made = call(empty((N,)).partition(TILE), new(N)).first().unpartition().sync()
        memcpy(part, made).sync()
    else:
        call(part.partition(TILE), new(N)).sync()
    found = t.borrow().to_host().sync()
    assert found[::2].any()
    assert not found[1::2].any()


@kernel(cuda="__global__ void cleared(float* y) {}", abi="pointers", block=1024)
def cleared(y: Out[f32]) -> None:
    """y = 0, by pointers"""


@kernel(cuda="__global__ void open_block(float* y) {}", abi="pointers")
def open_block(y: Out[f32]) -> None:
    """y = 0, with blocks of any size"""


def a(y: Out[f32]) -> None:
    """y = 0"""


@cleared.host
def _(y: Tile[f32]) -> None:
    y[...] = 0


on_gpus(
    lambda: cleared(empty((1, 1 << 17)).partition((1, 1))).sync(),
    ("Give larger tiles", lambda: cleared(empty((1, 1 << 17)).partition((1, 1 << 10))).sync()),
)
case(
    lambda: open_block(out()),
    (
        "Say how many threads a block has: @kernel(block=256",
        lambda: kernel(cuda="__global__ void a(float* y) {}", abi="pointers", block=256)(a)(out()),
    ),
    ("or open_block.block(256)", lambda: open_block.block(256)(out())),
)
case(
    lambda: cleared.block(2)(out()).sync(),
    ("Give smaller tiles", lambda: cleared.block(2)(empty((N,)).partition((2,))).sync()),
    ("cleared.grid(4) if each thread writes one element", lambda: cleared.block(2).grid(4)(out()).sync()),
    ("cleared.grid(2) if it writes several", lambda: cleared.block(2).grid(2)(out()).sync()),
)
on_gpus(
    lambda: strided(plain),
    ("Make it contiguous with dup(...)", lambda: strided(plain, copied=True)),
    ('use abi="views"', lambda: strided(viewed)),
)
case(
    lambda: strided_output(plain),
    (
        "Write to a contiguous tensor of its own, and copy it into the part after that: memcpy(part, made)",
        lambda: strided_output(plain, copied=True),
    ),
    ('use abi="views"', lambda: strided_output(viewed)),
)
on_gpus(
    lambda: ones((2,)).schedule(Gives(lambda n: ["a"] * n)).sync(),
    ("Use a number", lambda: ones((2,)).schedule(Gives(lambda n: [0] * n)).sync()),
)


def on_two_streams(*, same: bool) -> object:
    first = device("cuda:0").stream()
    second = first if same else device("cuda:0").stream()
    return zip_ops(ones((2,)).on(anything(first)), ones((2,)).on(anything(second))).graph()


on_gpus(lambda: on_two_streams(same=False), ("Use only one of them", lambda: on_two_streams(same=True)))


@kernel(cuda="__global__ void stray(Tile<float, 1> y, int by) {}", checked=True)
def stray(y: Out[f32], by: int) -> None:
    """y = by, and `by` elements beyond."""


@stray.host
def _(y: Tile[f32], by: int) -> None:
    y[...] = by
    if by:
        raise Violation(0, (N + by,), (N,), 0)


on_gpus(
    lambda: stray(zeros((N,)).partition((N,)), 3).sync(),
    ("Correct the index in the kernel", lambda: stray(zeros((N,)).partition((N,)), 0).sync()),
)


# ---- meshes


def pair() -> Mesh:
    return Mesh(["host:0", "host:1"])


GPUS = 'Write Mesh(["cuda:0", "cuda:1"])', lambda: Mesh(["cuda:0", "cuda:1"])
on_gpus(lambda: Mesh([]), GPUS)
on_gpus(lambda: Mesh(["cuda:0", "host:0"]), GPUS)
case(
    lambda: Mesh(["host:99"]),
    ("Use one of these", lambda: Mesh(["host:0", "host:7"])),
)
case(lambda: Mesh(["host:0", "host:1"], (3,)), ("Write shape=(2,)", lambda: Mesh(["host:0", "host:1"], shape=(2,))))
case(
    lambda: Mesh(["host:0", "host:1"], (2, 1)),
    ('Write axes=("rows", "columns")', lambda: Mesh(["host:0", "host:1"], (2, 1), axes=("rows", "columns"))),
)
case(lambda: pair().along("rows"), ("Write .along('devices')", lambda: pair().along("devices")))
on_gpus(
    lambda: use_mesh(anything(["cuda:0"])),
    ('Write use_mesh(Mesh(["cuda:0", "cuda:1"]))', lambda: use_mesh(Mesh(["cuda:0", "cuda:1"]))),
)
case(lambda: Link(-1.0, 1e9), ("Write Link(5e-6, 382e9), say", lambda: Link(5e-6, 382e9)))
case(lambda: Links(peer=anything(1e9)), ("Write peer=Link(5e-6, 382e9)", lambda: Links(peer=Link(5e-6, 382e9))))
case(lambda: CostModel(links=anything(3)), ("Write links=Links(), say", lambda: CostModel(links=Links())))
on_gpus(
    lambda: Links.measured(anything(["cuda:0"])),
    ('Write Links.measured(Mesh(["cuda:0", "cuda:1"]))', lambda: Links.measured(Mesh(["cuda:0", "cuda:1"]))),
)
on_gpus(
    lambda: Links().between(anything("cuda:0"), device("cuda:1")),
    (
        'Write between(device("cuda:0"), device("cuda:1"))',
        lambda: Links().between(device("cuda:0"), device("cuda:1")),
    ),
)
on_gpus(
    Spread,
    ('Name the devices: Spread(Mesh(["cuda:0", "cuda:1"]))', lambda: Spread(Mesh(["cuda:0", "cuda:1"]))),
)
on_gpus(
    lambda: Spread(anything(["cuda:0"])),
    ('Write Spread(Mesh(["cuda:0", "cuda:1"]))', lambda: Spread(Mesh(["cuda:0", "cuda:1"]))),
)
case(
    lambda: Spread(pair(), costs=anything(3)),
    ("Write costs=CostModel()", lambda: Spread(pair(), costs=CostModel())),
    ("leave it out", lambda: Spread(pair())),
)
case(lambda: Spread(pair(), shun_moves=-1), ("Write shun_moves=0.3", lambda: Spread(pair(), shun_moves=0.3)))
case(
    lambda: Spread(pair(), memory_limit={"cuda:0": 1}),
    ("Write memory_limit=8 << 20 for 8 MiB on each device", lambda: Spread(pair(), memory_limit=8 << 20)),
    ("leave it out", lambda: Spread(pair())),
)


def over_two_meshes(one: Mesh, other: Mesh) -> object:
    return zip_ops(ones((2,)).schedule(Spread(one)), ones((2,)).schedule(Spread(other))).sync()


case(
    lambda: over_two_meshes(pair(), Mesh(["host:2"])),
    ("Use one mesh in all of the op", lambda: over_two_meshes(pair(), pair())),
    (
        "run the two parts one after the other",
        lambda: [ones((2,)).schedule(Spread(mesh)).sync() for mesh in (pair(), Mesh(["host:2"]))],
    ),
)


@final
@dataclass(frozen=True)
class Chooses:
    """A policy that chooses what it is told to."""

    mesh: Mesh
    choices: Callable[[int], Any]

    def assign(self, program: Any, mesh: Mesh, /) -> Any:
        return self.choices(len(program.instructions))

    def place(self, program: Any) -> Any:
        return [0] * len(program.instructions)


case(
    lambda: ones((2,)).schedule(Chooses(pair(), lambda n: [])).sync(),
    (
        "Return a list of indices of mesh.devices",
        lambda: ones((2,)).schedule(Chooses(pair(), lambda n: [1] * n)).sync(),
    ),
)


def exchanged(x: Any, y: Any) -> object:
    """Both tensors are written by one kernel."""
    return swap(x.partition((N,)), y.partition((N,))).sync()


@kernel(cuda="__global__ void swap(Tile<float, 1> x, Tile<float, 1> y) {}")
def swap(x: Out[f32], y: Out[f32]) -> None:
    """x, y = y, x"""


@swap.host
def _(x: Tile[f32], y: Tile[f32]) -> None:
    x[...], y[...] = y[...].copy(), x[...].copy()


case(
    lambda: exchanged(ones((N,)).on("host:0"), ones((N,)).on("host:1")),
    (
        'dup(t).on("host:0")',
        lambda: exchanged(ones((N,)).on("host:0"), ones((N,)).on("host:1").then(lambda t: dup(t).on("host:0"))),
    ),
)
