"""The functions that choose a kernel launch or a driver call for an instruction, bundled as one argument of the
backend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

from dagpu.backends.cuda.driver.driver_protocol import Limits
from dagpu.backends.cuda.kernels import deciding, fill_and_copy, launch_params
from dagpu.backends.cuda.kernels.fill_and_copy import BuiltinWork, Memcpy, Memcpy2D, Memset
from dagpu.backends.cuda.kernels.launch_params import PackedLaunch
from dagpu.common.layout import Layout
from dagpu.ops.initializers import Recipe
from dagpu.plans.program import Launch


class CopyFactory(Protocol):
    """The type of `fill_and_copy.copy`."""

    def __call__(self, out: Layout, source: Layout, *, by_kernel: bool = False) -> BuiltinWork | Memcpy | Memcpy2D: ...


@final
@dataclass(frozen=True, slots=True)
class LaunchFactories:
    """One function for each kind of instruction. The defaults launch real kernels; a simulated GPU has its own."""

    pack: Callable[[Launch, Limits], PackedLaunch | None] = launch_params.pack
    """Packs the parameters of a user's kernel; returns None if its grid is empty."""
    fill: Callable[[Recipe, Layout], BuiltinWork | Memset] = fill_and_copy.fill
    """Chooses a kernel or a memset that initializes an array."""
    copy: CopyFactory = fill_and_copy.copy
    """Chooses a kernel or a memcpy that copies one array to another."""
    decide: Callable[[Sequence[int]], BuiltinWork] = deciding.decide
    """Returns the kernel that decides whether the body of a conditional node runs."""


LAUNCH_FACTORIES: Final = LaunchFactories()
"""The factories for real GPUs."""
