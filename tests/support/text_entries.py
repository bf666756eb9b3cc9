"""Several kernels of one text, run on the host by dagpu's runtime of CUDA texts on parameters that are packed already.

It is for texts that no launch of an op reaches: those of the prelude in each variant, fills and copies, conditions.
Their memory is not known to the runtime, so no access is checked; `tests/support/text_runs.py` checks kernels.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from dagpu.backends.host.cuda_text.launching import _Run
from dagpu.backends.host.cuda_text.loaded_kernel import LoadedKernel, loaded_kernel
from dagpu.testing import KernelSpec, Launch, Mode, Order

_QUICKLY: Final = '#pragma GCC optimize("O0")\n'
"""What compiles a long text in half the time, and runs it once or twice."""

_ENTRY: Final = """
extern "C" DAGPU_QUIET DAGPU_SHOWN std::size_t run_{name}(
    const unsigned char* packed, void (**thunk)(const void*), void* arguments, std::size_t room
) {{ return dagpu_emulated::unpack(&{kernel}, packed, thunk, arguments, room); }}
"""


@final
class TextEntries:
    """The kernels that a text has, by names of their own."""

    def __init__(self, text: str, kernels: Mapping[str, str]) -> None:
        """`kernels` are C++ expressions for the functions, by name: `visit3: plain::visit<3>`."""
        entries = "".join(_ENTRY.format(name=name, kernel=kernel) for name, kernel in kernels.items())
        spec = KernelSpec(
            "no_kernel", (), f"{_QUICKLY}{text}{entries}__global__ void no_kernel() {{}}\n", "entries of a test",
            abi="pointers", block=None, options=(), checked=False, origin=None,
        )  # fmt: skip
        self._launch = Launch(spec, (), (1,), (), (), 0, None)
        self._kernel = loaded_kernel(spec, 0, Mode(checked=False))

    def launch(
        self, name: str, grid: Sequence[int], block: Sequence[int], packed: bytes, order: Order | None = None
    ) -> None:
        """Run a kernel to its end. `packed` must have the length of its parameters."""
        kernel: LoadedKernel = copy.copy(self._kernel)
        kernel.entry = kernel.library[f"run_{name}"]
        kernel.entry.restype = kernel.library.dagpu_entry.restype
        run = _Run(kernel, self._launch, _three(grid), _three(block), order or Order())
        assert run.run(bytearray(packed), None) == 0
        assert not run.faults({})


def _three(extents: Sequence[int]) -> Any:
    return (*extents, *(1,) * (3 - len(extents)))
