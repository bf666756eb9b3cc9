"""`python -m dagpu info`: reports versions, devices with a self-test of each, and missing parts with their cure."""

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

import dagpu
from dagpu import Device, In, NoDeviceError, Out, Tile, arange, f32, kernel, use_device, zip_ops
from dagpu.common.env_vars import VARIABLES
from dagpu.lowering.text import table
from dagpu.runtime.device_lookup import backend

_PACKAGES: Final = ("numpy", "trio", "pycuda", "cuda-bindings", "mypy")
_DRIVER: Final = Path("/proc/driver/nvidia/version")


@kernel(
    cuda="""__global__ void self_test(Tile<float, 1> y, float a, View<const float, 1> x) {
    for (auto i : y) y[i] = a * x[i] + i;
}"""
)
def self_test(y: Out[f32], a: float, x: In[f32]) -> None:
    """Compute y = a * x + index. The result is exact for the inputs of the self-test."""


@self_test.host
def _(y: Tile[f32], a: float, x: NDArray[f32]) -> None:
    (part,) = y.at
    y[...] = np.float32(a) * x[y.at] + np.arange(part.start, part.stop, dtype=np.float32)


@final
@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """The result of the self-test of one device."""

    device: str
    works: bool
    what: str


def info() -> int:
    """Print the whole report. Return 0 if every device works and all environment variables are valid, else 1."""
    print("\n".join(_versions()))
    print()
    wrong = _wrong_variables()
    if wrong:
        print("\n".join(wrong))
        return 1
    findings = [examine(each) for each in dagpu.devices()]
    print("\n".join(table(("device", "memory free", "total", "self-test"), [_row(found) for found in findings])))
    missing = _missing()
    if missing:
        print(f"\nNo CUDA device: {missing}")
    try:
        default = dagpu.current_device().name
    except NoDeviceError as error:
        print(f"\nNo default device: {error}")
        return 1
    print(f"\nThe default device is {default}; DAGPU_DEVICE or use_device(...) sets another.")
    return 0 if all(found.works for found in findings) else 1


def examine(device: Device) -> SelfTestResult:
    """Compile and run a kernel, copy in both directions, overlap two branches, and compare the results with NumPy."""
    ramp = np.arange(1024, dtype=np.float32)
    try:
        with use_device(device):
            branches = [
                self_test(dagpu.empty((1024,)).partition((256,)), a, arange(1024)).first().unpartition().to_host()
                for a in (2.0, -1.0)
            ]
            two, minus = zip_ops(*branches).sync()
    except Exception as error:  # a broken driver may raise any error, which is reported
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):  # both branches fail alike
            first = first.exceptions[0]
        return SelfTestResult(device.name, False, f"{type(first).__name__}: {first}")
    right = np.array_equal(two, 3 * ramp) and np.array_equal(minus, 0 * ramp)
    return SelfTestResult(device.name, right, "passed" if right else "wrong results: do not trust this device")


def _row(found: SelfTestResult) -> tuple[str, ...]:
    try:
        free, total = (f"{size / 2**30:.1f} GiB" for size in dagpu.device(found.device).memory_info())
    except dagpu.DagpuError:
        free = total = "unknown"
    return found.device, free, total, found.what


def _versions() -> list[str]:
    lines = [f"dagpu {dagpu.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} is not installed")
    lines.append(f"NVIDIA driver {_driver_version() or 'is not loaded'}; {os.cpu_count()} cores")
    return lines


def _wrong_variables() -> list[str]:
    """Return a line for each environment variable with an invalid value."""
    lines = []
    for variable in VARIABLES:
        try:
            variable.get()
        except ValueError as error:
            lines.append(str(error))
    return lines


def _driver_version() -> str | None:
    """Return the version of NVIDIA's kernel module, read without any library; None if it is not loaded."""
    try:
        found = re.search(r"\d+\.\d+(?:\.\d+)?", _DRIVER.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else found[0]


def _missing() -> str | None:
    """Return the reason why no CUDA device is available, with the cure; None if one is."""
    try:
        backend("cuda").device(0)
    except NoDeviceError as error:
        return str(error)
    return None
