"""The larger examples by their parts: what must hold for any picture, matrix, length, board and load."""

from pathlib import Path

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagpu import DeviceOp, batching, from_host, plan_of, u8, value
from dagpu.testing import Execute
from tests.support.example_scripts import example

few = settings(max_examples=15)


# ---- photo ----------------------------------------------------------------------------------------------


@few
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 20),
    height=st.integers(1, 45),
    buffers=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_bands_give_the_picture_as_a_whole(rows: int, columns: int, height: int, buffers: int, seed: int) -> None:
    """Whatever the bands and however many at a time, the result is that of plain NumPy, to the bit."""
    photo = example("photo.bands")
    picture = np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), u8)
    curve = photo.tone_curve()
    found = trio.run(photo.streamed, picture, height, buffers, from_host(curve).share().sync())
    np.testing.assert_array_equal(found, photo.by_numpy(picture, curve))


@pytest.mark.parametrize(("rows", "height"), [(1, 1), (7, 3), (64, 64), (65, 64), (5, 100)])
def test_bands_cover_each_row_once(rows: int, height: int) -> None:
    """In order, each with its halo as far as there are rows."""
    photo = example("photo.bands")
    found = list(photo.bands(rows, height))
    assert [row for band in found for row in range(band.first, band.last)] == list(range(rows))
    for band in found:
        assert (band.upper, band.lower) == (max(band.first - photo.HALO, 0), min(band.last + photo.HALO, rows))


# ---- cholesky -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_a_tiled_factor_is_numpys(tiles: int) -> None:
    """The factor of a random matrix is NumPy's; a plan has a kernel for each step of the loop and copies for each
    lower tile."""
    cholesky = example("cholesky.factorisation")
    x = np.random.default_rng(tiles).standard_normal((16 * tiles, 16 * tiles))
    matrix = x @ x.T + np.eye(len(x))
    lower = tiles * (tiles + 1) // 2
    kernels = sum(1 + (tiles - k - 1) + (tiles - k - 1) * (tiles - k) // 2 for k in range(tiles))
    op = cholesky.cholesky(matrix, tiles)
    executed = [step for step in plan_of(op).steps if isinstance(step, Execute)]
    assert len(executed) == kernels + 2 * lower
    found = cholesky.assembled(op.sync(), tiles)
    np.testing.assert_allclose(found, np.linalg.cholesky(matrix), atol=1e-10)


def test_a_factor_on_several_devices_has_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example compares them itself, with the kernels' times measured, and tells what each device and link has."""
    names = ["host:0", "host:1", "host:2"]
    example("cholesky.factorisation").main(["--quick", "--devices", *names, "--out", str(tmp_path / "lanes.svg")])
    assert "tiles on host:0 host:1 host:2\n" in capsys.readouterr().out


# ---- flash attention ------------------------------------------------------------------------------------


@few
@given(
    heads=st.integers(1, 3),
    length=st.integers(1, 300),
    width=st.sampled_from([16, 32, 64]),
    groups=st.integers(1, 3),
    causal=st.booleans(),
    size=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_attention_is_that_of_numpy(
    heads: int, length: int, width: int, groups: int, causal: bool, size: float
) -> None:
    """For any number of keys, and for scores that exp could not take."""
    flash = example("flash_attention.attention")
    random = np.random.default_rng(length)
    q, k, v = (random.standard_normal((heads, length, width), dtype=np.float32) for _ in range(3))
    q *= np.float32(size)
    found = np.concatenate(flash.in_groups(q, k, v, causal, min(groups, heads)).sync())
    np.testing.assert_allclose(found, flash.by_numpy(q, k, v, causal), atol=1e-5 if size < 2 else 5e-4)


@few
@given(length=st.integers(1, 200), width=st.sampled_from([16, 32, 64]), causal=st.booleans())
def test_the_gradients_of_attention_are_those_of_numpy(length: int, width: int, causal: bool) -> None:
    """By q, k and v, by way of the rule that the example declares."""
    flash = example("flash_attention.attention")
    random = np.random.default_rng(length)
    q, k, v, g = (random.standard_normal((2, length, width), dtype=np.float32) for _ in range(4))
    found = flash.slopes(q, k, v, g, causal=causal).sync()
    for mine, its in zip(found, flash.slopes_by_numpy(q, k, v, g, causal), strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(its).max())))


def test_a_width_without_a_kernel_is_refused() -> None:
    """On the GPU nothing would be written for it: so it is refused where the op is built."""
    x = np.zeros((1, 4, 48), np.float32)
    with pytest.raises(ValueError, match="48 wide; the kernel knows 16, 32, 64"):
        example("flash_attention.attention").attended(x, x, x, causal=True)


