"""PageRank of Python's standard library: which of its modules matter to those that
import them.

    ranks --+--> take(sources) --> times weight --> scatter_add(targets) --+--> damped
            `--> of modules that import nothing --> sum -------------------'

The graph is that of the Python that runs this file: an edge from each module to each
module that it imports. A step is one call of a pipeline. `scatter_add` adds in the
order of the edges, so the ranks have the same bits in every run.
"""

import re
import sys
import sysconfig
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Elem,
    SharedTensor,
    Tensor,
    array,
    expr,
    f64,
    from_host,
    full,
    i32,
    pipeline,
    zeros,
)

DAMPING: Final = 0.85
STEPS: Final = 60
IMPORT: Final = re.compile(r"^\s*(?:from|import) (\w+)", re.MULTILINE)


@final
class Graph(NamedTuple):
    """Modules, and edges (n,) from one that imports to one that is imported."""

    names: list[str]
    sources: NDArray[i32]
    targets: NDArray[i32]

    @property
    def imports(self) -> NDArray[np.int64]:
        """The number of modules that each module imports."""
        return np.bincount(self.sources, minlength=len(self.names))


def standard_library() -> Graph:
    """Return the graph of the modules that are one file, and of those that they
    import."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    found = {
        (path.stem, name)
        for path in files
        for name in IMPORT.findall(path.read_text(encoding="utf-8"))
        if name in sys.stdlib_module_names and name != path.stem
    }
    names = sorted({name for edge in found for name in edge})
    edges = np.array(
        [(names.index(a), names.index(b)) for a, b in sorted(found)], np.int32
    )
    return Graph(names, edges[:, 0].copy(), edges[:, 1].copy())


@expr
def product(x: Elem[f64], weight: Elem[f64]) -> Elem[f64]:
    return x * weight


@expr
def damped(received: Elem[f64], spread: Elem[f64], nodes: Elem[f64]) -> Elem[f64]:
    """Return the rank of a node:

    `spread` is the rank of nodes without edges, of which each node gets a part.
    """
    return (1 - DAMPING) / nodes + DAMPING * (received + spread / nodes)


@pipeline
def step(
    ranks: SharedTensor[f64],
    sources: SharedTensor[i32],
    targets: SharedTensor[i32],
    weights: SharedTensor[f64],
    ends: SharedTensor[f64],
) -> DeviceOp[Tensor[f64]]:
    """Return the next ranks (n,).

    `weights` has a number for each edge; `ends` (n,) is 1 for nodes without one.
    """
    given = product(array.take(ranks, sources), weights)
    received = array.scatter_add(zeros(ranks.shape, f64), targets, given)
    return damped(received, array.sum(product(ranks, ends)), ranks.shape[0])


def page_rank(graph: Graph) -> NDArray[f64]:
    """Return the rank (n,) of each module; their sum is 1."""
    n, imports = len(graph.names), graph.imports
    sources, targets = (
        from_host(part).sync().share() for part in (graph.sources, graph.targets)
    )
    weights = from_host(1 / imports[graph.sources]).sync().share()
    ends = from_host((imports == 0).astype(np.float64)).sync().share()
    ranks = full((n,), 1 / n, f64).sync().share()
    for _ in range(STEPS):
        ranks = step(ranks, sources, targets, weights, ends).sync().share()
    return ranks.to_host().sync()


def by_numpy(graph: Graph) -> NDArray[f64]:
    """Return the same by products with the matrix of the graph."""
    n, imports = len(graph.names), graph.imports
    matrix = np.zeros((n, n))
    matrix[graph.targets, graph.sources] = 1 / imports[graph.sources]
    matrix[:, imports == 0] = 1 / n
    ranks = np.full(n, 1 / n)
    for _ in range(STEPS):
        ranks = (1 - DAMPING) / n + DAMPING * (matrix @ ranks)
    return ranks


def main() -> None:
    graph = standard_library()
    ranks = page_rank(graph)
    print(f"{len(graph.names)} modules, {len(graph.sources)} imports")
    for place in np.argsort(-ranks)[:5]:
        print(f"{graph.names[place]:12} {ranks[place]:.4f}")

    assert abs(ranks.sum() - 1) < 1e-12
    assert np.allclose(ranks, by_numpy(graph), rtol=1e-12, atol=0)


if __name__ == "__main__":
    main()
