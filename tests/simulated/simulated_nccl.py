"""A stand-in for NCCL on simulated GPUs: its kernels wait for each other, as NCCL's do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final, final

import numpy as np
import pytest

from dagpu.common.errors import DeviceError
from dagpu.meshes import nccl
from dagpu.meshes.nccl import ELEMENTS, OPERATIONS, RankCall
from tests.simulated.machine import Machine, Record

TYPES: Final = {number: name for name, number in ELEMENTS.items() if name != "bfloat16"}
COMBINE: Final[dict[int, Any]] = {
    OPERATIONS["sum"]: np.add, OPERATIONS["prod"]: np.multiply, OPERATIONS["max"]: np.maximum,
    OPERATIONS["min"]: np.minimum, OPERATIONS["mean"]: np.add,
}  # fmt: skip


@final
class SimulatedNccl:
    """Implements `Nccl`. It adds from the last rank to the first, so a sum has other bits than the direct one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.opened: list[tuple[int, ...]] = []
        self.groups = 0
        self.refuse = False
        """True if the next group fails."""

    def open(self, devices: Sequence[int]) -> Sequence[Any]:
        self.opened.append(tuple(devices))
        return [(number, len(devices)) for number in devices]

    def all_reduce(self, calls: Sequence[RankCall]) -> None:
        if self.refuse:
            self.refuse = False
            raise DeviceError("ncclGroupEnd failed: unhandled system error (ncclResult 2).", 2)
        self.groups += 1
        machine = self._machine
        with machine.changed:
            arrived = [Record() for _ in calls]
            sums: list[Any] = []

            def add() -> None:
                if not sums:  # the first rank that runs on: all have arrived
                    first, dtype = calls[0], np.dtype(TYPES[calls[0].element])
                    given = [self._array(each, each.send, dtype) for each in reversed(calls)]
                    total = reduce(COMBINE[first.operation], given)
                    sums.append((total / len(calls)).astype(dtype) if first.operation == OPERATIONS["mean"] else total)

            for call, record in zip(calls, arrived, strict=True):
                stream = machine.stream_of(call.stream)
                if stream.gpu.index != call.communicator[0]:
                    machine.problem("a rank's call is in a stream of another device")

                def arrive(record: Record = record) -> None:
                    record.done = True

                stream.put(arrive)
                for other in arrived:
                    stream.put(lambda: None, needs=other)

                def write(call: RankCall = call) -> None:
                    add()
                    self._array(call, call.receive, sums[0].dtype)[...] = sums[0]

                stream.put(write)

    def _array(self, call: RankCall, address: int, dtype: "np.dtype[Any]") -> Any:
        gpu = self._machine.gpus[call.communicator[0]]
        found = gpu.bytes_at(address, call.count * dtype.itemsize)
        assert found is not None, "NCCL reads memory that is not its device's"
        return found.view(dtype)


@contextmanager
def nccl_installed(machine: Machine) -> Iterator[SimulatedNccl]:
    """Within the `with` block, the stand-in is found in the place of NCCL."""
    found = SimulatedNccl(machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "find_nccl", lambda: found)
        nccl.close_communicators()
        try:
            yield found
        finally:
            nccl.close_communicators()