# ---- life -----------------------------------------------------------------------------------------------


@few
@given(rows=st.integers(1, 30), columns=st.integers(1, 30), per_frame=st.integers(1, 3), seed=st.integers(0, 99))
def test_every_frame_is_that_of_the_rules(rows: int, columns: int, per_frame: int, seed: int) -> None:
    """A film of any board, frame by frame."""
    life = example("life")
    start = np.where(np.random.default_rng(seed).random((rows, columns)) < 0.4, 255, 0).astype(u8)
    *pictures, board = life.film(start, 4, per_frame, 2).sync()
    expected = start
    for number, picture in enumerate(pictures):
        for _ in range(per_frame if number else 0):
            expected = life.naive(expected)
        np.testing.assert_array_equal(picture, np.kron(expected, np.ones((2, 2), u8)))
    np.testing.assert_array_equal(board, expected)


def test_a_glider_goes_round_the_torus() -> None:
    """It moves by one cell both ways in 4 generations, so on a torus of 8 x 8 it is back after 32."""
    life = example("life")
    start = np.zeros((8, 8), u8)
    start[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 255
    *_, once = life.film(start, 2, 4, 1).sync()
    np.testing.assert_array_equal(once == 255, np.roll(start, (1, 1), axis=(0, 1)) == 255)
    *_, round_ = life.film(start, 2, 32, 1).sync()
    np.testing.assert_array_equal(round_ == 255, start == 255)


def test_a_soup_is_the_same_in_the_mirror() -> None:
    """Both ways, whether its sides are even or odd; and so is all that comes of it."""
    life = example("life")
    for shape in ((20, 21), (9, 16)):
        start = life.soup(*shape, 0.4, 3)
        *_, later = life.film(start, 2, 10, 1).sync()
        for board in (start, later):
            np.testing.assert_array_equal(board, board[::-1])
            np.testing.assert_array_equal(board, board[:, ::-1])


# ---- server ---------------------------------------------------------------------------------------------

Floats = NDArray[np.float32]


def image(number: int) -> Floats:
    return np.full(64, number, np.float32)


def test_a_failing_pipeline_ends_the_service() -> None:
    """Its error arrives in the scope that runs the service, and no client waits for ever."""
    service_of = example("server.service")

    def broken(images: tuple[Floats, ...]) -> DeviceOp[Floats]:
        raise ValueError("no such model")

    async def main() -> None:
        async with batching(broken, most=4, within=0.001) as ask, trio.open_nursery() as service:
            port: int = await service.start(service_of.serve, ask)
            await talk(port, 1, keep=True)

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(ValueError, match="no such model")


async def talk(port: int, number: int, keep: bool) -> bytes | None:
    """Send an image; read its answer, or hang up at once."""
    service_of = example("server.service")
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(image(number).tobytes())
        found: bytes | None = await service_of.read_exactly(stream, service_of.ANSWER_BYTES) if keep else None
        return found


def test_clients_that_hang_up_do_no_harm() -> None:
    """Over real sockets: some leave before their answer, one amid its image; the others get theirs, and it ends."""
    service_of = example("server.service")

    def forward(images: tuple[Floats, ...]) -> DeviceOp[Floats]:
        return value(service_of.padded(np.stack(images))[:, :10])

    async def main() -> None:
        answers: dict[int, bytes | None] = {}

        async def client(port: int, number: int) -> None:
            answers[number] = await talk(port, number, keep=number % 2 == 0)

        async with batching(forward, most=4, within=0.001) as ask, trio.open_nursery() as service:
            port: int = await service.start(service_of.serve, ask)
            async with await trio.open_tcp_stream("127.0.0.1", port) as half:
                await half.send_all(b"not an image")
            async with trio.open_nursery() as clients:
                for number in range(8):
                    clients.start_soon(client, port, number)
            service.cancel_scope.cancel()
        for number, answer in answers.items():
            expected = image(number)[:10].tobytes() if number % 2 == 0 else None
            assert answer == expected
        with pytest.raises(OSError, match=r"refused|all attempts"):
            await talk(port, 0, keep=True)

    trio.run(main)


@given(count=st.integers(1, 70))
def test_batches_are_padded_to_powers_of_two(count: int) -> None:
    """With blank images at the end, to fewer than twice as many."""
    service_of = example("server.service")
    images = np.ones((count, 64), np.float32)
    found = service_of.padded(images)
    assert len(found) in {2**k for k in range(8)}
    assert count <= len(found) < 2 * count
    np.testing.assert_array_equal(found[:count], images)
    assert not found[count:].any()
