"""Poisoned memory for the buffers of a plan that is explored.

All of a run's memory exists from its start to its end, as on a GPU. Every byte without a valid value has a pattern that
tells the reason. Temporaries are in one arena for each device, at the offsets of the plan. So two buffers that
wrongly share bytes at the same time corrupt each other.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.explore.element_wise import check_element_wise
from dagpu.backends.explore.script import Script
from dagpu.backends.host.arrays import Account, ArenaRange, HostMemory
from dagpu.backends.host.numpy_execution import check_declared_sight, execute
from dagpu.common.critical import enter_user_code, restore_section
from dagpu.plans.program import HOST, GraphLaunch, Instruction, Launch, Role

FREED: Final = 0xFD
"""Pattern of bytes that belong to no buffer: before the first allocation, and after a release."""
FRESH: Final = 0xFB
"""Pattern of bytes that are allocated and not yet written."""
SPOILED: Final = 0xF9
"""Pattern of the outputs of an instruction that has failed."""

_Block: TypeAlias = NDArray[np.uint8]
_Memory: TypeAlias = HostMemory | ArenaRange

_UNCOUNTED: Final = Account()
"""Account of the copies that instructions work on. They belong to the machine, not to the run."""


@final
class PoisonedStore:
    """The memory of one execution of a script at a time, in the list of a `Bindings`. Implements `Store`.

    An instruction writes to copies from its begin until it is published. This includes the caller's tensors, because
    another run may have its turn in between. `dagpu.backends.explore.script` gives the reason.
    """

    __slots__ = ("_arenas", "_checked", "_flights", "_given", "_memory", "_own", "_script", "_spare", "_taken")

    def __init__(self, script: Script, memory: list[object], accounts: Sequence[Account]) -> None:
        plan = script.plan
        self._script = script
        self._memory = memory
        self._taken = frozenset(script.successor.values())
        self._flights: list[list[tuple[int, object, object]]] = [[] for _ in script.lanes]
        self._spare: dict[int, list[HostMemory]] = {}
        self._checked: set[int] = set()
        self._arenas = [HostMemory(account, size) for account, size in zip(accounts, plan.arena_bytes, strict=True)]
        self._own: list[HostMemory] = []
        self._given = frozenset(number for number, held in enumerate(memory) if held is not None)
        for number, buffer in enumerate(plan.buffers):
            if buffer.role is Role.INPUT or buffer.device == HOST or number in self._given:
                continue
            offset, account = plan.offsets[number], accounts[buffer.device]
            if offset >= 0 and buffer.role is Role.TEMPORARY:
                memory[number] = ArenaRange(self._arenas[buffer.device], offset, buffer.nbytes)
            else:
                memory[number] = own = HostMemory(account, buffer.nbytes)
                self._own.append(own)
        self.reset()

    def reset(self) -> None:
        """Poison all memory other than inputs, for one more execution."""
        for block in (*self._arenas, *self._own):
            block.block[:] = FREED
        for number, buffer in enumerate(self._script.plan.buffers):
            if buffer.device == HOST and number not in self._given:
                self._memory[number] = None

    def close(self) -> None:
        """Release all memory other than inputs and outputs."""
        for number, buffer in enumerate(self._script.plan.buffers):
            if buffer.role is Role.TEMPORARY:
                self._memory[number] = None
        self._arenas, self._own, self._spare, self._flights = [], [], {}, []

    def allocate(self, buffer: int) -> None:
        if buffer not in self._taken:
            self._block(buffer)[:] = FRESH

    def release(self, buffer: int) -> None:
        if buffer not in self._script.successor:
            self._block(buffer)[:] = FREED

    def begin(self, lane: int, instruction: Instruction) -> None:
        before = enter_user_code()
        try:
            if type(instruction) is GraphLaunch:  # a graph has its own fixed memory and cannot work on copies
                execute(instruction, self._memory)
                return
            if isinstance(instruction, Launch) and (instruction.kernel.in_place or instruction.kernel.sees is not None):
                self._check(instruction)
            self._execute(lane, instruction)
        finally:
            restore_section(before)

    def _execute(self, lane: int, instruction: Instruction) -> None:
        memory, flight = self._memory, self._flights[lane]
        lent = [(buffer, memory[buffer]) for buffer in instruction.writes]
        for buffer, live in lent:
            if isinstance(live, _Memory):
                memory[buffer] = self._copy(live)
        over = self._written_over(instruction)
        try:
            execute(instruction, memory)
        finally:
            for buffer, live in lent:
                flight.append((buffer, live, memory[buffer]))
                memory[buffer] = live
            for buffer, live in over:
                memory[buffer] = live

    def _check(self, launch: Launch) -> None:
        """Check a launch of a kernel that is declared `in_place`, or declares what its tiles see, once for each script,
        however often the script is executed."""
        if id(launch) not in self._checked:
            self._checked.add(id(launch))
            if launch.kernel.in_place:
                check_element_wise(launch, self._memory)
            check_declared_sight(launch, self._memory)

    def publish(self, lane: int, instruction: Instruction) -> None:
        flight = self._flights[lane]
        for buffer, live, made in flight:
            if isinstance(live, _Memory):
                assert isinstance(made, HostMemory)
                live.block[:] = made.block
                self._spare[len(made.block)].append(made)
            else:
                self._memory[buffer] = made
        flight.clear()

    def spoil(self, lane: int, instruction: Instruction) -> None:
        self._flights[lane].clear()
        for buffer in instruction.writes:
            memory = self._memory[buffer]
            if isinstance(memory, _Memory):
                memory.block[:] = SPOILED
            else:
                self._memory[buffer] = None

    def _written_over(self, instruction: Instruction) -> list[tuple[int, object]]:
        """Bind inputs at the address of an output to the output's copy. Return the buffers with their old memory."""
        memory, successor, over = self._memory, self._script.successor, list[tuple[int, object]]()
        if successor:
            for buffer in set(instruction.reads):
                out = successor.get(buffer)
                if out is not None and out in instruction.writes:
                    over.append((buffer, memory[buffer]))
                    memory[buffer] = memory[out]
        return over

    def _copy(self, live: _Memory) -> HostMemory:
        size = len(live.block)
        spare = self._spare.setdefault(size, [])
        copy = spare.pop() if spare else HostMemory(_UNCOUNTED, size)
        copy.block[:] = live.block
        return copy

    def _block(self, buffer: int) -> _Block:
        memory = self._memory[buffer]
        assert isinstance(memory, _Memory), f"buffer {buffer} is bound to {memory!r}"
        return memory.block
