"""The service of examples/server: each connection asks for its images, and
`dagpu.batching` makes batches of them.

The protocol is minimal. A client sends an image, 64 float32 in [0, 1], and gets ten
float32, the probability of each digit. It may repeat this until it closes its side.
Answers come in the order of the images.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import Ask, DeviceOp

PIXELS, CLASSES = 64, 10
IMAGE_BYTES, ANSWER_BYTES = 4 * PIXELS, 4 * CLASSES

Floats: TypeAlias = NDArray[np.float32]
Forward: TypeAlias = Callable[[Floats], DeviceOp[Floats]]
"""A function from images (n, 64) to an op that results in their probabilities (n,
10)."""


def padded(images: Floats) -> Floats:
    """Add blank images up to the next power of two. So a pipeline sees few shapes, and
    later batches reuse the plans and graphs of these shapes. `batching` drops the
    answers to the blank ones."""
    count = 1 << (len(images) - 1).bit_length()
    return np.pad(images, ((0, count - len(images)), (0, 0)))


async def read_exactly(stream: trio.abc.ReceiveStream, count: int) -> bytes | None:
    """Return the next `count` bytes, or None at the end of the stream.

    An incomplete request is dropped.
    """
    data = bytearray()
    while len(data) < count:
        part = await stream.receive_some(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


async def serve(
    ask: Ask[Floats, Floats],
    port: int = 0,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on this machine until cancelled. `nursery.start` returns the port.

    Port 0 takes a free port. A client that disconnects, at any moment, ends only its
    own connection.
    """

    async def talk(stream: trio.SocketStream) -> None:
        try:
            while (data := await read_exactly(stream, IMAGE_BYTES)) is not None:
                answer = await ask(np.frombuffer(data, np.float32))
                await stream.send_all(answer.tobytes())
        except trio.BrokenResourceError:
            pass

    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    task_status.started(int(listeners[0].socket.getsockname()[1]))
    await trio.serve_listeners(talk, listeners)
