"""Task graphs of the scheduling literature, as programs of kernels whose times are known.

- Random graphs by the recipe of the Standard Task Graph Set (T. Tobita and H. Kasahara, "A standard task graph set for
  fair evaluation of multiprocessor scheduling algorithms", Journal of Scheduling 5, 2002): four ways to draw edges, and
  three distributions of times. The instances themselves are not among them.
- Factorisations in tiles (Cholesky, LU, QR), the fast Fourier transform, Gaussian elimination and the Laplace
  wavefront, as in Topcuoglu, Hariri and Wu (2002) and Arabnejad and Barbosa (2014).
- The shapes of scientific workflows: Montage, 1000Genomes, Epigenomics and LIGO (G. Juve et al., "Characterizing and
  profiling scientific workflows", Future Generation Computer Systems 29, 2013).

A task makes one array, which all of its successors read. Its bytes take `ccr` times the mean time of a task on a link:
the ratio of communication to computation by which the papers sort their graphs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Final, TypeAlias, final

from dagpu import CostModel
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.policies import SingleStream
from dagpu.plans.program import Buffer, Launch, Program, Role
from tests.programs.plain_programs import kernel

UNIT: Final = 100e-6
"""Seconds of a unit of time of a graph."""


@final
@dataclass(slots=True)
class TaskGraph:
    """Tasks with their times and predecessors. Tasks are added after their predecessors."""

    name: str
    units: list[float]
    """For each task its time, in units."""
    before: list[list[int]]
    """For each task its predecessors."""
    sizes: list[float]
    """For each task the size of its result, relative to that of others."""

    def add(self, units: float, *before: int, size: float = 1.0) -> int:
        """Add a task, and return its number."""
        self.units.append(units)
        self.before.append(sorted({*before}))
        self.sizes.append(size)
        return len(self.units) - 1

    def program(self, device: str, ccr: float = 0.0, costs: CostModel | None = None) -> Program:
        """Return the graph as a program on a device, which may be automatic: a kernel a task.

        A copy of a result takes `ccr` times the mean time of a task, as `costs` has the links.
        """
        peer = (CostModel() if costs is None else costs).links.peer
        seconds = [units * UNIT for units in self.units]
        share = ccr * sum(seconds) / max(sum(self.sizes), 1e-9)
        buffers = [
            Buffer(max(int((share * size - peer.latency) * peer.bandwidth), 4), 0, Role.TEMPORARY)
            for size in self.sizes
        ]
        launches = [
            Launch(_kernel(took), (), (1,), tuple(before), (index,), 0, None)
            for index, (took, before) in enumerate(zip(seconds, self.before, strict=True))
        ]
        return Program((device,), tuple(buffers), tuple(launches), (SingleStream(),), (0,) * len(launches))


@lru_cache(maxsize=4096)
def _kernel(seconds: float) -> KernelSpec:
    """Return a kernel that takes so long."""
    return replace(kernel(f"task{seconds}"), seconds=seconds)


def _empty(name: str) -> TaskGraph:
    return TaskGraph(name, [], [], [])


# ---- random graphs by the recipe of the Standard Task Graph Set

_TIMES: Final[dict[str, Callable[[Random], float]]] = {
    "unifproc": lambda random: random.randint(1, 19),
    "expproc": lambda random: max(1, round(random.expovariate(1 / 10))),
    "normproc": lambda random: max(1, round(random.gauss(10, 3))),
}


def _same_prob(random: Random, count: int, density: float) -> list[list[int]]:
    """Each pair of tasks has an edge with the same probability: 0.1 or 0.2, whatever the size."""
    chance = 0.1 if density < 4 else 0.2
    return [[one for one in range(other) if random.random() < chance] for other in range(count)]


def _same_pred(random: Random, count: int, density: float) -> list[list[int]]:
    """Each task has the same number of predecessors on average, among all tasks before it."""
    return [_some(random, range(other), density) for other in range(count)]


def _layers(random: Random, count: int) -> list[range]:
    """Cut the tasks into layers of random widths."""
    found: list[range] = []
    start, mean = 0, max(2, round(count**0.5))
    while start < count:
        width = min(count - start, random.randint(1, 2 * mean - 1))
        found.append(range(start, start + width))
        start += width
    return found


def _layer_prob(random: Random, count: int, density: float) -> list[list[int]]:
    """As `_same_prob`, between tasks of neighbouring layers alone."""
    layers, before = _layers(random, count), list[list[int]]()
    for number, layer in enumerate(layers):
        above = layers[number - 1] if number else range(0)
        chance = min(1.0, density / max(len(above), 1))
        before += [[one for one in above if random.random() < chance] for _ in layer]
    return before


def _layer_pred(random: Random, count: int, density: float) -> list[list[int]]:
    """As `_same_pred`, among the tasks of the layer above alone."""
    layers, before = _layers(random, count), list[list[int]]()
    for number, layer in enumerate(layers):
        above = layers[number - 1] if number else range(0)
        before += [_some(random, above, density) for _ in layer]
    return before


def _some(random: Random, among: range, mean: float) -> list[int]:
    number = min(len(among), random.randint(1, max(1, round(2 * mean - 1))))
    return sorted(random.sample(among, number))


_EDGES: Final = {"sameprob": _same_prob, "samepred": _same_pred, "layrprob": _layer_prob, "layrpred": _layer_pred}


def random_graph(count: int, edges: str, times: str, density: float, seed: int) -> TaskGraph:
    """Return a random graph: the way of its edges, the distribution of its times, mean predecessors of a task."""
    random = Random(f"{count} {edges} {times} {density} {seed}")
    graph = _empty(f"{edges} {times} {density:g} {count}")
    for before in _EDGES[edges](random, count, density):
        graph.add(_TIMES[times](random), *before)
    return graph


def random_graphs(counts: tuple[int, ...] = (50, 100), seeds: int = 1) -> list[TaskGraph]:
    """Return graphs of each way, distribution and density."""
    return [
        random_graph(count, edges, times, density, seed)
        for count in counts
        for edges in _EDGES
        for times in _TIMES
        for density in (1, 3, 5)
        for seed in range(seeds)
    ]


# ---- factorisations in tiles


def cholesky(tiles: int) -> TaskGraph:
    """The tiled Cholesky factorisation; times are relative flops of POTRF, TRSM, SYRK and GEMM."""
    graph, last = _empty(f"cholesky {tiles}"), dict[tuple[int, int], int]()

    def put(units: float, at: tuple[int, int], *reads: tuple[int, int]) -> None:
        last[at] = graph.add(units, *[last[one] for one in (at, *reads) if one in last])

    for k in range(tiles):
        put(2, (k, k))
        for r in range(k + 1, tiles):
            put(3, (r, k), (k, k))
        for r in range(k + 1, tiles):
            put(3, (r, r), (r, k))
            for c in range(k + 1, r):
                put(6, (r, c), (r, k), (c, k))
    return graph


def lu(tiles: int) -> TaskGraph:
    """The tiled LU factorisation without pivots: GETRF, two TRSM, GEMM."""
    graph, last = _empty(f"lu {tiles}"), dict[tuple[int, int], int]()

    def put(units: float, at: tuple[int, int], *reads: tuple[int, int]) -> None:
        last[at] = graph.add(units, *[last[one] for one in (at, *reads) if one in last])

    for k in range(tiles):
        put(2, (k, k))
        for r in range(k + 1, tiles):
            put(3, (r, k), (k, k))
            put(3, (k, r), (k, k))
        for r in range(k + 1, tiles):
            for c in range(k + 1, tiles):
                put(6, (r, c), (r, k), (k, c))
    return graph


def qr(tiles: int) -> TaskGraph:
    """The tiled QR factorisation with a flat tree: GEQRT, UNMQR, TSQRT, TSMQR."""
    graph, last = _empty(f"qr {tiles}"), dict[tuple[int, int], int]()

    def put(units: float, at: tuple[int, int], *needs: int) -> int:
        last[at] = graph.add(units, *needs, *([last[at]] if at in last else []))
        return last[at]

    for k in range(tiles):
        reflector = put(4, (k, k))
        top = [put(6, (k, c), reflector) for c in range(k + 1, tiles)]
        for r in range(k + 1, tiles):
            reflector = put(6, (r, k), reflector)
            for at, c in enumerate(range(k + 1, tiles)):
                top[at] = put(12, (r, c), reflector, top[at])
    return graph


# ---- transforms and wavefronts


def fft(points: int) -> TaskGraph:
    """The fast Fourier transform: a tree of recursive calls, then butterflies. `points` is a power of two."""
    graph, ends = _empty(f"fft {points}"), [0]
    graph.add(10)
    while len(ends) < points:
        ends = [graph.add(10, end) for end in ends for _ in range(2)]
    step = 1
    while step < points:
        ends = [graph.add(10, ends[at], ends[at ^ step]) for at in range(points)]
        step *= 2
    return graph


def gauss(size: int) -> TaskGraph:
    """Gaussian elimination by columns: a pivot, and an update of each column to the right of it."""
    graph, columns = _empty(f"gauss {size}"), [-1] * size
    for k in range(size - 1):
        pivot = graph.add(2 * (size - k), *[columns[k]] if columns[k] >= 0 else [], size=size - k)
        for c in range(k + 1, size):
            columns[c] = graph.add(2 * (size - k), pivot, *[columns[c]] if columns[c] >= 0 else [], size=size - k)
    return graph


def laplace(size: int) -> TaskGraph:
    """A diamond of `size` x `size` tasks, each after those above it and to its left."""
    graph = _empty(f"laplace {size}")
    for r in range(size):
        for c in range(size):
            before = [(r - 1) * size + c] if r else []
            graph.add(10, *before, *([r * size + c - 1] if c else []))
    return graph


def stencil(width: int, steps: int) -> TaskGraph:
    """A stencil in one dimension: each task after three of the step before."""
    graph = _empty(f"stencil {width} x {steps}")
    for step in range(steps):
        base = (step - 1) * width
        for at in range(width):
            near = range(max(0, at - 1), min(width, at + 2)) if step else ()
            graph.add(10, *[base + one for one in near])
    return graph


# ---- scientific workflows


def montage(images: int) -> TaskGraph:
    """Montage: projections, differences of overlapping ones, one fit, corrections, and a mosaic."""
    random, graph = Random(images), _empty(f"montage {images}")
    projected = [graph.add(13 + random.random(), size=4) for _ in range(images)]
    pairs = [(at, at + step) for step in (1, 2) for at in range(images - step)]
    differences = [graph.add(10 + random.random(), projected[a], projected[b], size=0.5) for a, b in pairs]
    model = graph.add(40, graph.add(2.0 * images**0.5, *differences, size=0.1), size=0.1)
    corrected = [graph.add(10 + random.random(), one, model, size=4) for one in projected]
    mosaic = graph.add(20 + images, graph.add(5, *corrected, size=0.1), *corrected, size=8)
    graph.add(10, graph.add(15, mosaic, size=2))
    return graph


def genome(chromosomes: int, parts: int) -> TaskGraph:
    """1000Genomes: for each chromosome its parts, their merge and a sifting, which feed analyses of populations."""
    random, graph = Random(parts), _empty(f"1000genome {chromosomes} x {parts}")
    populations = [graph.add(1, size=0.1) for _ in range(7)]
    for _ in range(chromosomes):
        individuals = [graph.add(random.uniform(40, 60), size=1) for _ in range(parts)]
        merged = graph.add(8 * parts**0.5, *individuals, size=2)
        sifted = graph.add(random.uniform(10, 20), size=0.2)
        for population in populations:
            graph.add(random.uniform(15, 25), merged, sifted, population, size=0.2)
            graph.add(random.uniform(50, 80), merged, sifted, population, size=0.2)
    return graph


def epigenomics(lanes: int, chunks: int) -> TaskGraph:
    """Epigenomics: for each lane a split, chains of four for each chunk, and a merge; then one merge and two steps."""
    random, graph, merged = Random(lanes), _empty(f"epigenomics {lanes} x {chunks}"), list[int]()
    for _ in range(lanes):
        start, ends = graph.add(5), list[int]()
        for _ in range(chunks):
            end = start
            for units in (3, 1, 1, 60):
                end = graph.add(units * random.uniform(0.8, 1.2), end)
            ends.append(end)
        merged.append(graph.add(10, *ends))
    graph.add(20, graph.add(10, graph.add(15, *merged)))
    return graph


def ligo(groups: int, width: int) -> TaskGraph:
    """LIGO Inspiral: banks, matched filters, coincidence of a group, and the same once more."""
    random, graph = Random(width), _empty(f"ligo {groups} x {width}")
    for _ in range(groups):
        filters = [graph.add(random.uniform(40, 60), graph.add(random.uniform(15, 20))) for _ in range(width)]
        gate = graph.add(5, *filters)
        again = [graph.add(random.uniform(40, 60), graph.add(5, gate)) for _ in range(width)]
        graph.add(5, *again)
    return graph


# ---- the sets

Sets: TypeAlias = dict[str, list[TaskGraph]]


def sets(*, small: bool = False) -> Sets:
    """Return the graphs by set. With `small`, few of each, and small ones."""
    if small:
        return {
            "random": random_graphs((20,))[::4],
            "factorisations": [cholesky(4), lu(3), qr(3)],
            "transforms": [fft(8)],
            "wavefronts": [gauss(6), laplace(5), stencil(6, 4)],
            "workflows": [montage(6), genome(1, 6), epigenomics(2, 3), ligo(2, 3)],
        }
    return {
        "random": random_graphs(),
        "factorisations": [make(tiles) for make in (cholesky, lu, qr) for tiles in (4, 6, 8, 10)],
        "transforms": [fft(points) for points in (8, 16, 32, 64)],
        "wavefronts": [
            *[make(size) for make in (gauss, laplace) for size in (6, 9, 12, 15)],
            *[stencil(width, 12) for width in (8, 13, 16)],
        ],
        "workflows": [
            *[montage(images) for images in (8, 16, 30)],
            *[genome(*shape) for shape in ((1, 8), (2, 10), (3, 16))],
            *[epigenomics(*shape) for shape in ((2, 5), (4, 8), (3, 13))],
            *[ligo(*shape) for shape in ((2, 5), (4, 6), (5, 9))],
        ],
    }
