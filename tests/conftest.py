"""What every test gets: the host as its device, whatever the machine and the environment offer."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# Read when dagpu is first imported or when a device is first asked for, so it is set before either.
os.environ["DAGPU_DEVICE"] = "host"
os.environ.pop("DAGPU_CHECKED", None)

# Properties are derandomised so that a red run is red again; deadlines are off because tests share their
# cores with other work, and no test here asserts how long anything takes.
settings.register_profile("dagpu", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dagpu")


@pytest.fixture(scope="module", autouse=True)
def _small_heap() -> None:
    """What imports and earlier modules have left is there to stay: keep the cyclic collector from walking over all of
    it, a tenth of a second, each time that a test collects."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """The marks that tests may bear (`--strict-markers` refuses all others)."""
    for mark in (
        "host_only(why): it is about the host backend itself; tests/gpu does not run it again on a GPU",
        "exclusive: it takes or measures all of a GPU's memory; it is not run beside others (-n)",
    ):
        config.addinivalue_line("markers", mark)
