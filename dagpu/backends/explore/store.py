"""Poisoned memory for the buffers of a plan that is explored.

All of a run's memory exists from its start to its end, as on a GPU. Every byte without a valid value has a pattern that
tells the reason. Temporaries are in one arena for each device, at the offsets of the plan. So two buffers that
wrongly share bytes at the same time corrupt each other.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.explore.machine import Script
from dagpu.backends.host.arrays import Account, ArenaRange, HostMemory
from dagpu.backends.host.cuda_text.launching import RANDOM, Order, texts_run
from dagpu.backends.host.numpy_execution import check_declared_sight, execute
from dagpu.common.critical import enter_user_code, restore_section
from dagpu.common.errors import DagpuError
from dagpu.common.layout import Layout
from dagpu.common.places import describe
from dagpu.plans.plan import may_write_over
from dagpu.plans.program import HOST, GraphLaunch, Instruction, Launch, Role

# ---- checks a kernel that is declared `in_place`: each element of its output must depend on only one element of an
# input
# that the output may be written over, the one at the same index.
#
# A run in place would not show a violation: a host body that is one NumPy statement reads everything before it writes,
# and its result is right, while on a GPU each thread overwrites elements that others have yet to read. So the kernel
# runs with separate output memory, then again with about half of the input's elements poisoned, and once more with the
# other half poisoned. Each output element whose own input element was not poisoned must be the same in all runs. The
# halves are drawn at random with a fixed seed. For more than a few elements, this finds a dependence on another element
# with near certainty.


POISON: Final = 0xFB
"""Value of every byte of a poisoned element. An element of type bool is negated instead."""

_UNCOUNTED: Final = Account()
"""Account of the copies that instructions and checks work on. They belong to the machine, not to the run."""

_Bytes: TypeAlias = NDArray[Any]


def check_element_wise(launch: Launch, memory: list[object]) -> None:
    """Check a launch of a kernel that is declared `in_place`, for each input that an output may be written over.

    `memory` has the memory of each buffer; its contents are not changed. The host body is called once, and up to twice
    more for each pair of such an input and output. If it raises, the check reports nothing: the run will raise it too.

    Raises:
        DagpuError: the kernel is not element-wise. Names the kernel, input and output, an index, where, and the cure.
    """
    pairs = [(s, o) for s in dict.fromkeys(launch.reads) for o in launch.writes if may_write_over(launch, s, o)]
    if not pairs:
        return
    found = _Runs(launch, memory)
    try:
        right = found.outputs()
        for source, out in pairs:
            layout = _layout(launch, out)
            for poisoned in _halves(layout.shape):
                made = found.outputs(source, poisoned)
                wrong = (_elements(made[out], layout) != _elements(right[out], layout)) & ~poisoned
                if wrong.any():
                    raise _not_element_wise(launch, source, out, tuple(int(n) for n in np.argwhere(wrong)[0]))
    except _BodyError:
        return


@final
class _BodyError(Exception):
    """The host body raised an error, perhaps because of poisoned numbers."""


@final
class _Runs:
    """Runs a launch repeatedly, with its outputs in separate memory."""

    def __init__(self, launch: Launch, memory: list[object]) -> None:
        self._launch = launch
        self._memory = memory

    def outputs(self, source: int = -1, poisoned: "NDArray[np.bool_] | None" = None) -> dict[int, HostMemory]:
        """Run the launch with these elements of buffer `source` poisoned. Return the contents of each output."""
        launch, memory = self._launch, self._memory
        before = {buffer: memory[buffer] for buffer in (*launch.reads, *launch.writes)}
        made = {buffer: _copy(before[buffer]) for buffer in launch.writes}
        for buffer, copy in made.items():
            memory[buffer] = copy
        if poisoned is not None:
            memory[source] = copy = _copy(before[source])
            _poison(copy, _layout(launch, source), poisoned)
        try:
            with np.errstate(all="ignore"):
                execute(launch, memory)
        except Exception as error:
            raise _BodyError from error
        finally:
            for buffer, held in before.items():
                memory[buffer] = held
        return made


def _copy(held: object) -> HostMemory:
    assert isinstance(held, HostMemory | ArenaRange), f"{held!r} is not memory of the explore backend"
    copy = HostMemory(_UNCOUNTED, len(held.block))
    copy.block[:] = held.block
    return copy


def _layout(launch: Launch, buffer: int) -> Layout:
    """Return the layout of a launch's views of a buffer. They are all alike, or it could not be written in place."""
    return next(view.layout for _, view in launch.views if view.buffer == buffer)


