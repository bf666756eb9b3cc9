"""Shapes that the plugin infers, and shapes that it must not claim to know.

`# E` stands at the end of a line on which `dagpu-output-partition` must be reported; on no other line may anything be.
"""

import pytest

from tests.support.mypy_checks import Checker, dependencies

pytestmark = pytest.mark.xdist_group("mypy_plugin")

KERNELS = """
from dagpu import In, Out, f32, kernel


@kernel(cuda="__global__ void mean(Tile<float, 1> y, View<const float, 2> x) {}")
def mean(y: Out[f32], x: In[f32]) -> None: ...


@kernel(cuda="__global__ void twist(Tile<float, 1> y, Tile<float, 1> z) {}")
def twist(y: Out[f32], z: Out[f32]) -> None: ...
"""

PROGRAM = """# mypy: disable-error-code="dagpu-use-after-move, dagpu-conflicting-borrow, dagpu-unused-op"
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal, NoReturn

import pytest

import kernels
from dagpu import *
from kernels import mean, twist

WIDTH: Final = 10


def from_numbers(n: int) -> None:
    zeros((10, 8)).partition((4, 4))  # E
    zeros((WIDTH,)).partition((4,))  # E
    zeros((8, n)).partition((3, 4))  # E
    zeros((8, n)).partition((4,))  # E
    zeros((n, n)).partition((4, 0))  # E
    zeros(shape=(2 * WIDTH - 1,)).partition(tile=(4,))  # E
    zeros((n,)).partition((4,))
    zeros((8,)).partition((n,))


def every_creation() -> None:
    arange(10).partition((4,))  # E
    arange(10, f32).partition((4,))  # E
    arange(10, dtype=f32).partition((4,))  # E
    arange(2, 12).partition((4,))  # E
    arange(0, stop=20, step=2).partition((4,))  # E
    arange(0, 10, 0.5).partition((4,))
    arange(0, 12).partition((4,))
    zeros((2, 5)).reshape(-1).partition((4,))  # E
    zeros((2, 6)).reshape((-1, 3)).partition((3, 3))  # E
    zeros((2, 6)).reshape((-1, 3)).partition((2, 3))
    linspace(0, 1, 10).partition((4,))  # E
    eye(10).partition((5, 4))  # E
    eye(10, m=8).partition((5, 4))
    full((10,), 1).partition((4,))  # E
    randn((10,), seed=1).partition((4,))  # E


def edges(sometimes: bool) -> None:
    zeros((10,)).partition((4,), partial=True)
    zeros((10,)).partition((4,), partial=sometimes)
    zeros((10,)).partition((4,), partial=False)  # E
    zeros((10,)).partition((4, 4), partial=True)  # E


def into_new_tensors(n: int, sometimes: bool) -> None:
    mean.new((10,), (4,))  # E
    mean.new(shape=(WIDTH,), tile=(4,))  # E
    mean.new((10,), (4,), partial=True)
    mean.new((10,), (4,), partial=sometimes)
    mean.new((n,), (4,))
    mean.new((8, 8), (4, 4))  # E
    y = mean.new((8,), (4,))(zeros((8, 8)))
    y.partition((3,))  # E
    y.reshape((2, 4)).partition((2, 2))
    made = mean.grid(2).new((10,), (5,))
    made(zeros((8, 8))).partition((4,))  # E
    made(zeros((8, 9)).reshape((9, 8))).sync().partition((2,))


def into_several_new_tensors(n: int, shape: tuple[int, ...]) -> None:
    twist.new(((8,), (8,)), ((4,), (4,)))
    twist.new((shape, (n,)), ((4,), (4,)))
    twist.new(((8,), (10,)), ((4,), (4,)))  # E
    twist.new(((8,), (10,)), ((4,), (4,)), partial=True)
    twist.new(((8,), (8, 8)), ((4,), (4, 4)))  # E


def passed_in_bulk(options: dict[str, bool], sizes: tuple[int, int]) -> None:
    zeros((10,)).partition((4,), **options)
    eye(*sizes).partition((4, 4))


async def through_variables() -> None:
    n = 10
    shape = (n, n + 2)
    t = zeros(shape).sync()
    lent = t.borrow_mut()
    lent.partition((4, 4))  # E
    whole = (await zeros((12,))).partition((4,)).unpartition()
    whole.partition((5,))  # E
    a, b = zip_ops(zeros((6,)), zeros((9,))).unzip()
    a.partition((3,))
    b.partition((2,))  # E
    b.on("host:0").inspect(print).reshape((3, 3)).partition((2, 3))  # E
    first, _ = twist(zeros((6,)).partition((3,)), zeros((6,)).partition((3,))).sync()
    first.unpartition().partition((4,))  # E
    zeros((t.shape[1],)).partition((5,))  # E


def through_closures() -> None:
    zeros((10,)).map(lambda t: t.partition((4,)))  # E
    zeros((10,)).then(lambda t: dup(t)).partition((4,))  # E
    zeros((10,)).then(lambda t: mean(t.partition((4,)), zeros((2, 2))))  # E
    zeros((10,)).map(lambda t: t.reshape((5, 2))).partition((5, 1))


def declared(t: Tensor[f32, tuple[Literal[10], int]], op: DeviceOp[Tensor[f32, tuple[int, int]]]) -> None:
    t.partition((4, 1))  # E
    op.partition((1,))  # E
    op.partition((1, 1))


def bound_again(t: Tensor[f32], rows: list[int]) -> None:
    y = zeros((10,)).sync()
    y = t
    y.partition((4,))
    z = zeros((10,)).sync()
    z = z.reshape((5, 2))
    z.partition((4,))  # E
    for z in [t]:
        z.partition((4,))
    w = zeros((10,)).sync()
    n = 10
    n += len(rows)
    zeros((n,)).partition((4,))
    del w


def where_paths_meet(choice: bool) -> None:
    y = zeros((10,)).sync()
    z = zeros((10,)).sync()
    if choice:
        y = zeros((8,)).sync()
        z = ones((10,)).sync()
    y.partition((4,))
    z.partition((4,))  # E
    (zeros((8,)) if choice else zeros((10,))).partition((4,))


def one_path_leaves(choice: bool) -> None:
    y = zeros((10,)).sync()
    if choice:
        y = zeros((8,)).sync()
        return
    y.partition((4,))  # E


def stop() -> NoReturn:
    raise SystemExit


def one_path_never_returns(choice: bool) -> None:
    y = zeros((10,)).sync()
    if choice:
        y = zeros((8,)).sync()
    else:
        stop()
    y.partition((4,))


def branches_on_what_is_known() -> None:
    n = 10
    t = zeros((n,)).sync()
    if n % 4:
        t.partition((5,))
    else:
        t.partition((4,))
    p = t.partition((4,)) if n % 4 == 0 else t.partition((5,))
    n % 4 == 0 and t.partition((4,))
    while n % 4 == 0:
        t.partition((4,))
    if t.ndim == 2:
        t.partition((1, 1))
    [t.partition((4,)) for _ in range(3) if n % 4 == 0]
    del p


def leaves_by_what_is_known() -> None:
    n = 10
    t = zeros((n,)).sync()
    if n % 4:
        return
    t.partition((4,))


def loops(n: int) -> None:
    y = zeros((10,)).sync()
    z = zeros((12,)).sync()
    for _ in range(n):
        y.partition((4,))  # E
        z = z.reshape((4, 3)) if z.ndim == 1 else z.reshape((12,))
    z.partition((5,))
    y.partition((3,))  # E


def left_in_the_middle_of_a_round(t: Tensor[f32], n: int, done: bool) -> None:
    y = zeros((10,)).sync()
    z = zeros((10,)).sync()
    while True:
        y.partition((4,))  # E
        if done:
            break
        for _ in range(n):
            if n > 2:
                continue
            y = t
        y.partition((4,))
        z.partition((4,))  # E
    y.partition((4,))
    z.partition((4,))  # E


def counted(n: int) -> None:
    size = 2
    while (size := size + 1) < n:
        zeros((size,)).partition((2,))
    zeros((size,)).partition((2,))


def ends_of_a_loop(t: Tensor[f32], n: int) -> None:
    y = zeros((10,)).sync()
    z = zeros((10,)).sync()
    for _ in range(n):
        y = zeros((10,)).sync()
        if n > 4:
            z = t
            break
    else:
        z.partition((4,))  # E
    y.partition((4,))  # E
    z.partition((4,))



def expected_to_fail(t: Tensor[f32]) -> None:
    with pytest.raises(PartitionError):
        zeros((10,)).partition((4,)).sync()
    with suppress(ValueError):
        zeros((10,)).partition((4,)).sync()
    try:
        p = zeros((10,)).partition((4,)).sync()
    except PartitionError:
        p = zeros((10,)).partition((5,)).sync()
    try:
        p = zeros((10,)).partition((4,)).sync()  # E
    except OSError:
        pass
    del p


@contextmanager
def quietly() -> Iterator[None]:
    yield


def left_half_way(t: Tensor[f32]) -> None:
    y = zeros((10,)).sync()
    z = zeros((10,)).sync()
    try:
        y = t
        z.partition((4,))  # E
    finally:
        y.partition((4,))
    with quietly():
        z = t
    z.partition((4,))


def set_elsewhere() -> None:
    n = 10

    def grow() -> None:
        nonlocal n
        n = 12

    def look() -> None:
        zeros((n,)).partition((4,))

    grow()
    look()
    zeros((n,)).partition((4,))


COUNT = 10


def of_the_module() -> None:
    global COUNT
    COUNT = 10
    stop() if COUNT else None
    zeros((COUNT,)).partition((4,))


def matched(value: object) -> None:
    n = 10
    match value:
        case int(n):
            zeros((n,)).partition((4,))
        case [*_]:
            zeros((6,)).partition((4,))  # E
        case _:
            pass
    zeros((n,)).partition((4,))


def walrus() -> None:
    if (n := len("ten")) and (t := zeros((10,)).sync()) is not None:
        zeros((n,)).partition((4,))
        t.partition((4,))  # E


def nested() -> None:
    class Holder:
        size = 10

        def cut(self) -> None:
            zeros((10,)).partition((4,))  # E

    async def inner() -> None:
        (await zeros((10,))).partition((4,))  # E


zeros((10,)).partition((4,))  # E


def ranks(t: Tensor[f32], k: int) -> None:
    mean(zeros((8, 8)).partition((4, 4)), t)  # E
    mean(zeros((k, k)).sync().partition((4, 4)), t)  # E
    kernels.mean.block(32)(zeros((8, 8)).partition((4, 4)), t)  # E
    mean(y=zeros((8, 8)).partition((4, 4)), x=t)  # E
    mean(zeros((8,)).partition((4,)), zeros((8, 8)))
    either = mean if k else mean
    either(zeros((8, 8)).partition((4, 4)), t)


def aliases(o: DeviceOp[Partition[Tensor[f32]]], w: DeviceOp[Tensor[f32]], k: int) -> None:
    z = zeros((8, 8))
    a = z
    mean(z.reshape((64,)).partition((4,)), z)  # E
    mean(a.reshape((64,)).partition((4,)), z)  # E
    mean(o, o.unpartition())  # E
    twist(o, o)  # E
    twist(z=o, y=o)  # E
    mean(w.partition((4,)), zeros((8, 8)))
    mean(z.then(lambda t: value(t.reshape((64,)).partition((4,)))), zeros((8, 8)))
    either = z if k else zeros((8, 8))
    mean(either.reshape((64,)).partition((4,)), z)
    o = mean(o, z).first()
    p, x = mean(o, z).unzip()
    twist(p, mean(p, x).first())
"""


def test_outputs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each wrong output is refused at its line, and nothing else is said."""
    checker = Checker(tmp_path_factory.mktemp("outputs"), dependencies(tmp_path_factory))
    checker.write({"kernels.py": KERNELS, "outputs.py": PROGRAM})
    found = checker.check("outputs.py")
    text = PROGRAM.splitlines()
    wanted = [number for number, line in enumerate(text, start=1) if line.endswith("# E")]
    others = [message for message in found if message.code != "dagpu-output-partition"]
    assert others == []
    lines = [message.line for message in found]
    missed = [(number, text[number - 1]) for number in wanted if number not in lines]
    false = [(number, text[number - 1]) for number in lines if number not in wanted]
    assert (missed, false) == ([], [])
