"""Is a kernel that is declared `in_place` what that says: does each element of its output depend on no other element of
an input that the output may be written over?

To run it in place and compare would not do: a host body that NumPy runs as one statement reads all before it writes,
and gives the right bits, where on a GPU each thread overwrites what others have yet to read. So the kernel is run
beside its input, then again with about half of the input's elements poisoned, and with the other half: each output
element whose own input element was left alone must come out the same. The halves are drawn at random, by a fixed seed,
so what depends on an element elsewhere is found with near certainty for more than a few elements.
"""

from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dagpu.backends.host.arrays import Account, HostMemory, Part
from dagpu.backends.host.execute import execute
from dagpu.errors import DagpuError
from dagpu.layout import Layout
from dagpu.lowering.plan import may_write_over
from dagpu.lowering.program import Launch, Tiles, View
from dagpu.origin import describe

POISON: Final = 0xFB
"""In every byte of an element that must not matter; an element of bool is negated instead."""

_UNCOUNTED: Final = Account()
"""Of copies that are gone when the check is over."""

_Bytes: TypeAlias = NDArray[Any]


def check_element_wise(launch: Launch, memory: list[object]) -> None:
    """Check a launch of a kernel that is declared `in_place`, for each input that an output may be written over.

    `memory` is what the buffers are bound to; it is left as it was. The host body is called up to three times for each
    such input. Where it raises, nothing is said: that is for the run to show.

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
    """The host body raised, on poisoned numbers perhaps."""


@final
class _Runs:
    """Runs a launch beside its inputs, as often as is asked."""

    def __init__(self, launch: Launch, memory: list[object]) -> None:
        self._launch = launch
        self._memory = memory

    def outputs(self, source: int = -1, poisoned: "NDArray[np.bool_] | None" = None) -> dict[int, HostMemory]:
        """What is in each output afterwards, with these elements of buffer `source` poisoned."""
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
    assert isinstance(held, HostMemory | Part), f"{held!r} is no memory of the explore backend"
    copy = HostMemory(_UNCOUNTED, len(held.block))
    copy.block[:] = held.block
    return copy


def _layout(launch: Launch, buffer: int) -> Layout:
    """How a buffer is seen by the launch: all its views of it are alike, or it could not be written in place."""
    views = [arg.view if type(arg) is Tiles else arg for arg in launch.args]
    return next(view.layout for view in views if type(view) is View and view.buffer == buffer)


def _halves(shape: tuple[int, ...]) -> tuple[Any, Any]:
    first = np.random.default_rng(0).random(shape) < 0.5
    return first, ~first


def _elements(memory: HostMemory, layout: Layout) -> _Bytes:
    """Each element as its bytes."""
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
    names = {
        (arg.view if type(arg) is Tiles else arg).buffer: param.name
        for param, arg in zip(kernel.params, launch.args, strict=True)
        if type(arg) is Tiles or type(arg) is View
    }
    return DagpuError(
        f"kernel {kernel.name}, declared at {describe(kernel.origin)} and launched at {describe(launch.origin)}, says "
        f"in_place=True, but is not element-wise: {names[out]!r} at index {index} comes out different when other "
        f"elements of {names[source]!r} change. Written over {names[source]!r} it would read what it has overwritten. "
        "Leave in_place=True out, or have it read an element of that input only to write the same one."
    )
