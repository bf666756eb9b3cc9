"""`kernel.check(...)`: one run of a kernel on the host, with its CUDA text checked."""

from typing import Any

from dagpu.backends.host.cuda_text.text_checks import checking_kernels
from dagpu.kernels.declaration import CHECKER
from dagpu.ops.base import DeviceOp
from dagpu.runtime.device_lookup import use_device


def _check(op: DeviceOp[Any, Any, Any], tolerance: float | None) -> None:
    with checking_kernels(tolerance), use_device("host"):
        op.sync()


CHECKER.set(_check)
