"""Ops of any number of instructions in five shapes, to measure what planning costs as work grows.

    chain       n launches in a row
    fan-out     one tensor, and n - 1 launches that read it
    fan-in      n - 1 launches, and one function of the host that reads all that they make
    fork-join   four chains, and one launch that reads their ends
    random      n launches, each of which reads one to three of the `WINDOW` before it

The kernels have empty bodies, so nothing is known of their costs: on a mesh they are worth a device of their own.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from benchmarks.support.workloads import TOUCH_CU, Op, build_chain, build_fork_join
from dagpu import In, Out, empty, f32, kernel, zip_ops

SIZE: Final = 1 << 14
"""Elements of a tensor: enough bytes that it matters where a plan puts it."""
WINDOW: Final = 200
"""How far back a launch of the random shape reads, in launches."""

_TAKE_CU: Final = TOUCH_CU.replace("touch", "take").replace("float a", "View<const float, 1> a")
_BLEND_CU: Final = _TAKE_CU.replace("take", "blend").replace("> a)", "> a, View<const float, 1> b)")
_MERGE_CU: Final = _BLEND_CU.replace("blend", "merge").replace("> b)", "> b, View<const float, 1> c)")


@kernel(cuda=TOUCH_CU.replace("touch", "begin").replace(", float a", ""))
def begin(y: Out[f32]) -> None:
    """Reads nothing."""


@kernel(cuda=_TAKE_CU)
def take(y: Out[f32], a: In[f32]) -> None:
    """Reads one tensor."""


@kernel(cuda=_BLEND_CU)
def blend(y: Out[f32], a: In[f32], b: In[f32]) -> None:
    """Reads two tensors."""


@kernel(cuda=_MERGE_CU)
def merge(y: Out[f32], a: In[f32], b: In[f32], c: In[f32]) -> None:
    """Reads three tensors."""


_BY_READS: Final[tuple[Callable[..., Any], ...]] = (begin, take, blend, merge)


def launched(*reads: Op) -> Op:
    """Return a launch that makes a tensor, and reads up to three."""
    made: Op = _BY_READS[len(reads)](empty((SIZE,)).partition((SIZE,)), *reads).first().unpartition()
    return made


def _count(parts: tuple[Any, ...]) -> int:
    return len(parts)


def build_fan_out(n: int) -> Op:
    """Return an op of one launch, and `n - 1` that read its tensor."""
    root = launched().shared()
    return zip_ops(*[launched(root) for _ in range(n - 1)])


def build_fan_in(n: int) -> Op:
    """Return an op of `n - 1` launches, and one function of the host that reads all of their tensors."""
    return zip_ops(*[launched() for _ in range(n - 1)]).host_map(_count)


def build_random(n: int) -> Op:
    """Return a random DAG of `n` launches."""
    random = Random(n)
    made: list[Op] = []
    unread = set[int]()
    for at in range(n):
        nearby = range(max(0, at - WINDOW), at)
        reads = random.sample(nearby, min(len(nearby), random.randint(1, 3)))
        unread.difference_update(reads)
        unread.add(at)
        made.append(launched(*[made[earlier] for earlier in reads]).shared())
    return zip_ops(*[made[at] for at in sorted(unread)])


SHAPES: Final[dict[str, Callable[[int], Op]]] = {
    "chain": build_chain,
    "fan-out": build_fan_out,
    "fan-in": build_fan_in,
    "fork-join": build_fork_join,
    "random": build_random,
}
