"""The interface of a backend: it has devices and replays plans on them.

Backends are found by name in the entry point group `dagpu.backends`. Each entry is a callable without arguments that
returns a `Backend`. The core imports no backend.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, final

from dagpu.handles.device_handles import Device
from dagpu.plans.plan import Plan
from dagpu.plans.program import Instruction


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """An instruction of a plan that failed, and the exception it failed with."""

    instruction: Instruction
    error: BaseException


class Run(Protocol):
    """One run of a plan on a backend, which a start returns. Any thread may call its methods."""

    def done(self) -> bool:
        """Return True if all instructions are finished or, after a failure or `cancel`, skipped. Never blocks."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the run is done, for at most `timeout` seconds. Return `done()`."""
        ...

    def poll(self, seconds: float) -> bool:
        """Poll `done()` for at most `seconds` and return it. For waits so short that sleeping would cost more."""
        ...

    def succeeds(self, seconds: float) -> bool:
        """Poll as `poll` does. Return True if the run is done, without a failure and without a cancellation. Else
        `failures` returns what has failed, once the run is done."""
        ...

    @property
    def cancellable(self) -> bool:
        """True if `cancel` may still skip a step; false if everything is submitted to a device."""
        ...

    @property
    def is_launch(self) -> bool:
        """True if the run is one launch of a graph, which has given memory to all outputs."""
        ...

    def readable(self) -> int | None:
        """Return a file descriptor that becomes readable once the run is done, for an event loop to wait for.

        The caller closes it with `os.close`. Return None if the backend's threads may run Python; the caller then uses
        `when_done`.
        """
        ...

    def woken(self) -> None:
        """Note that the descriptor of `readable` has become readable: the run is done, unless its device is lost."""
        ...

    def when_done(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, soon after the run is done, on a thread that may run Python; at once if already done.

        `wake` must be quick and must not raise.
        """
        ...

    def cancel(self) -> None:
        """Skip instructions that have not begun. The others run to their end; `done` returns False until then."""
        ...

    def failures(self) -> list[Failure]:
        """Return the failed instructions in the order of the plan's steps, and drop them.

        Valid once the run is done. Instructions that depend on a failed one were skipped.
        """
        ...

    def spoilt(self) -> frozenset[int] | None:
        """Return the buffers that do not hold what the plan leaves in them: of instructions that failed, were skipped,
        or stopped before their end. All other outputs are complete. Return None if that is not known.

        Valid once the run is done.
        """
        ...


@final
class CompletedRun:
    """A run that is done, without a failure, when its start returns. Implements `Run`."""

    __slots__ = ()
    is_launch: bool = False

    @property
    def cancellable(self) -> bool:
        return False

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def poll(self, seconds: float) -> bool:
        return True

    def succeeds(self, seconds: float) -> bool:
        return True

    def readable(self) -> int | None:
        return None

    def woken(self) -> None:
        return

    def when_done(self, wake: Callable[[], None]) -> None:
        wake()

    def cancel(self) -> None:
        return

    def failures(self) -> list[Failure]:
        return []

    def spoilt(self) -> frozenset[int]:
        return frozenset()


COMPLETED: Final = CompletedRun()
"""What each start returns whose run has ended without a failure, if the backend needs no other object."""


class Strategy(Protocol):
    """One way to start a run. A backend chooses the ways of a plan when it loads it, and tries them in their order."""

    def __call__(self, memory: list[Any], spin: float, /) -> Run | None:
        """Start a run on this memory, as `Prepared.submit` does with `spin`. Return None if the run must be started in
        another way now; this has then at most given memory to outputs.

        Raises:
            DeviceError: the run could not be started. No part of it runs.
        """
        ...


class Prepared(Protocol):
    """A plan that a backend has prepared once, for all of its runs."""

    @property
    def before_first(self) -> Callable[[], None] | None:
        """Slow work to be done once before the first `submit`, such as compilation; None if no such work remains.

        It may be done on any thread. It raises the errors of the plan's kernels.
        """
        ...

    @property
    def before_graph(self) -> Callable[[], None] | None:
        """Slow work to be done once before the first `submit` with `graph`: the instantiation of a large CUDA graph.

        None if no such work remains. It may be done on any thread.
        """
        ...

    @property
    def lacks_graph(self) -> str:
        """The reason why no run of the plan can be one CUDA graph; empty if runs can be, as far as is known."""
        ...

    @property
    def flight(self) -> "Strategy | None":
        """The way to start a run as one launch of an idle graph that the compiled reader takes by itself; None if there
        is none, or none yet."""
        ...

    def submit(self, memory: list[Any], spin: float = 0.0, graph: bool = False) -> Run:
        """Start a run of the plan. Return at once, or with `spin` after polling for its end for that long, or after
        its end.

        `memory[i]` is that of the plan's buffer i: a memory object of the backend for a device buffer, the value for a
        cell. The caller sets the inputs. The run sets the other entries, clears those that the plan releases, and
        leaves the outputs. It keeps the list alive until it is done. An output that is there already is written in
        place: device memory of this backend, or for a cell a NumPy array of the same shape and element type.

        An instruction that fails poisons the buffers that it writes. An instruction that reads or writes a poisoned
        buffer is skipped and poisons its own outputs. All others run. So the set of failures depends on the plan's data
        flow, never on its timing.

        Args:
            memory: the inputs.
            spin: seconds, from a caller that blocks its thread until the end; 0 from any other.
            graph: launch the plan as one CUDA graph. Values that differ between runs (addresses, numbers in cells) are
                first written into the graph's nodes. It has no effect on a backend without graphs, for a plan that
                cannot be one graph (host functions), or while all instances of the graph are in use.

        Raises:
            DeviceError: the run could not be started, for example because of too little memory. No part of it runs.
        """
        ...

    @property
    def launch_whole(self) -> "Callable[[list[object], float, bool], Run | None] | None":
        """Function that starts a run as one launch of a graph, as `submit` does with this memory, this `spin` and
        `graph`, which is true. It returns None if no graph can be launched now, and has then at most given memory to
        outputs. A plan with an `If` is run by this function alone. None if the backend has no graphs."""
        ...

    def keep_memory(self) -> None:
        """From now on keep the memory of temporaries between runs, if it is little and a run is one launch of a graph.
        It does not count as used. For a plan that runs again and again, with no two runs at a time. It has no effect
        on a backend without graphs."""
        ...

    def freeze(self, memory: list[Any]) -> object:
        """Capture the plan with fixed memory as a graph, for `GraphLaunch` instructions. Return the graph.

        `memory` has the inputs and the outputs. The memory of temporaries is allocated now. Only one launch of the
        graph may run at a time. The graph keeps all of its memory alive.

        Raises:
            DeviceError: there is too little memory.
            CaptureError: the plan cannot be launched as one graph.
        """
        ...


@final
class NoWork:
    """A plan without instructions, which needs no backend. Implements `Prepared`."""

    __slots__ = ()
    before_first: None = None
    before_graph: None = None
    launch_whole: None = None
    flight: None = None
    lacks_graph: str = "it has no work"

    def submit(self, memory: list[Any], spin: float = 0.0, graph: bool = False) -> Run:
        return COMPLETED

    def keep_memory(self) -> None:
        return

    def freeze(self, memory: list[Any]) -> object:
        raise AssertionError  # the capture of an op without work is refused before


class Backend(Protocol):
    """A backend: it has devices of one kind and replays plans on them."""

    @property
    def kind(self) -> Literal["host", "cuda", "explore"]: ...

    def device_count(self) -> int:
        """Return the number of devices that dagpu uses unasked; 0 if this machine has none that can be used."""
        ...

    def device(self, index: int) -> Device:
        """Return device number `index`, always the same object.

        Raises:
            NoDeviceError: there is no such device.
        """
        ...

    def prepare(self, plan: Plan) -> Prepared:
        """Prepare a plan for any number of runs, also concurrent ones."""
        ...

    def spin(self) -> float:
        """Return the number of seconds to poll `done()` before sleeping. DAGPU_SPIN_US overrides it."""
        ...
