"""What a backend is to the rest of dagpu: it has devices, and replays plans on them.

Backends are found by name in the entry point group `dagpu.backends`; each entry is a callable without arguments that
gives a `Backend`. The core imports none of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, final

from dagpu.handles.device_handles import Device
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Instruction


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """One instruction of a plan failed, with this exception."""

    instruction: Instruction
    error: BaseException


@final
class Bindings:
    """What the buffers of a plan are in one replay of it: `memory[i]` belongs to buffer i.

    Device memory is an object of the backend's own; a cell holds its value. The caller puts in the inputs; the replay
    puts in the rest, takes out what the plan releases, and leaves the outputs.
    """

    __slots__ = ("memory",)

    def __init__(self, size: int) -> None:
        self.memory: list[object] = [None] * size


class Replay(Protocol):
    """One plan under way on a backend."""

    def done(self) -> bool:
        """Is everything finished (or, after a failure or `cancel`, skipped)? Never blocks."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done, at most `timeout` seconds; gives back `done()`."""
        ...

    def poll(self, seconds: float) -> bool:
        """Look for the end again and again, for at most so long; gives back `done()`. For waits so short that sleeping
        would cost more."""
        ...

    def readable(self) -> int | None:
        """A file descriptor that becomes readable once the replay is done, for a loop to sleep on; the caller closes
        it with `os.close`. None where the backend's own threads may run Python: then `when_done` is the way."""
        ...

    def when_done(self, wake: Callable[[], None]) -> None:
        """Have `wake` called once, soon after the replay is done: on a thread that may run Python, at once if it is
        done already. `wake` must be quick and must not raise."""
        ...

    def cancel(self) -> None:
        """Skip what has not begun; what has begun goes on to its end. `done` stays false until then."""
        ...

    def failures(self) -> list[Failure]:
        """Once done: what failed, in the order of the plan's steps, handed over. What depended on it was skipped."""
        ...


class Prepared(Protocol):
    """A plan, and what a backend makes of it once for all its runs."""

    @property
    def before_first(self) -> Callable[[], None] | None:
        """Slow work that has to be done once before the first `submit`, such as compiling; None if there is none (any
        more). It may be done on any thread, and raises what is wrong with the plan's kernels."""
        ...

    @property
    def before_graph(self) -> Callable[[], None] | None:
        """Slow work that has to be done once before the first `submit` with `graph`: instantiating a large one; None if
        there is none (any more). It may be done on any thread."""
        ...

    def submit(self, bindings: Bindings, spin: float = 0.0, *, graph: bool = False) -> Replay:
        """Start a run of the plan and return at once, or after polling for its end for at most `spin` seconds.

        `bindings` are kept alive until it is done. An output that they hold already is written where it is: memory of
        the backend's own, or for a cell a NumPy array of the right shape and element type.

        A failing instruction fails the buffers that it writes; instructions that read or write those are skipped and
        fail theirs; all others run. So what fails depends on the plan's data flow, never on its timing.

        Args:
            bindings: the inputs.
            spin: seconds.
            graph: launch it as one CUDA graph. Whatever may differ from run to run (addresses, numbers in cells) is
                written into the graph's nodes first. It means nothing where there are no graphs, and for a plan that
                cannot be one (functions of the host, several devices), or while all its instances are in use.

        Raises:
            DeviceError: nothing could be started, for want of memory, say. Nothing is left running.
        """
        ...

    def freeze(self, bindings: Bindings) -> object:
        """The plan with this memory for good, for `GraphLaunch` instructions: `bindings` hold the inputs and the
        outputs; the memory of its temporaries is taken now. One launch of it at a time. It keeps what it refers to
        alive.

        Raises:
            DeviceError: there is too little memory.
            CaptureError: the plan cannot be launched as a whole.
        """
        ...


class Backend(Protocol):
    """Devices of one kind, and the replaying of plans on them."""

    @property
    def kind(self) -> Literal["host", "cuda", "explore"]: ...

    def device_count(self) -> int:
        """How many devices there are without asking for one by number; 0 where none can be used here."""
        ...

    def device(self, index: int) -> Device:
        """Device number `index`, always the same object; `NoDeviceError` where there is none."""
        ...

    def prepare(self, plan: Plan) -> Prepared:
        """Make ready to run a plan, any number of times, also at once."""
        ...

    def spin(self) -> float:
        """For how many seconds it pays to poll `done()` before sleeping, unless DAGPU_SPIN_US says otherwise."""
        ...
