"""Numbers that may differ between runs of a plan: scalar arguments of kernels, and seeds of random numbers. Each has a
cell of its own."""

from collections.abc import Callable
from typing import Final, Protocol, final

from dagpu.common.errors import KernelArgumentError
from dagpu.common.frozen import plain
from dagpu.common.places import Origin
from dagpu.kernels.call_arguments import check_scalar_argument
from dagpu.ops.initializers import SEED_COUNT
from dagpu.ops.kernel_spec import KernelSpec, Param


class NumberUse(Protocol):
    """One use of a number: the form in which the number is passed on, and the check of its value."""

    @property
    def form(self) -> object:
        """The identity of the form. Uses of one number that have the same form share one value and one cell."""
        ...

    @property
    def check(self) -> Callable[[float], object]:
        """The function that `checked` calls first. Its error need not name the place of the use."""
        ...

    def checked(self, number: float) -> object:
        """Return the number in this form. Raise the error that a trace would raise if the number does not fit."""
        ...


@final
@plain
class ScalarUse:
    """The use of a number as a scalar parameter of a kernel."""

    spec: KernelSpec
    param: Param
    origin: Origin

    @property
    def form(self) -> object:
        return self.param.check

    @property
    def check(self) -> Callable[[float], object]:
        assert self.param.check is not None
        return self.param.check

    def checked(self, number: float) -> object:
        """Return the number in the form in which the kernel takes it.

        Raises:
            KernelArgumentError: the number does not fit the parameter's type.
        """
        assert self.param.check is not None
        try:
            return self.param.check(number)
        except KernelArgumentError:
            # This raises the same error with the place of the call.
            check_scalar_argument(self.spec, self.param, number, self.origin)
            raise


@final
class SeedUse:
    """The use of a number as a seed of random numbers. Every integer fits."""

    __slots__ = ()

    @property
    def form(self) -> object:
        return SeedUse

    @property
    def check(self) -> Callable[[float], object]:
        return self.checked

    def checked(self, number: float) -> object:
        """Return the number modulo 2**64."""
        return int(number) % SEED_COUNT


SEED: Final = SeedUse()
