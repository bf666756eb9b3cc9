"""The main job on the GPU: examples/digits as long as it is, with the accuracy that it reaches on the host."""

import re
from pathlib import Path

from dagpu import Device
from tests.support.example_scripts import EXAMPLES, run

SLACK = 1.5
"""Percentage points by which the held-out accuracy may differ: 5 of 360 images. Sums are rounded in another order."""


def held_out(output: str) -> float:
    found = re.search(r"│ held out +│ +360 │ ([\d.]+)% │", output)
    assert found, output
    return float(found[1])


def test_digits_are_learnt_as_on_the_host(cuda: Device, tmp_path: Path) -> None:
    """The script ends with 0, which says that it is over 95 %; in its short form it does as well as on the host."""
    done = run(EXAMPLES / "digits", tmp_path)
    assert done.returncode == 0, done.stdout
    assert held_out(done.stdout) > 95
    on_gpu = run(EXAMPLES / "digits", tmp_path, "--quick")
    assert on_gpu.returncode == 0, on_gpu.stdout
    # One thread for each product: on many cores NumPy's own threads and the streams' get into each other's way.
    one = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    on_host = run(EXAMPLES / "digits", tmp_path, "--quick", DAGPU_DEVICE="host", **one)
    assert abs(held_out(on_gpu.stdout) - held_out(on_host.stdout)) < SLACK
