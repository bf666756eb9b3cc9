"""Numbers among the arguments of kernels that may differ from run to run."""

from collections.abc import Callable
from typing import final

from dagpu.frozen import plain
from dagpu.ops.launch import KernelSpec, Param
from dagpu.origin import Origin


@final
@plain
class ScalarUse:
    """A parameter of a kernel to which such a number is passed."""

    spec: KernelSpec
    param: Param
    origin: Origin

    @property
    def check(self) -> Callable[[object], object]:
        """Holds a value against the declared type; gives what is passed."""
        assert self.param.check is not None
        return self.param.check
