"""The table of costs: how long kernels took in earlier runs of this process, by kernel, kind of device, and bytes.

Host bodies are measured in the first runs of a plan, and every kernel in a run within `dagpu.trace`. Nothing else is:
on a GPU a time needs two events around a kernel, and a run that has them is not one launch of a graph.

A plan is made with the costs that are known then, and is kept. So the table decides how later plans are scheduled, and
nothing that a run computes.
"""

from collections.abc import Iterable
from math import log
from typing import Final, TypeAlias, final

from dagpu.common.critical import BOOKKEEPING
from dagpu.common.env_vars import MEASURE
from dagpu.common.origin import place_of
from dagpu.handles.device_handles import kind_of
from dagpu.ops.kernel_spec import KernelSpec

_KERNELS: Final = 4096
"""The most kernels in the table. The one that came first is dropped first."""
_SIZES: Final = 64
"""The most sizes of a kernel in the table."""

_Key: TypeAlias = tuple[str, str, object]


@final
class MeasuredCosts:
    """Seconds of launches, without the overhead of a launch. Several threads may use it at once."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[_Key, dict[int, float]] = {}
        """For each kernel and kind of device the least seconds, by bytes. The least is closest to what the kernel takes
        by itself: a first call and a busy machine only add to it."""

    def add(self, device: str, kernel: KernelSpec, nbytes: int, seconds: float) -> None:
        """Note that a launch on the device of this name took so many seconds, and moved so many bytes."""
        if not MEASURE.get():
            return
        key = _key(device, kernel)
        with BOOKKEEPING:
            sizes = self._found.setdefault(key, {})
            sizes[nbytes] = min(seconds, sizes.get(nbytes, seconds))
            if len(sizes) > _SIZES:
                del sizes[next(iter(sizes))]
            if len(self._found) > _KERNELS:
                del self._found[next(iter(self._found))]

    def sizes(self, device: str, kernel: KernelSpec) -> list[tuple[int, float]]:
        """Return the bytes and seconds of launches on devices of the kind of this one; none if none were measured."""
        if not self._found or not MEASURE.get():
            return []
        with BOOKKEEPING:
            return list(self._found.get(_key(device, kernel), {}).items())

    def clear(self) -> None:
        """Forget all costs."""
        with BOOKKEEPING:
            self._found.clear()


def _key(device: str, kernel: KernelSpec) -> _Key:
    """Return the key of a kernel: its declaration, which changed copies share, and the kind of device. It keeps nothing
    of the user's alive."""
    return kind_of(device), kernel.label, place_of(kernel.origin) or kernel.source_name


def in_proportion(sizes: Iterable[tuple[int, float]], nbytes: int) -> float:
    """Return the seconds at the nearest of some bytes, by ratio, in proportion to `nbytes`."""
    wanted = max(nbytes, 1)
    size, seconds = min(sizes, key=lambda known: abs(log(max(known[0], 1) / wanted)))
    return seconds * wanted / max(size, 1)


MEASURED: Final = MeasuredCosts()
"""The costs of this process."""
