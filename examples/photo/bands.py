"""Develops a photograph on the device, in bands that are streamed through two buffers:
blur, Sobel edges, tone curve.

    python -m examples.photo [--quick] [--photo china.jpg] [--enlarge 3] [--band 64]
                             [--buffers 2] [--out photo.png]

    band --copy in--> x --> blur rows --> blur columns --> soft --> edges
                       \\                                    |       |
                        `-------------------------------> develop <-'--copy out--> band

A picture need not fit the device: it is copied there in bands of rows, each with its
halo (the few rows around it that blur and Sobel read), and comes back in bands. At most
`--buffers` bands are on the device at a time: while kernels process one, the next is
copied in and the one before is copied out. This file uses no streams or events. Writes
the picture, and a timeline for ui.perfetto.dev. All arithmetic is in whole numbers, so
the result equals that of plain NumPy on the whole picture to the last bit, on every
device.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import trio
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

import dagpu
from dagpu import (
    DeviceOp,
    SharedTensor,
    Tensor,
    Trace,
    current_device,
    empty,
    flow,
    from_host,
    plan_of,
    u8,
    u16,
    zip_flows,
)
from examples.photo.kernels import (
    BLUE,
    GREEN,
    RADIUS,
    RED,
    WEIGHTS,
    blur_columns,
    blur_rows,
    develop,
    sobel,
)

TILE = (8, 64, 3)
# the blur reads RADIUS rows up and down, and the Sobel filter one row more
HALO = RADIUS + 1
GAIN = 6

Pixels: TypeAlias = NDArray[np.uint8]


@final
@dataclass(frozen=True)
class Band:
    """Rows `first` to `last` of a picture, and rows `upper` to `lower`, which are read
    for them; ends excluded."""

    first: int
    last: int
    upper: int
    lower: int


def bands(rows: int, height: int) -> Iterator[Band]:
    """Iterate over the bands of a picture of `rows` rows, of height `height`; the last
    may be smaller."""
    for first in range(0, rows, height):
        last = min(first + height, rows)
        yield Band(first, last, max(first - HALO, 0), min(last + HALO, rows))


# ---- the pipeline -----------------------------------------------------------


def blurred(
    x: DeviceOp[SharedTensor[u8]], shape: tuple[int, int, int]
) -> DeviceOp[Tensor[u8]]:
    along_rows: DeviceOp[Tensor[u16]] = blur_rows.new(shape, TILE, partial=True)(x)
    soft: DeviceOp[Tensor[u8]] = blur_columns.new(shape, TILE, partial=True)(along_rows)
    return soft


def developed(
    pixels: Pixels, above: int, rows: int, curve: SharedTensor[u8]
) -> DeviceOp[Pixels]:
    """Return `rows` developed rows, from row `above` of `pixels`, which has those rows
    with their halo."""
    height, width, colours = pixels.shape
    x = from_host(pixels).share().shared()
    soft = blurred(x, (height, width, colours)).shared()
    edges = sobel.new((height, width), TILE[:2], partial=True)(soft, GAIN)
    out = empty((rows, width, colours), u8).partition(TILE, partial=True)
    return develop(out, x, soft, edges, curve, above).first().unpartition().to_host()


def band_of(picture: Pixels, band: Band, curve: SharedTensor[u8]) -> DeviceOp[Pixels]:
    return developed(
        picture[band.upper : band.lower],
        band.first - band.upper,
        band.last - band.first,
        curve,
    )


async def streamed(
    picture: Pixels, height: int, buffers: int, curve: SharedTensor[u8]
) -> Pixels:
    """Develop the whole picture, with `buffers` bands on the device at a time."""
    result, cut = np.empty_like(picture), list(bands(len(picture), height))
    developed_bands = flow(cut).run(
        lambda band: band_of(picture, band, curve), in_flight=buffers
    )
    async with zip_flows(flow(cut), developed_bands) as feed:
        async for band, rows in feed:
            result[band.first : band.last] = rows
    return result


# ---- the same in plain NumPy ------------------------------------------------


def correlated(
    x: NDArray[np.int32], weights: Sequence[int], axis: int
) -> NDArray[np.int32]:
    """Return the weighted sum of neighbours along an axis.

    Beyond the edge, the nearest element is repeated.
    """
    reach = len(weights) // 2
    places = np.arange(x.shape[axis])
    total = np.zeros_like(x)
    for offset, weight in enumerate(weights, -reach):
        total += weight * np.take(
            x, np.clip(places + offset, 0, x.shape[axis] - 1), axis
        )
    return total


def by_numpy(picture: Pixels, curve: Pixels) -> Pixels:
    """Compute the result of `streamed` on the whole picture at once."""
    x = picture.astype(np.int32)
    soft = (correlated(correlated(x, WEIGHTS, 0), WEIGHTS, 1) + 2**15) // 2**16
    light = (RED * soft[..., 0] + GREEN * soft[..., 1] + BLUE * soft[..., 2]) // 256
    across = correlated(correlated(light, (1, 2, 1), 0), (-1, 0, 1), 1)
    down = correlated(correlated(light, (-1, 0, 1), 0), (1, 2, 1), 1)
    edges = np.minimum((abs(across) + abs(down)) * GAIN // 8, 255)
    tone = curve[(x + soft) // 2].astype(np.int32)
    return np.asarray((tone * (255 - edges[..., None]) + 127) // 255, np.uint8)


# ---- the job ----------------------------------------------------------------


def load(name: str, enlarge: int) -> Pixels:
    """Return an enlarged photograph of scikit-learn; (rows, columns, 3)."""
    photo: Any = load_sample_image(name)
    picture = Image.fromarray(np.asarray(photo, np.uint8))
    size = picture.width * enlarge, picture.height * enlarge
    return np.array(
        picture.resize(size, Image.Resampling.BICUBIC) if enlarge > 1 else picture
    )


def tone_curve() -> Pixels:
    """Return an S-shaped tone curve (256,): darker shadows, brighter lights."""
    t = np.linspace(0, 1, 256) ** 0.8
    return np.rint(255 * (0.5 - 0.5 * np.cos(np.pi * t))).astype(np.uint8)


def hidden(trace: Trace) -> float:
    """Return the fraction of the time of all copies during which a kernel also ran."""
    pieces = [piece for run in trace.runs for piece in run.measured.pieces]
    copies = [(p.begin, p.end) for p in pieces if p.kind in ("CopyHtoD", "CopyDtoH")]
    # the times when kernels run; overlapping spans are merged
    busy: list[list[float]] = []
    for begin, end in sorted((p.begin, p.end) for p in pieces if p.kind == "Launch"):
        if busy and begin <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], end)
        else:
            busy.append([begin, end])
    beside = sum(
        max(0.0, min(end, y) - max(begin, x)) for begin, end in copies for x, y in busy
    )
    return beside / (sum(end - begin for begin, end in copies) or 1.0)


async def job(given: argparse.Namespace) -> None:
    picture, curve = load(given.photo, given.enlarge), tone_curve()
    tones = await from_host(curve).share()
    cut = list(bands(len(picture), given.band))
    await band_of(picture, cut[0], tones)  # compiles the kernels on a GPU
    start = time.perf_counter()
    with dagpu.trace(given.out.with_suffix(".json")) as trace:
        result = await streamed(picture, given.band, given.buffers, tones)
    seconds = time.perf_counter() - start
    Image.fromarray(result).save(given.out, format="PNG")

    most = max(plan_of(band_of(picture, band, tones)).peak_bytes for band in cut)
    whole = plan_of(developed(picture, 0, len(picture), tones)).peak_bytes
    print(
        f"{given.photo}, {picture.shape[1]} x {picture.shape[0]}, on "
        f"{current_device().name}"
    )
    print(
        f"{len(cut)} bands of {given.band} rows through {given.buffers} buffers in "
        f"{seconds * 1e3:.0f} ms"
    )
    print(
        f"memory for them, by the plan: {given.buffers} x {most / 2**20:.1f} MiB; "
        f"at once: {whole / 2**20:.1f} MiB"
    )
    print(
        f"overlap, measured: {trace.overlap:.0%} of the work was hidden behind "
        "other work; "
        f"{hidden(trace):.0%} of the copies ran beside kernels"
    )
    print(
        f"wrote {given.out} and {given.out.with_suffix('.json')} (open it in "
        "ui.perfetto.dev)"
    )

    assert len(trace.runs) == len(cut), "each band is one run"
    np.testing.assert_array_equal(result, by_numpy(picture, curve))


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.photo",
        description="Develop a photograph with dagpu, band by band.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the photograph as it is, not enlarged"
    )
    parser.add_argument(
        "--photo",
        choices=["china.jpg", "flower.jpg"],
        default="china.jpg",
        help="(china.jpg)",
    )
    parser.add_argument(
        "--enlarge", type=at_least_one, help="times, along both axes (3)"
    )
    parser.add_argument(
        "--band",
        type=at_least_one,
        default=64,
        help="rows of the picture copied at a time (64)",
    )
    parser.add_argument(
        "--buffers",
        type=at_least_one,
        default=2,
        help="bands on the device at a time (2)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("photo.png"),
        help="picture to write (photo.png)",
    )
    given = parser.parse_args(arguments)
    given.enlarge = given.enlarge or (1 if given.quick else 3)
    return given


def main(arguments: Sequence[str]) -> None:
    trio.run(job, parsed(arguments))
