"""Conway's game of life on a torus, as an animation: two boards that alternate, without
a copy between them.

    python examples/life.py [--quick] [--rows 128] [--columns 128] [--frames 120]
                            [--per-frame 2] [--zoom 3] [--density 0.3] [--seed 4]
                            [--out life.gif]

        now, spare --generation--> spare, now     the next one reads what this one wrote

Double buffering fails silently if the wrong board is written. Here this mistake cannot
be expressed: `generation` takes both boards, reads one and overwrites the other, and
returns both, swapped. The old names are unusable, because the boards have moved. The
whole film is one op. The picture of a frame is painted, before the next generation,
into separate memory, so its copy to the host overlaps with the generations that follow.
Pictures take turns in memory too: the op is scheduled with a memory limit of a few
pictures, where it would otherwise take one for each frame.

A living cell is 255, and a dead one fades from 254 down to 0, so the colours show where
life has been. Writes a GIF. The last board is compared with the rules in plain NumPy,
and the last picture in the file with the board.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dagpu import (
    DeviceOp,
    In,
    ListSchedule,
    Out,
    Tensor,
    Tile,
    current_device,
    empty,
    from_host,
    kernel,
    plan_of,
    u8,
    zip_ops,
)

Cells: TypeAlias = NDArray[np.uint8]
Board: TypeAlias = DeviceOp[Tensor[u8]]

TILE = (16, 64)
ALIVE, FADE = 255, 6
HELD = 4  # number of boards, and of pictures, that fit into the memory limit

# ---- kernels ----------------------------------------------------------------

LIVE_CU = """
__global__ void live(Tile<uint8_t, 2> next, View<const uint8_t, 2> now) {
    const int rows = now.extent(0), columns = now.extent(1);
    for (auto i : next) {
        const int above = (i[0] + rows - 1) % rows, row = i[0],
                  below = (i[0] + 1) % rows;
        const int left = (i[1] + columns - 1) % columns, column = i[1],
                  right = (i[1] + 1) % columns;
        const int around = (now(above, left) == 255) + (now(above, column) == 255) +
                           (now(above, right) == 255) + (now(row, left) == 255) +
                           (now(row, right) == 255) + (now(below, left) == 255) +
                           (now(below, column) == 255) + (now(below, right) == 255);
        const int old = now[i];
        next[i] = around == 3 || (around == 2 && old == 255) ? 255 : max(old - 6, 0);
    }
}
"""

PAINT_CU = """
__global__ void paint(
    Tile<uint8_t, 2> picture, View<const uint8_t, 2> board, int zoom
) {
    for (auto i : picture) picture[i] = board(i[0] / zoom, i[1] / zoom);
}
"""


@kernel(cuda=LIVE_CU, block=256)
def live(next: Out[u8], now: In[u8]) -> None:  # noqa: A002  # reason: the natural name
    """Compute the next generation.

    A cell survives with two or three neighbours, is born with three, else fades.
    """


@live.host(whole=True)
def _(next: Tile[u8], now: NDArray[u8]) -> None:  # noqa: A002  # reason: as above
    wide = np.pad(now == ALIVE, 1, mode="wrap").astype(u8)
    beside = wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]
    block = beside[:-2] + beside[1:-1] + beside[2:]  # neighbours, and the cell itself
    np.subtract(now, np.minimum(now, u8(FADE)), out=next)
    next[(block == 3) | ((block == 4) & (now == ALIVE))] = ALIVE


@kernel(cuda=PAINT_CU, block=256)
def paint(picture: Out[u8], board: In[u8], zoom: int) -> None:
    """Paint the board with `zoom` x `zoom` pixels for each cell."""


@paint.host(whole=True)
def _(picture: Tile[u8], board: NDArray[u8], zoom: int) -> None:
    picture[...] = np.repeat(np.repeat(board, zoom, axis=0), zoom, axis=1)


# ---- the pipeline -----------------------------------------------------------


def generation(now: Board, spare: Board) -> tuple[Board, Board]:
    """Return the next board, and the one that may now be overwritten: the two
    arguments, swapped."""
    written, read = live(spare.partition(TILE, partial=True), now).unzip()
    return written.unpartition(), read


def frame(
    now: Board, shape: tuple[int, int], zoom: int
) -> tuple[DeviceOp[Cells], Board]:
    """Return an op that copies a picture of the board to the host; and the board."""
    blank = empty((shape[0] * zoom, shape[1] * zoom), u8).partition(TILE, partial=True)
    picture, read, _ = paint(blank, now, zoom).unzip()
    return picture.unpartition().to_host(), read


def film(
    start: Cells, frames: int, per_frame: int, zoom: int
) -> DeviceOp[tuple[Cells, ...]]:
    """Return an op for `frames` pictures, `per_frame` generations apart, followed by
    the last board."""
    rows, columns = start.shape
    now: Board = from_host(start)
    spare: Board = empty(start.shape, u8)
    pictures: list[DeviceOp[Cells]] = []
    for number in range(frames):
        for _ in range(per_frame if number else 0):
            now, spare = generation(now, spare)
        picture, now = frame(now, (rows, columns), zoom)
        pictures.append(picture)
    return zip_ops(*pictures, now.to_host())


# ---- the same in plain NumPy ------------------------------------------------


def naive(cells: Cells) -> Cells:
    """Compute one generation directly from the rules."""
    alive = cells == ALIVE
    shifts = [(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]
    around = sum(np.roll(alive, shift, axis=(0, 1)).astype(int) for shift in shifts)
    lives = (around == 3) | (alive & (around == 2))
    return np.where(lives, ALIVE, np.maximum(cells.astype(int) - FADE, 0)).astype(u8)


# ---- the job ----------------------------------------------------------------


def soup(rows: int, columns: int, density: float, seed: int) -> Cells:
    """Return a random board with both mirror symmetries, which every generation
    keeps."""
    quarter = (
        np.random.default_rng(seed).random((-(-rows // 2), -(-columns // 2))) < density
    )
    top = np.hstack([quarter, quarter[:, : columns // 2][:, ::-1]])
    return np.where(np.vstack([top, top[: rows // 2][::-1]]), ALIVE, 0).astype(u8)


def palette() -> list[int]:
    """Return 256 colours, red, green and blue in turn: night, embers, and white for
    living cells."""
    t = np.arange(ALIVE) / ALIVE
    embers = np.stack([20 + 210 * t**2, 18 + 70 * t**3, 40 + 120 * t * (1 - t)], axis=1)
    return [int(part) for part in np.vstack([embers, [255, 250, 230]]).ravel()]


def write_gif(pictures: Sequence[Cells], path: Path) -> None:
    frames = [Image.fromarray(picture, mode="P") for picture in pictures]
    for picture in frames:
        picture.putpalette(palette())
    frames[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=frames[1:],
        duration=50,
        loop=0,
        optimize=False,
    )


def last_frame(path: Path) -> NDArray[np.uint8]:
    """Return the last frame of a GIF, in red, green and blue: (rows, columns, 3)."""
    with Image.open(path) as gif:
        gif.seek(getattr(gif, "n_frames", 1) - 1)
        return np.array(gif.convert("RGB"))


def job(given: argparse.Namespace) -> None:
    start = soup(given.rows, given.columns, given.density, given.seed)
    limit = max(HELD * start.nbytes * (1 + given.zoom**2), 1 << 16)
    op = film(start, given.frames, given.per_frame, given.zoom).schedule(
        ListSchedule(memory_limit=limit)
    )
    plan = plan_of(op)
    began = time.perf_counter()
    *pictures, board = op.sync()
    seconds = time.perf_counter() - began
    write_gif(pictures, given.out)

    generations = (given.frames - 1) * given.per_frame
    alive = int((board == ALIVE).sum())
    print(
        f"{given.rows} x {given.columns} cells on {current_device().name}: "
        f"{generations} generations, {alive} live"
    )
    print(
        f"{given.frames} frames of {pictures[0].shape[1]} x {pictures[0].shape[0]} "
        f"in {seconds * 1e3:.0f} ms"
    )
    size = pictures[0].nbytes
    print(
        f"memory: {plan.peak_bytes:,} bytes for boards of {board.nbytes:,} and "
        f"pictures of {size:,}, known before"
    )
    print(f"wrote {given.out}")

    assert plan.peak_bytes <= limit
    expected = start
    for _ in range(generations):
        expected = naive(expected)
    np.testing.assert_array_equal(board, expected)
    np.testing.assert_array_equal(pictures[-1][:: given.zoom, :: given.zoom], expected)
    colours = np.array(palette(), u8).reshape(-1, 3)
    np.testing.assert_array_equal(last_frame(given.out), colours[pictures[-1]])


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Conway's game of life on dagpu, as an animation."
    )
    parser.add_argument(
        "--quick", action="store_true", help="20 frames of 64 x 64 cells"
    )
    parser.add_argument("--rows", type=at_least_one, help="of cells (128)")
    parser.add_argument("--columns", type=at_least_one, help="of cells (128)")
    parser.add_argument("--frames", type=at_least_one, help="(120)")
    parser.add_argument(
        "--per-frame", type=at_least_one, default=2, help="generations (2)"
    )
    parser.add_argument(
        "--zoom", type=at_least_one, default=3, help="pixels along a cell's edge (3)"
    )
    parser.add_argument(
        "--density", type=float, default=0.3, help="of life at the start, 0 to 1 (0.3)"
    )
    parser.add_argument("--seed", type=int, default=4, help="of the start (4)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("life.gif"),
        help="animation to write (life.gif)",
    )
    given = parser.parse_args(arguments)
    side, frames = (64, 20) if given.quick else (128, 120)
    given.rows, given.columns, given.frames = (
        given.rows or side,
        given.columns or side,
        given.frames or frames,
    )
    return given


def main(arguments: Sequence[str]) -> None:
    job(parsed(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
