"""examples/digits: its training step against NumPy, its batches, and its short form as a whole."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dagpu import from_host, use_device, zip_ops
from tests.simulated.cuda import driver
from tests.simulated.runs import fresh_machine as fresh_machine
from tests.support.example_scripts import example

HIDDEN, ROWS, RATE = 24, 40, 0.05

Arrays = list[NDArray[np.float64]]


@pytest.fixture(scope="module")
def digits() -> Any:
    """The module that trains."""
    return example("digits.training")


@pytest.fixture(scope="module")
def batches() -> Any:
    """The module of the images and their batches."""
    return example("digits.batches")


@pytest.fixture(scope="module")
def command() -> Any:
    """The module of the command line."""
    return example("digits.command")


def loss_of(parameters: Arrays, images: NDArray[np.float64], labels: NDArray[np.int32]) -> float:
    """Mean cross-entropy of the network in double precision, straight from its definition."""
    w1, b1, w2, b2 = parameters
    logits = np.maximum(images @ w1 + b1, 0) @ w2 + b2
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]))


def gradients_of(parameters: Arrays, images: NDArray[np.float64], labels: NDArray[np.int32]) -> Arrays:
    """Return the gradients of `loss_of`, by backpropagation in double precision."""
    w1, b1, w2, b2 = parameters
    z = images @ w1 + b1
    h = np.maximum(z, 0)
    p = np.exp(h @ w2 + b2)
    d = (p / p.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
    dz = np.where(z > 0, d @ w2.T, 0)
    return [images.T @ dz, dz.sum(axis=0, keepdims=True), h.T @ d, d.sum(axis=0, keepdims=True)]


def problem() -> tuple[Arrays, Arrays, NDArray[np.float64], NDArray[np.int32]]:
    """Parameters, velocities, images and labels: random, and with values that are exact in float32."""
    random = np.random.default_rng(11)

    def draw(rows: int, columns: int, scale: float) -> NDArray[np.float64]:
        return random.normal(0, scale, (rows, columns)).astype(np.float32).astype(np.float64)

    shapes = ((64, HIDDEN), (1, HIDDEN), (HIDDEN, 10), (1, 10))
    parameters = [draw(*shape, 0.2) for shape in shapes]
    velocities = [draw(*shape, 0.1) for shape in shapes]
    return parameters, velocities, draw(ROWS, 64, 1.0), random.integers(0, 10, ROWS).astype(np.int32)


def model_of(parameters: Arrays, velocities: Arrays) -> Any:
    """The model on the current device, in float32."""
    (w1, b1, w2, b2), (u1, c1, u2, c2) = (
        [from_host(array.astype(np.float32)) for array in arrays] for arrays in (parameters, velocities)
    )
    return zip_ops(zip_ops(w1, b1, u1, c1), zip_ops(w2, b2, u2, c2)).sync()


def arrays_of(model: Any) -> tuple[Arrays, Arrays]:
    """Parameters and velocities of a model, in double precision."""
    (w1, b1, u1, c1), (w2, b2, u2, c2) = model
    found = [t.to_host().sync().astype(np.float64) for t in (w1, b1, w2, b2, u1, c1, u2, c2)]
    return found[:4], found[4:]


def stepped(
    digits: Any,
    parameters: Arrays,
    velocities: Arrays,
    images: NDArray[np.float64],
    labels: NDArray[np.int32],
) -> tuple[Arrays, Arrays, NDArray[np.float32]]:
    """Parameters and velocities after one step of the pipeline on the current device, and the losses of its images."""
    batch = zip_ops(from_host(images.astype(np.float32)), from_host(labels)).sync()
    model, losses = digits.step(model_of(parameters, velocities), *batch, RATE).sync()
    assert losses.shape == (ROWS,)
    return *arrays_of(model), losses


def test_a_step_is_that_of_numpy(digits: Any) -> None:
    """One step of the pipeline gives the parameters, velocities and losses of a step in NumPy; so do the guesses."""
    parameters, velocities, images, labels = problem()
    after, speeds, losses = stepped(digits, parameters, velocities, images, labels)
    gradients = gradients_of(parameters, images, labels)
    for index in range(4):
        speed = digits.MOMENTUM * velocities[index] + gradients[index] + digits.DECAY * parameters[index]
        np.testing.assert_allclose(speeds[index], speed, rtol=0, atol=1e-5)
        np.testing.assert_allclose(after[index], parameters[index] - RATE * speed, rtol=0, atol=1e-5)
    assert losses.mean() == pytest.approx(loss_of(parameters, images, labels), abs=1e-5)
    w1, b1, w2, b2 = parameters
    guesses = (np.maximum(images @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)
    answers = digits.probabilities(model_of(parameters, velocities), images.astype(np.float32)).sync()
    np.testing.assert_array_equal(answers.argmax(axis=1), guesses)


def test_gradients_are_slopes(digits: Any) -> None:
    """A step from rest adds to the velocities the slope of the loss, compared with central differences."""
    parameters, _, images, labels = problem()
    rest = [np.zeros_like(array) for array in parameters]
    _, speeds, _ = stepped(digits, parameters, rest, images, labels)
    random, h = np.random.default_rng(5), 1e-5
    for index, array in enumerate(parameters):
        for place in random.choice(array.size, min(8, array.size), replace=False):
            moved = [[a.copy() for a in parameters] for _ in range(2)]
            moved[0][index].flat[place] += h
            moved[1][index].flat[place] -= h
            up, down = (loss_of(one, images, labels) for one in moved)
            expected = (up - down) / (2 * h) + digits.DECAY * array.flat[place]
            assert speeds[index].flat[place] == pytest.approx(expected, abs=1e-5)


def test_steps_in_a_row_are_those_of_the_numpy_baseline(digits: Any) -> None:
    """Calls of the pipeline, and the steps of NumPy whose duration is printed beside them, train one and the same."""
    parameters, velocities, _, _ = problem()
    random = np.random.default_rng(17)
    model = model_of(parameters, velocities)
    (w1, b1, w2, b2), (u1, c1, u2, c2) = ([a.astype(np.float32) for a in part] for part in (parameters, velocities))
    for number in range(4):
        images = random.normal(0, 1, (ROWS, 64)).astype(np.float32)
        labels = random.integers(0, 10, ROWS).astype(np.int32)
        rate = RATE / (1 + number)
        model, losses = digits.train_step(model, images, labels, rate).sync()
        expected = example("digits.numpy_training").train_in_numpy(
            ((w1, b1, u1, c1), (w2, b2, u2, c2)), images, labels, (rate, digits.MOMENTUM, digits.DECAY)
        )
        np.testing.assert_allclose(losses, expected, rtol=0, atol=2e-5)
    for found, wanted in zip(arrays_of(model), ((w1, b1, w2, b2), (u1, c1, u2, c2)), strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.host_only("it brings a GPU of its own")
@pytest.mark.usefixtures("machine")
def test_a_later_step_is_one_launch_of_a_graph(digits: Any, batches: Any, command: Any) -> None:
    """On a GPU (a simulated one) the first step is traced and the second makes the graph. Each later step launches it
    once, sets the new rate in the four updates, and makes no other change, allocation or launch."""
    with use_device("cuda:0"):
        data, options = batches.load(), command.parsed(["--quick"])
        gpu: Any = driver(0).gpu
        digits.train_step.cache_clear()
        model = digits.fresh_model(32, 0).sync()
        with closing(batches.epochs_ahead(data, options)) as ahead:
            images, labels = next(ahead)
            for number in range(8):
                earlier = gpu.calls.copy()
                model, losses = digits.train_step(model, images[number], labels[number], 0.1 / (1 + number)).sync()
                del losses
                made = {
                    call: count
                    for call, count in (gpu.calls - earlier).items()
                    if not call.startswith(("cuEvent", "cuStream"))
                }
                assert number < 2 or made == {"cuGraphLaunch": 1, "cuGraphExecKernelNodeSetParams": 4}
    assert digits.train_step.cache_info()[:2] == (7, 1)
    digits.train_step.cache_clear()  # its plan holds a graph of that GPU


def test_probabilities_do_not_overflow(digits: Any) -> None:
    """Logits in the hundreds give the exact probabilities. Each image and each hidden unit is a single 1."""
    random = np.random.default_rng(3)
    w1, w2 = np.eye(64, 32), random.normal(0, 300, (32, 10)).astype(np.float32)
    bias = np.linspace(-200, 200, 10, dtype=np.float32)[None]
    parameters = [w1, np.zeros((1, 32)), w2.astype(np.float64), bias.astype(np.float64)]
    p = digits.probabilities(model_of(parameters, parameters), np.eye(32, 64, dtype=np.float32)).sync()
    exact = np.exp((w2 + bias).astype(np.float64) - (w2 + bias).max(axis=1, keepdims=True))
    np.testing.assert_allclose(p, exact / exact.sum(axis=1, keepdims=True), atol=1e-6)


def test_batches_cover_an_epoch_once(batches: Any, command: Any) -> None:
    """A batch depends on its number alone, and those of one epoch have no image in common."""
    data, options = batches.load(), command.parsed(["--batch", "50"])
    once, again = batches.prepared(data, options, 3), batches.prepared(data, options, 3)
    for first, second in zip(once, again, strict=True):
        np.testing.assert_array_equal(first, second)
    assert once[0].shape == (50, 64)
    unmoved = pytest.MonkeyPatch()
    unmoved.setattr(batches, "shifted", lambda images, random: images)
    rows = np.concatenate([batches.prepared(data, options, n)[0] for n in range(len(data.train) // 50)])
    unmoved.undo()
    known = {row.tobytes() for row in data.normalised(data.train)}
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert {row.tobytes() for row in rows} <= known


def test_epochs_are_prepared_ahead(batches: Any, command: Any) -> None:
    """The arrays of each epoch hold its batches, also while the worker thread fills those of the next one."""
    data, options = batches.load(), command.parsed(["--batch", "300", "--epochs", "5"])
    with closing(batches.epochs_ahead(data, options)) as ahead:
        seen = [(images.copy(), labels.copy()) for images, labels in ahead]
    assert len(seen) == 5
    for number in range(5 * 4):
        images, labels = batches.prepared(data, options, number)
        epoch, place = divmod(number, 4)
        np.testing.assert_array_equal(seen[epoch][0][place], images)
        np.testing.assert_array_equal(seen[epoch][1][place], labels)


def test_a_shift_blends_with_the_neighbour(batches: Any) -> None:
    """A lone pixel keeps its sum when it moves, and moves by less than a pixel along each axis."""
    image = np.zeros((200, 8, 8), np.float32)
    image[:, 4, 3] = 1
    moved = batches.shifted(image.reshape(-1, 64), np.random.default_rng(0)).reshape(-1, 8, 8)
    np.testing.assert_allclose(moved.sum(axis=(1, 2)), 1, atol=1e-6)
    row, column = (moved.sum(axis=axis) @ np.arange(8) for axis in (2, 1))
    assert np.abs(row - 4).max() <= batches.SHIFT + 1e-5
    assert np.abs(column - 3).max() <= batches.SHIFT + 1e-5
    assert row.std() > 0.2
    assert column.std() > 0.2


def test_the_short_form(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--quick` ends with 0, shows both tables with an accuracy over 90 %, and writes the picture."""
    from PIL import Image

    out = tmp_path / "some.png"
    assert command.main(["--quick", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    held_out = re.search(r"│ held out +│ +360 │ ([\d.]+)% │", shown)
    assert held_out, shown
    assert float(held_out[1]) > 90
    for row in ("kernel launches", "streams", "waits between streams", "overlap", "peak memory"):
        assert re.search(rf"{row}\D+\d", shown), shown
    for row in ("a step, with upload and loss", "the same step in NumPy"):
        assert re.search(rf"│ {row} +│ +[\d,]+ us │", shown), shown
    assert re.search(r"│ steps by the first one's plan +│ +131 │", shown), shown
    with Image.open(out) as picture:
        assert picture.format == "PNG"
        assert picture.size[0] > 600
        assert picture.getcolors(2) is None


def test_training_is_deterministic(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs with one seed write the same picture, probabilities included."""
    outs = [tmp_path / name for name in ("a.png", "b.png")]
    for out in outs:
        command.main(["--quick", "--epochs", "2", "--seed", "7", "--out", str(out)])
    capsys.readouterr()
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_under_the_bar(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Too short a training ends with 1 and says what is missing and what to do."""
    code = command.main(["--quick", "--epochs", "1", "--hidden", "1", "--out", str(tmp_path / "x.png")])
    assert code == 1
    assert re.search(r"under the bar of 90%: train for longer \(--epochs\)", capsys.readouterr().err)


def test_too_large_a_batch(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch of more images than there are is refused before anything is trained."""
    assert command.main(["--batch", "5000"]) == 2
    assert "--batch 5000 is more than the 1437 images" in capsys.readouterr().err
