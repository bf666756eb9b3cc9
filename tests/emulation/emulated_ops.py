"""Ops of generated kernels on the CPU: each launch runs the emulated CUDA text, and what is between them runs in
NumPy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp
from dagpu.ops.compose import Cut, Item, Launch, Map, Reshape, Uncut, Unzip, Value, Zip
from dagpu.ops.creation import Alloc, FromHost
from dagpu.testing import live_state, nodes_of
from tests.emulation.emulated_kernels import EmulatedKernels


class EmulatedOps:
    """The kernels of several ops, compiled once. The threads of a block meet at barriers, in two orders."""

    def __init__(self, ops: Sequence[DeviceOp[Any, Any, Any]], folder: Path) -> None:
        launches = [node for op in ops for node in nodes_of(op) if isinstance(node, Launch)]
        specs = {id(launch.kernel): launch.kernel for launch in launches}
        self.device = EmulatedKernels(list(specs.values()), folder, blocks=True)

    def result(self, op: DeviceOp[Any, Any, Any], arrays: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
        """Return the result of an op. `arrays` are the contents of the handles in it, by the address of their
        memory."""
        (found,) = self.results(op, arrays)
        return found

    def results(self, op: DeviceOp[Any, Any, Any], arrays: Mapping[int, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the components of the result of an op, or its only one."""
        found: Any = _Run(self.device, arrays).value(op)
        return list(map(np.asarray, found if isinstance(found, tuple) else (found,)))


class _Run:
    def __init__(self, device: EmulatedKernels, arrays: Mapping[int, NDArray[Any]]) -> None:
        self._device = device
        self._arrays = arrays
        self._found: dict[int, Any] = {}

    def value(self, x: Any) -> Any:
        """Return the value of an op or of an argument: an array; with its tile where it is cut; a number."""
        if id(x) not in self._found:
            self._found[id(x)] = self._made(x)
        return self._found[id(x)]

    def _made(self, x: Any) -> Any:
        match x:
            case FromHost(array=array):
                return array.copy()
            case Alloc(shape=shape, dtype=dtype, recipe=None):
                return np.zeros(shape, dtype)
            case Map(source=source, f=Cut(tile=tile)):
                return self.value(source), tile
            case Map(source=source, f=Reshape(shape=shape)):
                return self.value(source).reshape(shape)
            case Map(source=source, f=Uncut()):
                return self.value(source)[0]
            case Map(source=source, f=Item(index=index)):
                return self.value(source)[index]
            case Unzip(split=split, index=index):
                return self.value(split.source)[index]
            case Value(content=content):
                return self.value(content)
            case Zip(sources=sources):
                return tuple([self.value(source) for source in sources])
            case Launch(kernel=kernel, args=args):
                values = [self.value(arg) for arg in args]
                arrays = [value[0] if isinstance(value, tuple) else value for value in values]
                tiles = [value[1] for value in values if isinstance(value, tuple)]
                self._device.launch(kernel, arrays, tiles)
                return tuple(values)
            case int() | float():
                return x
            case _:
                state = live_state(x)
                return self._arrays[id(state.storage)].reshape(state.layout.shape)