def _halves(shape: tuple[int, ...]) -> tuple[Any, Any]:
    first = np.random.default_rng(0).random(shape) < 0.5
    return first, ~first


def _elements(memory: HostMemory, layout: Layout) -> _Bytes:
    """Return a view of the memory with the bytes of each element as one item."""
    kind = np.dtype((np.void, layout.dtype.itemsize))
    return np.ndarray(layout.shape, kind, memory.block, layout.offset, layout.strides)


def _poison(memory: HostMemory, layout: Layout, where: "NDArray[np.bool_]") -> None:
    if layout.dtype == np.bool_:
        bits = np.ndarray(layout.shape, np.bool_, memory.block, layout.offset, layout.strides)
        bits[where] = ~bits[where]
    else:
        _elements(memory, layout)[where] = np.void(bytes([POISON]) * layout.dtype.itemsize)


def _not_element_wise(launch: Launch, source: int, out: int, index: tuple[int, ...]) -> DagpuError:
    kernel = launch.kernel
    names = {view.buffer: kernel.params[index].name for index, view in launch.views}
    return DagpuError(
        f"kernel {kernel.name}, declared at {describe(kernel.origin)} and launched at {describe(launch.origin)}, says "
        f"in_place=True, but is not element-wise: {names[out]!r} at index {index} comes out different when other "
        f"elements of {names[source]!r} change. Written over {names[source]!r} it would read what it has overwritten. "
        "Leave in_place=True out, or have it read an element of that input only to write the same one."
    )


FREED: Final = 0xFD
"""Pattern of bytes that belong to no buffer: before the first allocation, and after a release."""
FRESH: Final = 0xFB
"""Pattern of bytes that are allocated and not yet written."""
SPOILED: Final = 0xF9
"""Pattern of the outputs of an instruction that has failed."""

_Block: TypeAlias = NDArray[np.uint8]
_Memory: TypeAlias = HostMemory | ArenaRange


@final
class PoisonedStore:
    """The memory of one execution of a script at a time, in the list of a run. Implements `Store`.

    An instruction writes to copies from its begin until it is published. This includes the caller's tensors, because
    another run may have its turn in between. `dagpu.backends.explore.machine` gives the reason.
    """

    __slots__ = (
        "_arenas", "_begun", "_checked", "_flights", "_given", "_memory", "_own", "_script", "_spare", "_taken", "seed",
    )  # fmt: skip

    def __init__(self, script: Script, memory: list[object], accounts: Sequence[Account]) -> None:
        plan = script.plan
        self._script = script
        self._begun = 0
        self.seed: int | None = None
        """The seed of the orders of threads and blocks in CUDA texts; None: they run in the usual one."""
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
        self.reset(memory)

    def reset(self, memory: list[object]) -> None:
        """Poison all memory other than inputs, for one more execution in this list: that of the construction, or a
        copy."""
        self._memory = memory
        for block in (*self._arenas, *self._own):
            block.block[:] = FREED
        for number, buffer in enumerate(self._script.plan.buffers):
            if buffer.device == HOST and buffer.role is not Role.INPUT and number not in self._given:
                memory[number] = None

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
            if self.seed is None:
                execute(instruction, memory, plan=self._script.plan)
            else:
                self._begun += 1
                order = Order(RANDOM, RANDOM, (self.seed * 1009 + self._begun) % (1 << 31))
                with texts_run(order=order, here=True):
                    execute(instruction, memory, plan=self._script.plan)
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
