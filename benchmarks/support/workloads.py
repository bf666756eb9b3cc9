"""The two DAGs of the overhead benchmark, with empty kernels: in dagpu, and in its peers.

    chain:       zeros - k - k - ... - k                 n launches in a row

    fork-join:   zeros - k - ... - k                     four branches that share n - 1 launches between them
                 zeros - k - ... - k  \\
                 zeros - k - ... - k  /  zip - join      and one launch that takes all four
                 zeros - k - ... - k

Every contender calls the same two Python functions, `nothing` and `nothing_joined`, equally often on the same arrays.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, In, Out, Tensor, f32, kernel, zeros, zip_ops

SIZE = 16
BRANCHES = 4
WORKERS = 4
"""Number of threads of every contender, equal to the number of streams of dagpu's default policy."""

Array: TypeAlias = NDArray[f32]
Op: TypeAlias = DeviceOp[Any, Any, Any]


def nothing(y: Array, a: float) -> None:
    """The body of each kernel and each peer's task."""


def nothing_joined(y: Array, b: Array, c: Array, d: Array) -> None:
    """The body of the launch that joins four branches."""


TOUCH_CU = "__global__ void touch(Tile<float, 1> y, float a) {}"
JOIN_CU = """
__global__ void join(Tile<float, 1> y, View<const float, 1> b, View<const float, 1> c, View<const float, 1> d) {}
"""


@kernel(cuda=TOUCH_CU)
def touch(y: Out[f32], a: float) -> None:
    """Leaves y unchanged."""


@kernel(cuda=JOIN_CU)
def join(y: Out[f32], b: In[f32], c: In[f32], d: In[f32]) -> None:
    """Leaves y unchanged, and depends on b, c and d."""


touch.host(nothing)
join.host(nothing_joined)


def lengths(n: int) -> list[int]:
    """Return the number of launches of each branch of a fork-join of `n`: `n - 1`, divided evenly."""
    each, over = divmod(n - 1, BRANCHES)
    return [each + (branch < over) for branch in range(BRANCHES)]


# ---- dagpu


def build_chain(n: int) -> Op:
    """Return an op of `n` launches in a row."""
    op: Op = zeros((SIZE,))
    for _ in range(n):
        op = touch(op.partition((SIZE,)), 1.0).first().unpartition()
    return op


def _joined(parts: tuple[Tensor[f32], Tensor[f32], Tensor[f32], Tensor[f32]]) -> Op:
    a, b, c, d = parts
    return join(a.partition((SIZE,)), b, c, d).first().unpartition()


def build_fork_join(n: int) -> Op:
    """Return an op of `n` launches: four independent branches, and one launch that needs all of them."""
    a, b, c, d = map(build_chain, lengths(n))
    return zip_ops(a, b, c, d).then(_joined)


# ---- by hand: the same calls in a loop, with no scheduling and no threads


def hand_chain(n: int) -> Array:
    """Call the body `n` times on a view of one array, as for a tile."""
    y = np.zeros(SIZE, np.float32)
    for _ in range(n):
        nothing(y[:SIZE], 1.0)
    return y


def hand_fork_join(n: int) -> Array:
    """Run the branches one after another, then the join."""
    a, b, c, d = map(hand_chain, lengths(n))
    nothing_joined(a[:SIZE], b, c, d)
    return a


# ---- concurrent.futures: each task waits for the future it takes


def _futures_task(before: "Future[Array]") -> Array:
    y = before.result()
    nothing(y[:SIZE], 1.0)
    return y


def _futures_join(parts: "list[Future[Array]]") -> Array:
    a, b, c, d = (part.result() for part in parts)
    nothing_joined(a[:SIZE], b, c, d)
    return a


def _futures_branch(pool: ThreadPoolExecutor, n: int) -> "Future[Array]":
    # Tasks start in the order of submission, and each waits only for earlier ones, so there is no deadlock.
    y = pool.submit(np.zeros, SIZE, np.float32)
    for _ in range(n):
        y = pool.submit(_futures_task, y)
    return y


def futures_chain(pool: ThreadPoolExecutor, n: int) -> Array:
    """Run `n` futures, each of which takes the one before."""
    return _futures_branch(pool, n).result()


def futures_fork_join(pool: ThreadPoolExecutor, n: int) -> Array:
    """Run four chains of futures, and one future that takes their ends."""
    ends = [_futures_branch(pool, length) for length in lengths(n)]
    return pool.submit(_futures_join, ends).result()


# ---- dask, with its threaded scheduler: as its users write it, and as a bare graph


def _dask_task(y: Array) -> Array:
    nothing(y[:SIZE], 1.0)
    return y


def _dask_join(a: Array, b: Array, c: Array, d: Array) -> Array:
    nothing_joined(a[:SIZE], b, c, d)
    return a


def delayed_chain(pool: ThreadPoolExecutor, n: int) -> object:
    """Run `n` calls of a `dask.delayed` function."""
    return _delayed_branch(n).compute(scheduler="threads", pool=pool)


def delayed_fork_join(pool: ThreadPoolExecutor, n: int) -> object:
    """Run four chains of delayed calls, and one call that takes their ends."""
    from dask.delayed import delayed

    ends = [_delayed_branch(length) for length in lengths(n)]
    return delayed(_dask_join)(*ends).compute(scheduler="threads", pool=pool)


def _delayed_branch(n: int) -> Any:
    from dask.delayed import delayed

    task = delayed(_dask_task)
    y = delayed(np.zeros)(SIZE, np.float32)
    for _ in range(n):
        y = task(y)
    return y


def _graph_branch(graph: dict[str, tuple[object, ...]], name: str, n: int) -> str:
    key = f"{name}-0"
    graph[key] = (np.zeros, SIZE, np.float32)
    for number in range(1, n + 1):
        before, key = key, f"{name}-{number}"
        graph[key] = (_dask_task, before)
    return key


def graph_chain(pool: ThreadPoolExecutor, n: int) -> object:
    """Run a dict of `n` tasks, passed directly to the threaded scheduler."""
    import dask.threaded

    graph: dict[str, tuple[object, ...]] = {}
    end = _graph_branch(graph, "a", n)
    return dask.threaded.get(graph, end, pool=pool)


def graph_fork_join(pool: ThreadPoolExecutor, n: int) -> object:
    """Run a dict of tasks with four branches and a join."""
    import dask.threaded

    graph: dict[str, tuple[object, ...]] = {}
    ends = [_graph_branch(graph, name, length) for name, length in zip("abcd", lengths(n), strict=True)]
    graph["join"] = (_dask_join, *ends)
    return dask.threaded.get(graph, "join", pool=pool)


BUILDS: dict[str, Callable[[int], Op]] = {"chain": build_chain, "fork-join": build_fork_join}
HAND: dict[str, Callable[[int], object]] = {"chain": hand_chain, "fork-join": hand_fork_join}
PEERS: dict[str, dict[str, Callable[[ThreadPoolExecutor, int], object]]] = {
    "concurrent.futures": {"chain": futures_chain, "fork-join": futures_fork_join},
    "dask.threaded.get": {"chain": graph_chain, "fork-join": graph_fork_join},
    "dask.delayed": {"chain": delayed_chain, "fork-join": delayed_fork_join},
}

__all__ = ["BUILDS", "HAND", "PEERS", "WORKERS", "Op"]
