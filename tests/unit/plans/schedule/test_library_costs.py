"""Predicted times of library calls: by their operations, by their passes over the data, and by what they took."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dagpu import CostModel, DeviceOp, array, c64, f16, f32, f64, plan_of, zeros
from dagpu.plans.cost_model import MEASURED
from dagpu.plans.program import Launch, Program

COSTS = CostModel()


def _call(op: DeviceOp[Any, Any, Any], device: str) -> tuple[Launch, Program]:
    """Return the call of a library in the plan of an op, and the plan's program as one of a device of this name."""
    made = plan_of(op).program
    placed = Program((device,), made.buffers, made.instructions, made.policies, made.policy_of)
    found = [each for each in made.instructions if type(each) is Launch and each.kernel.library is not None]
    return found[0], placed


def _seconds(op: DeviceOp[Any, Any, Any], device: str = "cuda:0") -> float:
    return COSTS.seconds(*_call(op, device))


def product(m: int, k: int, n: int, dtype: Any = f32, **options: Any) -> DeviceOp[Any, Any, Any]:
    return array.matmul(zeros((m, k), dtype), zeros((k, n), dtype), **options)


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DAGPU_MEASURE", "1")
    MEASURED.clear()
    yield
    MEASURED.clear()


def test_a_product_is_priced_by_its_operations() -> None:
    """A large one takes its operations at the rate of the device: less than the H200 can do at most, and not 2,786
    Tflop/s. One of few rows takes its bytes."""
    rate = 2 * 4096**3 / _seconds(product(4096, 4096, 4096))
    assert 40e12 < rate < 67e12
    assert _seconds(product(1, 4096, 4096)) == pytest.approx(COSTS.launch + 4 * (4096**2 + 2 * 4096) / COSTS.bandwidth)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: product(4096, 4096, 4096), lambda: product(4096, 4096, 4096, precision="tf32")),
        (lambda: product(4096, 4096, 4096, f64), lambda: product(4096, 4096, 4096, f16)),
        (lambda: product(2048, 2048, 2048), lambda: product(8192, 256, 2048)),
    ],
    ids=["tf32", "f16", "fewer operations"],
)
def test_products_differ_by_precision_and_shape(one: Callable[[], Any], other: Callable[[], Any]) -> None:
    """The second of each pair is quicker, though it has as many bytes or more."""
    assert _seconds(one()) > 1.5 * _seconds(other())


def test_the_same_product_takes_longer_on_a_host() -> None:
    """The rates are those of the device."""
    assert _seconds(product(512, 512, 512), "host") > 20 * _seconds(product(512, 512, 512))


def test_a_batch_and_transposes_count_all_products() -> None:
    """Eight products take eight times the operations of one, and a transposed operand changes nothing."""
    one, eight = (zeros((count, 512, 1024), f32) for count in (1, 8))
    each, all_of_them = (_seconds(array.matmul(x, zeros((512, 64), f32), transpose="a")) for x in (one, eight))
    assert all_of_them - COSTS.launch == pytest.approx(8 * (each - COSTS.launch), rel=0.3)


def test_a_transform_is_priced_by_its_passes() -> None:
    """On a GPU a long one passes over its data more often than a short one of as many bytes."""
    short, long = _seconds(array.fft(zeros((1 << 12, 1 << 10), c64))), _seconds(array.fft(zeros((1, 1 << 22), c64)))
    assert long - COSTS.launch == pytest.approx(2 * (short - COSTS.launch), rel=0.2)


def test_what_a_library_does_is_no_guess() -> None:
    """So its work is not spread as unknown, and `explain` says what the time is from."""
    op = product(64, 64, 64)
    launch, made = _call(op, "cuda:0")
    index = made.instructions.index(launch)
    assert not COSTS.estimates(made)[1][index]
    assert "by the operations of their library: matmul" in product(64, 64, 64).explain()


def test_a_measured_product_says_nothing_wrong_of_one_with_as_many_bytes() -> None:
    """What ran is known by its operations, and not by its bytes: the one with an eighth of them is quicker."""
    launch, made = _call(product(2048, 2048, 2048), "cuda:0")
    MEASURED.add("cuda:0", launch.kernel, COSTS.size(launch, made), 1e-3)
    assert COSTS.seconds(launch, made) == pytest.approx(COSTS.launch + 1e-3)
    assert COSTS.basis(launch, made) == "measured in earlier runs"
    thin, placed = _call(product(8192, 256, 2048), "cuda:0")
    assert COSTS.seconds(thin, placed) < 0.6e-3


def test_a_product_that_ran_takes_what_it_took() -> None:
    """On the host it is measured in its first runs, though its time is no guess; a size that is far off is too."""
    op = product(96, 96, 96)
    assert COSTS.guesses(plan_of(op))
    op.sync()
    assert "measured in earlier runs: matmul" in product(96, 96, 96).explain()
    assert not COSTS.guesses(plan_of(product(96, 96, 96)))
    assert COSTS.guesses(plan_of(product(192, 192, 192)))


def test_declared_and_counted_times_come_first() -> None:
    """A user who says what a call takes, or how many bytes it moves, is believed."""
    launch, made = _call(product(512, 512, 512), "cuda:0")
    assert COSTS.declare({"matmul": 5e-3}).seconds(launch, made) == COSTS.launch + 5e-3
    counted = COSTS.count({"matmul": 1 << 30})
    assert counted.seconds(launch, made) == pytest.approx(COSTS.launch + (1 << 30) / COSTS.bandwidth)
