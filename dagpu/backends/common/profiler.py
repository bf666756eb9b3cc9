"""NVTX ranges, which show the names of instructions in Nsight Systems."""

import importlib
from contextlib import AbstractContextManager
from typing import Any

from dagpu.backends.common.measuring import Mark
from dagpu.common.errors import DagpuError


def nvtx_ranges() -> Mark:
    """Return a function that returns an NVTX range for a name, in the domain `dagpu`.

    Raises:
        DagpuError: the package nvtx is missing.
    """
    try:
        nvtx: Any = importlib.import_module("nvtx")
    except ImportError as error:
        raise DagpuError(
            f"trace(nvtx=True) needs NVIDIA's package nvtx, which cannot be imported ({error}). Install it with "
            "'pip install nvtx', or leave nvtx=True out."
        ) from None

    def annotate(name: str) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = nvtx.annotate(message=name, domain="dagpu")
        return found

    return annotate
