"""Generated kernels on the CPU: their CUDA text is compiled by g++, and launched on arrays of NumPy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.cuda.commands.buffers import LAYOUT
from dagpu.testing import KernelSpec, check_tiling
from tests.emulation import HERE, Emulation, emulation
from tests.unit.backends.cuda.kernels.emulated_prelude import in_namespace, packed

HALVES: Final = (HERE / "halves.h").read_text().replace("#pragma once\n", "")
BARRIERS: Final = (HERE / "barriers.h").read_text().replace("#pragma once\n", "")

VARIANT: Final = "wide"
"""The variant of the prelude: with strides, 64-bit indices and a linear grid."""


class EmulatedKernels:
    """The kernels of several declarations, compiled once."""

    def __init__(
        self, specs: Sequence[KernelSpec], folder: Path, *, blocks: bool = False, variant: str = VARIANT
    ) -> None:
        """With `blocks`, the threads of a block meet at barriers, and each launch is done in two orders of threads."""
        self._variant = variant
        self.report = np.zeros(LAYOUT.itemsize, np.uint8)
        """The report of the first access out of bounds, in a variant that is checked."""
        self._numbers = {id(spec): number for number, spec in enumerate(specs)}
        self._specs = list(specs)
        self._blocks = blocks
        macro = "EMULATED_BLOCKS" if blocks else "EMULATED"
        prelude, _, rest = in_namespace(variant, "\n@@\n").partition("\n@@\n")
        kernels = "".join(f"namespace n{number} {{\n{spec.cuda}}}\n" for number, spec in enumerate(specs))
        exported = "".join(f"{macro}(k{n}, ({variant}::n{n}::{spec.name}))\n" for n, spec in enumerate(specs))
        text = HALVES + (BARRIERS if blocks else "") + prelude + kernels + rest + exported
        self._device: Emulation = emulation(text, folder)

    def launch(self, spec: KernelSpec, arguments: Sequence[Any], tiles: Sequence[tuple[int, ...]]) -> None:
        """Run a kernel on arrays and numbers, in the order of its parameters. Outputs are written, cut into `tiles`."""
        if not self._blocks:
            self._run(f"k{self._numbers[id(spec)]}", spec, arguments, tiles)
            return
        outputs = [arg for arg, param in zip(arguments, spec.params, strict=True) if param.form.is_written]
        before = [array.copy() for array in outputs]
        self._run(f"k{self._numbers[id(spec)]}_backwards", spec, arguments, tiles)
        backwards = [array.copy() for array in outputs]
        for array, old in zip(outputs, before, strict=True):
            array[...] = old
        self._run(f"k{self._numbers[id(spec)]}_forwards", spec, arguments, tiles)
        for array, other in zip(outputs, backwards, strict=True):
            assert array.tobytes() == other.tobytes(), "the result depends on the order of threads"

    def _run(self, name: str, spec: KernelSpec, arguments: Sequence[Any], tiles: Sequence[tuple[int, ...]]) -> None:
        data, cuts, grid = b"", iter(tiles), spec.grid
        for number, (param, argument) in enumerate(zip(spec.params, arguments, strict=True)):
            if param.form.is_written:
                tile = next(cuts)
                grid = grid or check_tiling(argument.shape, tile, True)[1]
                part, align = packed(self._variant, argument, tile, self.report, number), 8
            elif param.form.is_input:
                part, align = packed(self._variant, argument, None, self.report, number), 8
            else:
                check: Any = param.check
                part = np.array(check(argument)).astype(check.dtype).tobytes()
                align = len(part)
            data = data.ljust(-(-len(data) // align) * align, b"\0") + part
        assert grid is not None
        if 0 not in grid:
            self._device.launch(name, (int(np.prod(grid, dtype=int)),), spec.block or (32,), data)


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """True if two arrays have the same shape, type and bits; a NaN is equal to any NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.dtype.kind in "iub":
        return bool((left == right).all())
    wide = left.astype(np.float64), right.astype(np.float64)  # exact
    both = np.isnan(wide[0]) & np.isnan(wide[1])
    return bool((both | (wide[0].view(np.uint64) == wide[1].view(np.uint64))).all()) if left.size else True
