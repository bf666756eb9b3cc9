"""Each launch checked: its CUDA text in three orders of threads and blocks, with and without contraction, and against
its host body.

Sums of floats in another order, and `a * b + c` that is rounded once, differ by some units in the last place of the
largest term. So two results are compared by `|a - b| <= k * eps * largest element`; k is 32, or four times what
contraction alone changes, whichever is more. (Of 61 kernels of dagpu's own, the largest difference between host body
and text was 23 eps of the largest element, where no terms cancel.)
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.host.arrays import writable_array
from dagpu.backends.host.cuda_text.compilers import Mode
from dagpu.backends.host.cuda_text.launching import BACKWARDS, FORWARDS, RANDOM, Order, run_text, texts_run
from dagpu.common.errors import KernelMismatchError
from dagpu.common.layout import FLOATING
from dagpu.common.places import describe
from dagpu.plans.plan import Plan
from dagpu.plans.program import Launch, Tiles

ORDERS: Final = (Order(FORWARDS, FORWARDS), Order(BACKWARDS, BACKWARDS), Order(RANDOM, RANDOM, 7))
"""The orders in which each text runs."""

_FUSES_NOTHING: Final = frozenset({"-fmad=false", "--fmad=false"})
"""Options by which CUDA's compilers do not contract either: dagpu's own kernels have them."""

_ULPS: Final = 32
_SPREADS: Final = 4


@final
@dataclass(slots=True)
class CheckedKernels:
    """What has been checked, by the name of the kernel."""

    tolerance: float | None = None
    """The largest difference that is allowed, as a part of the largest element; None: see this module."""
    launches: dict[str, int] = field(default_factory=dict)
    """The number of launches that were checked of each kernel."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest difference between two results of each kernel, as a part of the largest element."""
    begun: set[str] = field(default_factory=set)
    """The kernels with launches that were begun, those that failed too."""
    lock: Any = field(default_factory=threading.Lock)

    def note(self, name: str, difference: float) -> None:
        """Count a launch of a kernel."""
        with self.lock:
            self.launches[name] = self.launches.get(name, 0) + 1
            self.largest[name] = max(self.largest.get(name, 0.0), difference)


_open: Final[list[CheckedKernels]] = []


@contextmanager
def checking_kernels(tolerance: float | None = None) -> Iterator[CheckedKernels]:
    """Check each launch on the host, in all threads, while the block is open.

    Its CUDA text is run in three orders of threads and blocks, with and without contraction. Its results are compared
    with each other, and with those of the host body where there is one. What the launch leaves is what it leaves
    without this.

    Args:
        tolerance: the largest difference that is allowed, as a part of the largest element of an output; None for 32
            units in the last place of that, or four times what contraction changes, whichever is more. Whole numbers
            and bools have to be equal.

    Raises (in the runs):
        KernelMismatchError: two results differ by more.
        KernelFaultError, KernelBoundsError: the text does what it must not.
    """
    checked = CheckedKernels(tolerance)
    _open.append(checked)
    try:
        yield checked
    finally:
        _open.remove(checked)


def current_checks() -> CheckedKernels | None:
    """Return the innermost open block; None if none is open."""
    return _open[-1] if _open else None


def check_launch(
    checks: CheckedKernels,
    launch: Launch,
    memory: Sequence[object],
    plan: Plan | None,
    body: Callable[[], None] | None,
) -> None:
    """Run a launch by its host body, or by its text without one, and check it. See `checking_kernels`. Launches whose
    host bodies do their work together run by their texts."""
    checks.begun.add(launch.kernel.name)
    arrays = [writable_array(memory[a.view.buffer], a.view.layout) for a in launch.args if type(a) is Tiles]
    before = [array.copy() for array in arrays]

    def results(order: Order, mode: Mode) -> "list[NDArray[Any]]":
        for array, old in zip(arrays, before, strict=True):
            array[...] = old
        with texts_run(order=order, mode=mode, here=True):
            run_text(launch, memory, plan=plan)
        return [array.copy() for array in arrays]

    runs = [(f"in order {number}", results(order, Mode())) for number, order in enumerate(ORDERS, 1)]
    if not _FUSES_NOTHING.intersection(launch.kernel.options):
        runs.append(("with contraction", results(ORDERS[0], Mode(checked=False, contracted=True))))
    plain = runs[0][1]
    spreads = [_distance(*pair) for pair in zip(plain, runs[-1][1], strict=True)]
    if launch.kernel.host.together:
        body = None
    if body is not None:
        for array, old in zip(arrays, before, strict=True):
            array[...] = old
        body()
        runs.append(("by its host body", [array.copy() for array in arrays]))
    for array, left in zip(arrays, runs[-1][1] if body is not None else plain, strict=True):
        array[...] = left
    largest = 0.0
    for what, made in runs[1:]:
        for number, (one, other) in enumerate(zip(plain, made, strict=True)):
            difference = _distance(one, other)
            largest = max(largest, difference)
            allowed = checks.tolerance
            if allowed is None:
                allowed = max(_ULPS * _eps(one.dtype), _SPREADS * spreads[number])
            if difference > allowed and not (what == "with contraction" and checks.tolerance is None):
                raise _mismatch(launch, number, one, other, what, difference, allowed)
    checks.note(launch.kernel.name, largest)


def _eps(dtype: "np.dtype[Any]") -> float:
    if dtype.kind == "c":
        dtype = _part(dtype)
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else _SMALL.get(dtype.name, 0.0)


def _part(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    """Return the type of the real part of a complex number."""
    return np.dtype(f"f{dtype.itemsize // 2}")


_SMALL: Final = {"bfloat16": 2.0**-7}


def _distance(one: "NDArray[Any]", other: "NDArray[Any]") -> float:
    """Return the largest difference as a part of the largest element; infinity where whole numbers, infinities or NaNs
    differ."""
    if not one.size or one.tobytes() == other.tobytes():
        return 0.0
    if one.dtype.kind == "c":
        part = _part(one.dtype)
        return _distance(np.ascontiguousarray(one).view(part), np.ascontiguousarray(other).view(part))
    if one.dtype not in FLOATING:
        return 0.0 if np.array_equal(one, other) else float("inf")
    left, right = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(left[finite] - right[finite]).max() / (np.abs(left[finite]).max() or 1.0))


def _mismatch(
    launch: Launch, number: int, one: "NDArray[Any]", other: "NDArray[Any]", what: str, by: float, allowed: float
) -> KernelMismatchError:
    spec = launch.kernel
    names = [param.name for param, arg in zip(spec.params, launch.args, strict=True) if type(arg) is Tiles]
    apart = np.argwhere(~((one == other) | ((one != one) & (other != other))))
    at = tuple(int(i) for i in apart[0]) if len(apart) else ()
    return KernelMismatchError(
        f"kernel {spec.name!r}, launched at {describe(launch.origin)}: its CUDA text makes {names[number]}[{at}] = "
        f"{one[at]!s}, and {what} it is {other[at]!s}; {len(apart):,} of {one.size:,} elements differ, by up to "
        f"{by:.3g} of the largest one, and {allowed:.3g} is allowed. Correct the text or the host body, or give a "
        "tolerance."
    )
