"""NVTX ranges: how Nsight Systems learns the names of what runs."""

import importlib
from contextlib import AbstractContextManager
from typing import Any

from dagpu.backends.common.measuring import Mark
from dagpu.common.errors import DagpuError


def nvtx_ranges() -> Mark:
    """Gives a range for each name, in the NVTX domain `dagpu`.

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
