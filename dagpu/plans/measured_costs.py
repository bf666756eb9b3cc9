"""The table of costs: how long kernels took in earlier runs of this process, by kernel, kind of device, and bytes.

Host bodies are measured in the first runs of a plan, and every kernel in a run within `dagpu.trace`. Nothing else is:
on a GPU a time needs two events around a kernel, and a run that has them is not one launch of a graph.

A plan is made with the costs that are known then, and is kept. So the table decides how later plans are scheduled, and
nothing that a run computes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, TypeAlias, final

from dagpu.common.critical import BOOKKEEPING
from dagpu.common.env_vars import MEASURE
from dagpu.common.places import place_of
from dagpu.handles.device_handles import kind_of
from dagpu.ops.kernel_spec import KernelSpec

_KERNELS: Final = 4096
"""The most kernels in the table. The one that came first is dropped first."""
_SIZES: Final = 64
"""The most sizes of a kernel in the table."""
NEAR: Final = 4
"""The most that a size may differ from a measured one, as a factor, for its time to be known. The time of a size that
is further off is a guess: that size is measured too."""
_FIXED: Final = 4
"""The overheads of a launch, in number, that a time is taken to have in it whatever the size. A function of NumPy on a
few numbers, or a kernel between two events, takes some."""

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
        """Return the bytes and seconds of launches on devices of the kind of this one, sorted by bytes; none if none
        were measured."""
        if not self._found or not MEASURE.get():
            return []
        with BOOKKEEPING:
            return sorted(self._found.get(_key(device, kernel), {}).items())

    def clear(self) -> None:
        """Forget all costs."""
        with BOOKKEEPING:
            self._found.clear()


def _key(device: str, kernel: KernelSpec) -> _Key:
    """Return the key of a kernel: its declaration, which changed copies share, and the kind of device. It keeps nothing
    of the user's alive."""
    return kind_of(device), kernel.label, place_of(kernel.origin) or kernel.source_name


def is_near(sizes: Sequence[tuple[int, float]], nbytes: int) -> bool:
    """Return whether one of some sizes, which are sorted, differs from `nbytes` by a factor of `NEAR` at most."""
    place = bisect_left(sizes, (-(-nbytes // NEAR),))
    return place < len(sizes) and sizes[place][0] <= max(nbytes, 1) * NEAR


def at_size(sizes: Sequence[tuple[int, float]], nbytes: int, launch: float, byte: float) -> float:
    """Return the seconds of `nbytes`, by the bytes and seconds of some launches, sorted by bytes.

    Between two sizes, times are on a straight line. Above the largest they go on along a line: that through it and the
    largest of at most half its bytes, or else that of one size. Below the smallest they are on the line of one size: of
    its time the overheads of `_FIXED` launches, of `launch` seconds each, are the same for all bytes, and the rest is
    in proportion. A line rises by `byte` seconds for a byte at least, the device's own pace, unless the size itself was
    faster.
    """
    place = bisect_left(sizes, (nbytes,))
    if 0 < place < len(sizes):
        (size, seconds), (larger, longer) = sizes[place - 1 : place + 1]
        return seconds + (longer - seconds) * (nbytes - size) / (larger - size)
    size, seconds = sizes[min(place, len(sizes) - 1)]
    half = bisect_left(sizes, (size // 2 + 1,)) if place and size else 0
    if half:
        smaller, shorter = sizes[half - 1]
        rate = (seconds - shorter) / (size - smaller)
    else:
        rate = (seconds - _FIXED * launch) / max(size, 1)
    return seconds + (nbytes - size) * max(rate, min(byte, seconds / max(size, 1)))


MEASURED: Final = MeasuredCosts()
"""The costs of this process."""
