"""Captures the work that a library enqueues as a CUgraph, through cuda.bindings."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from dagpu.backends.cuda.driver.driver_protocol import CapturedNode, EnqueuedWork, RawStream
from dagpu.backends.cuda.driver.pycuda_enqueued import read_work
from dagpu.backends.cuda.driver.pycuda_streams import Checked
from dagpu.common.errors import DeviceError


@final
class StreamCapture:
    """Captures work on one device, in a stream that is used for nothing else.

    Captures are relaxed: a library may load a kernel meanwhile, and Python's garbage collector may free memory of any
    library. The driver refuses to synchronize with a context that has a stream under capture, so `lock` is held during
    a capture, and must be held during cuCtxSynchronize.
    """

    def __init__(self, bindings: Any, checked: Checked, new_stream: Callable[[], RawStream]) -> None:
        self._bindings = bindings
        self._checked = checked
        self._new_stream = new_stream
        self._stream: Any = None
        self.lock = threading.Lock()

    @contextmanager
    def captured(self, node: CapturedNode) -> Iterator[Any]:
        """Within the `with` block, gives the CUgraph of the node's work. The context must be current.

        Raises:
            DeviceError: the library refuses the work, or it cannot be captured.
        """
        with self.lock:
            graph = self._capture(node)
        try:
            if node.inspect is not None:
                node.inspect(read_work(self._bindings, self._checked, graph))
            yield graph
        finally:
            self._bindings.cuGraphDestroy(graph)

    def work(self, node: CapturedNode) -> Sequence[EnqueuedWork]:
        """Return what the node's library enqueues; see `Gpu.captured_work`. The context must be current."""
        with self.captured(node) as graph:
            return read_work(self._bindings, self._checked, graph)

    def _capture(self, node: CapturedNode) -> Any:
        bindings = self._bindings
        if self._stream is None:
            self._stream = self._new_stream()
        stream = self._stream
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._checked("cuStreamBeginCapture", bindings.cuStreamBeginCapture(stream.cu, mode))
        try:
            node.enqueue(stream.handle, node.addresses, node.scratch, *node.numbers)
        except BaseException:
            ended = bindings.cuStreamEndCapture(stream.cu)
            if not ended[0]:
                bindings.cuGraphDestroy(ended[1])
            raise
        code, *graphs = bindings.cuStreamEndCapture(stream.cu)
        if code:  # not by `device_error`: a refused capture leaves the device as it was
            raise DeviceError(
                f"cuStreamEndCapture failed: CUresult {int(code)}. The library's work cannot be captured.", int(code)
            )
        return graphs[0]
