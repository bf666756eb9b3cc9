"""Numbers that may differ from run to run of a plan: arguments of kernels, and seeds. Each has a cell of its own."""

import secrets
from typing import Final, Protocol, final

from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import plain
from dagpu.common.origin import Origin
from dagpu.kernels.call_arguments import check_scalar_argument
from dagpu.lowering.plan import Execute, Plan
from dagpu.lowering.program import Fill
from dagpu.ops.initializers import SEEDS
from dagpu.ops.kernel_spec import KernelSpec, Param


class Use(Protocol):
    """The use of a number: its form, and the check of its value."""

    @property
    def form(self) -> object:
        """Uses of one number that have this in common have the same value, and one cell."""
        ...

    def checked(self, number: float) -> object:
        """The number as it is passed on. Raises what the trace would raise where it does not fit."""
        ...


@final
@plain
class ScalarUse:
    """A parameter of a kernel."""

    spec: KernelSpec
    param: Param
    origin: Origin

    @property
    def form(self) -> object:
        return self.param.check

    def checked(self, number: float) -> object:
        """The number as the kernel takes it.

        Raises:
            KernelArgumentError: it does not fit.
        """
        assert self.param.check is not None
        try:
            return self.param.check(number)
        except KernelArgumentError:
            check_scalar_argument(self.spec, self.param, number, self.origin)  # the same, with the place
            raise


@final
class SeedUse:
    """A seed: any whole number."""

    __slots__ = ()

    @property
    def form(self) -> object:
        return SeedUse

    def checked(self, number: float) -> object:
        """The number modulo 2**64."""
        return int(number) % SEEDS


SEED: Final = SeedUse()


def fresh_seed() -> int:
    """A random seed, for an op whose seed the user did not choose."""
    return secrets.randbelow(SEEDS)


def drawn_cells(plan: Plan) -> tuple[int, ...]:
    """The cells of a captured plan that get a new seed for each launch: all seeds in cells, since seeds that the user
    chose are constants there."""
    return tuple(
        step.instruction.seed.buffer
        for step in plan.steps
        if isinstance(step, Execute) and isinstance(step.instruction, Fill) and step.instruction.seed is not None
    )
