"""An event is recorded with the context that the thread has, and in its own where the driver refuses that."""

from typing import Any, Final, final

import pytest

from dagpu.backends.cuda.driver.driver_protocol import EXIT_GUARD
from dagpu.backends.cuda.driver.pycuda_driver import PyCudaGpu
from dagpu.backends.cuda.driver.pycuda_streams import Context

OURS: Final = "our context"


@final
class Bindings:
    """The driver's calls for contexts and events. An event of ours is recorded where our context is current."""

    def __init__(self, current: list[str]) -> None:
        self.current = current
        self.calls: list[str] = []
        self.recorded: list[str] = []

    def cuCtxPushCurrent(self, context: str) -> tuple[int]:  # noqa: N802  # the driver's name
        self.calls.append("push")
        self.current.append(context)
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, str]:  # noqa: N802
        self.calls.append("pop")
        return 0, self.current.pop()

    def cuEventRecord(self, event: str, stream: str) -> tuple[int]:  # noqa: N802
        assert len(EXIT_GUARD.inside) == 1, "the interpreter must not exit meanwhile"
        self.calls.append("record")
        if self.current[-1:] != [OURS]:
            return (400,)
        self.recorded.append(f"{event} in {stream}")
        return (0,)


@final
class Named:
    """An event or a stream."""

    def __init__(self, bindings: Bindings, name: str) -> None:
        self._bindings = bindings
        self.cu = name

    def record(self, stream: Any) -> None:
        """Record the event in the way that raises the driver's error."""
        (code,) = self._bindings.cuEventRecord(self.cu, stream.cu)
        if code:
            raise RuntimeError(f"cuEventRecord failed with {code}")


@pytest.mark.parametrize(
    ("current", "calls"),
    [
        ([OURS], ["record"]),
        ([], ["record", "push", "record", "pop"]),
        ([OURS, "another"], ["record", "push", "record", "pop"]),
    ],
)
def test_an_event_is_recorded_whatever_context_is_current(current: list[str], calls: list[str]) -> None:
    """One call suffices where the context is current already. Afterwards the thread has the contexts that it had."""
    bindings = Bindings(current.copy())
    context = Context(bindings, OURS)
    gpu: Any = PyCudaGpu.__new__(PyCudaGpu)
    gpu.current = lambda: context
    gpu.record(Named(bindings, "event"), Named(bindings, "stream"))
    assert bindings.calls == calls
    assert bindings.recorded == ["event in stream"]
    assert bindings.current == current
    assert EXIT_GUARD.inside == []
