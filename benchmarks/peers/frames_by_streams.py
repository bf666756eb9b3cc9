"""Frames through a loop with CUDA streams written by hand, with CuPy: what a flow of frames is compared with on a GPU.

Each stream has pinned memory for a frame in and a frame out, and memory on the device. A frame is copied into pinned
memory, copied in, blurred twice and copied out; the event behind it is waited for when its stream is needed again, and
the frame is handed out where it lies, in pinned memory. No event loop runs, and a frame that is handed out is
overwritten after as many frames as there are streams.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu import optional
from dagpu import f32

BLUR: Final = r"""extern "C" __global__ void blur(float *y, const float *x, int rows, int columns, int radius) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / columns, column = i % columns;
    if (row >= rows) return;
    float sum = 0;
    for (int k = -radius; k <= radius; ++k) sum += x[row * columns + min(max(column + k, 0), columns - 1)];
    y[i] = sum / (2 * radius + 1);
}"""
"""`blur` of examples/video, for arrays whose rows are side by side."""

THREADS: Final = 256


@final
class StreamOfFrames:
    """A stream, and the memory of the frame that is in it."""

    def __init__(self, cupy: Any, shape: tuple[int, int], radius: int) -> None:
        self._blur = cupy.RawKernel(BLUR, "blur")
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._event = cupy.cuda.Event(disable_timing=True)
        self._given, self._shown = [self._pinned(cupy, shape) for _ in range(2)]
        self._x, self._y = [cupy.empty(shape, f32) for _ in range(2)]
        rows, columns = shape
        self._blocks = (-(-rows * columns // THREADS),)
        self._numbers = (np.int32(rows), np.int32(columns), np.int32(radius))

    @staticmethod
    def _pinned(cupy: Any, shape: tuple[int, int]) -> NDArray[f32]:
        """Return an array in page-locked memory."""
        count = shape[0] * shape[1]
        pinned: NDArray[f32] = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * count), f32, count).reshape(shape)
        return pinned

    def begin(self, frame: NDArray[f32]) -> None:
        """Enqueue all of a frame."""
        np.copyto(self._given, frame)
        with self._stream:
            self._x.set(self._given)
            self._blur(self._blocks, (THREADS,), (self._y, self._x, *self._numbers))
            self._blur(self._blocks, (THREADS,), (self._x, self._y, *self._numbers))
            self._x.get(out=self._shown, blocking=False)
            self._event.record(self._stream)

    def end(self) -> NDArray[f32]:
        """Wait for the frame, and return it. The next `begin` of this stream overwrites it."""
        self._event.synchronize()
        return self._shown


def loop_of_streams(
    shape: tuple[int, int], radius: int, streams: int
) -> Callable[[list[NDArray[f32]], Callable[[NDArray[f32]], None]], None] | None:
    """Return a loop that hands out the frames that it is given, blurred; None where there is no CuPy.

    A frame is handed out when its stream is needed for another.
    """
    try:
        cupy = optional("cupy")
    except ImportError:
        return None
    made = [StreamOfFrames(cupy, shape, radius) for _ in range(streams)]

    def show_all(frames: list[NDArray[f32]], seen: Callable[[NDArray[f32]], None]) -> None:
        free, busy = deque(made), deque[StreamOfFrames]()
        for frame in frames:
            if not free:
                oldest = busy.popleft()
                seen(oldest.end())
                free.append(oldest)
            stream = free.popleft()
            stream.begin(frame)
            busy.append(stream)
        while busy:
            seen(busy.popleft().end())

    return show_all
