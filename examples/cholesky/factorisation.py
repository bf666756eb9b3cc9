"""Factors a symmetric positive definite matrix, A = L L^T, in tiles: one op of more
than a hundred kernels.

    python -m examples.cholesky [--quick] [--tiles 8] [--edge 96] [--streams 4]
                                [--devices cuda:0 cuda:1] [--out cholesky.svg]

    for k:  factor (k, k);  for r > k: solve (r, k);
            for r >= c > k: update (r, c) with (r, k) and (c, k)

This loop builds the DAG, without any statement about overlap. In the first steps most
updates are independent, and in the last hardly any. The scheduler finds the updates
that delay the others. A run on one stream under `dagpu.trace` measures the cost of the
kernels, and the next run is planned with these costs: critical path first. With
`--devices` the tiles are spread over several devices, each kernel where it is done
soonest. Prints the predicted and the measured time of the plan, and the lower bound for
any plan; writes the lanes as a picture. The factor is compared with
numpy.linalg.cholesky, and has the same bits on one stream as on several.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import dagpu
from dagpu import (
    CostModel,
    DeviceOp,
    ListSchedule,
    Mesh,
    SchedulingPolicy,
    SharedTensor,
    SingleStream,
    Spread,
    Tensor,
    current_device,
    f64,
    from_host,
    plan_of,
    zip_ops,
)
from dagpu.plans.drawing import picture
from examples.cholesky.kernels import factor, solve, update

Matrix: TypeAlias = NDArray[np.float64]
Place: TypeAlias = tuple[int, int]

STEP = 16  # the tile of the kernels; edges are multiples of it
TOLD = ("Plan:", "Critical path", "Makespan", "Memory", "Overlap", "Branches")
"""Beginnings of the lines of `explain` that are printed."""


# ---- the pipeline -----------------------------------------------------------


def cholesky(matrix: Matrix, tiles: int) -> DeviceOp[tuple[Matrix, ...]]:
    """The lower tiles of L, row by row, of a matrix (n, n) in `tiles` x `tiles` tiles
    (right-looking).

    Each tile is a separate tensor, so kernels depend on each other only through tiles
    that they share. A tile is owned while it is updated in place, and shared once it is
    final and other kernels read it. (A `shared()` op keeps its result: build a new op
    to compute again.)
    """
    edge = len(matrix) // tiles
    rest: dict[Place, DeviceOp[Tensor[f64]]] = {}
    final: dict[Place, DeviceOp[SharedTensor[f64]]] = {}
    for r, c in lower(tiles):
        rest[r, c] = from_host(
            matrix[r * edge : (r + 1) * edge, c * edge : (c + 1) * edge]
        )
    for k in range(tiles):
        final[k, k] = (
            factor(rest[k, k].partition((edge, edge))).first().unpartition().shared()
        )
        for r in range(k + 1, tiles):
            final[r, k] = (
                solve(rest[r, k].partition((STEP, edge)), final[k, k])
                .first()
                .unpartition()
                .shared()
            )
        for r in range(k + 1, tiles):
            for c in range(k + 1, r + 1):
                part = rest[r, c].partition((STEP, STEP))
                rest[r, c] = (
                    update(part, final[r, k], final[c, k]).first().unpartition()
                )
    return zip_ops(*(final[place].to_host() for place in lower(tiles)))


def lower(tiles: int) -> list[Place]:
    """Return the places on and below the diagonal, row by row."""
    return [(r, c) for r in range(tiles) for c in range(r + 1)]


# ---- the job ----------------------------------------------------------------


def covariance(points: int) -> Matrix:
    """Return a covariance matrix as in Gaussian processes: exp(-d^2 / 2) of random
    points in a plane, plus noise."""
    at = np.random.default_rng(0).uniform(0, 20, (points, 2))
    distance = np.square(at[:, None] - at[None]).sum(axis=2)
    return np.asarray(np.exp(-distance / 2) + 0.01 * np.eye(points))


def assembled(parts: Sequence[Matrix], tiles: int) -> Matrix:
    """Return L as one matrix."""
    edge = len(parts[0])
    whole = np.zeros((tiles * edge, tiles * edge))
    for (r, c), part in zip(lower(tiles), parts, strict=True):
        whole[r * edge : (r + 1) * edge, c * edge : (c + 1) * edge] = part
    return whole


def check(matrix: Matrix, found: Matrix) -> tuple[float, float]:
    """Return the residual |A - L L^T| / |A| and the distance from NumPy's factor, in
    Frobenius norm, after asserting that both are small. Unit: n eps, which bounds the
    residual (Higham, Accuracy and Stability, theorem 10.3)."""
    unit = len(matrix) * float(np.finfo(np.float64).eps)
    residual = (
        float(np.linalg.norm(matrix - found @ found.T) / np.linalg.norm(matrix)) / unit
    )
    expected = np.linalg.cholesky(matrix)
    distance = float(np.linalg.norm(found - expected) / np.linalg.norm(expected)) / unit
    assert residual < 1, residual
    # The error of the factor itself is bounded by that times the condition number of
    # the matrix.
    assert distance < float(np.linalg.cond(matrix)), distance
    assert not np.triu(found, 1).any()
    return residual, distance


def job(given: argparse.Namespace) -> None:
    tiles, matrix = given.tiles, covariance(given.tiles * given.edge)
    with dagpu.use_device(given.devices[0] if given.devices else current_device()):
        first = cholesky(matrix, tiles).sync()  # compiles the kernels on a GPU
        with dagpu.trace() as probe:  # the time of each kernel when nothing else runs
            alone = cholesky(matrix, tiles).schedule(SingleStream()).sync()
    costs = CostModel().learn(probe.kernel_times())
    policy: SchedulingPolicy = ListSchedule(given.streams, costs)
    if given.devices:
        policy = Spread(Mesh(given.devices), given.streams, costs)
    op = cholesky(matrix, tiles).schedule(policy)
    told = [
        line.rstrip(":") for line in op.explain().splitlines() if line.startswith(TOLD)
    ]
    given.out.write_text(picture(plan_of(op), costs), encoding="utf-8")
    with dagpu.trace(costs=costs) as trace:
        parts = op.sync()

    residual, distance = check(matrix, assembled(parts, tiles))
    where = " ".join(given.devices) or current_device().name
    print(f"{len(matrix)} x {len(matrix)} in {tiles} x {tiles} tiles on {where}")
    print(*told, "", trace, "", sep="\n")
    print(
        f"|A - L L^T| / |A| is {residual:.2g} n eps; from numpy.linalg.cholesky "
        f"{distance:.2g} n eps"
    )
    print(f"wrote {given.out}: what the plan runs where, and when")
    for one, other, third in zip(parts, alone, first, strict=True):
        assert np.array_equal(one, other), (
            "any schedule gives the same bits, on any devices"
        )
        assert np.array_equal(one, third), "and so does every run"
    (run,) = trace.runs
    assert run.predicted.makespan >= run.predicted.bound


def at_least(least: int, step: int = 1) -> Callable[[str], int]:
    """Return a parser of whole numbers for argparse:

    `least` or more, and a multiple of `step`.
    """

    def number(text: str) -> int:
        if int(text) < least or int(text) % step:
            multiple = f", or no multiple of {step}" if step > 1 else ""
            raise argparse.ArgumentTypeError(f"{text} is less than {least}{multiple}")
        return int(text)

    return number


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.cholesky",
        description="Tiled Cholesky factorisation as a DAG of dagpu kernels.",
    )
    parser.add_argument("--quick", action="store_true", help="5 x 5 tiles of 32")
    parser.add_argument("--tiles", type=at_least(1), help="tiles along each axis (8)")
    parser.add_argument(
        "--edge",
        type=at_least(STEP, STEP),
        help=f"of a tile, a multiple of {STEP} (96)",
    )
    parser.add_argument(
        "--streams", type=at_least(1), default=4, help="for kernels (4)"
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        default=(),
        help="devices to spread the tiles over (the current one)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("cholesky.svg"),
        help="picture to write (cholesky.svg)",
    )
    given = parser.parse_args(arguments)
    given.tiles = given.tiles or (5 if given.quick else 8)
    given.edge = given.edge or (32 if given.quick else 96)
    return given


def main(arguments: Sequence[str]) -> None:
    job(parsed(arguments))
