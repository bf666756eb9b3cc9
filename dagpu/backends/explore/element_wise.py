"""Checks a kernel that is declared `in_place`: each element of its output must depend on only one element of an input
that the output may be written over, the one at the same index.

A run in place would not show a violation: a host body that is one NumPy statement reads everything before it writes,
and its result is right, while on a GPU each thread overwrites elements that others have yet to read. So the kernel runs
with separate output memory, then again with about half of the input's elements poisoned, and once more with the other
half poisoned. Each output element whose own input element was not poisoned must be the same in all runs. The halves are
drawn at random with a fixed seed. For more than a few elements, this finds a dependence on another element with near
certainty.
"""

from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.host.arrays import Account, ArenaRange, HostMemory
from dagpu.backends.host.numpy_execution import execute
from dagpu.common.errors import DagpuError
from dagpu.common.layout import Layout
from dagpu.common.places import describe
from dagpu.plans.plan import may_write_over
from dagpu.plans.program import Launch

POISON: Final = 0xFB
"""Value of every byte of a poisoned element. An element of type bool is negated instead."""

_UNCOUNTED: Final = Account()
"""Account of temporary copies, which live only during the check."""

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
