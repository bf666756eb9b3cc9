"""The service of examples/server: requests from many connections become batches on one pipeline.

The protocol is minimal. A client sends an image, 64 float32 in [0, 1], and gets ten float32, the probability of each
digit. It may repeat this until it closes its side. Answers come in the order of the images.
"""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
import trio
from numpy.typing import NDArray

PIXELS, CLASSES = 64, 10
IMAGE_BYTES, ANSWER_BYTES = 4 * PIXELS, 4 * CLASSES

Floats: TypeAlias = NDArray[np.float32]
Forward: TypeAlias = Callable[[Floats], Awaitable[Floats]]
"""A function from images (n, 64) to an awaitable of probabilities (n, 10), such as an op."""


@final
@dataclass(eq=False)
class Request:
    """One image, until it is answered; `wanted` is False once its caller has been cancelled."""

    image: Floats
    answered: trio.Event = field(default_factory=trio.Event)
    answer: Floats | None = None
    wanted: bool = True


@final
class Batcher:
    """Gathers requests into batches of at most `most`, and runs each through `forward`.

    A batch is submitted when it is full, or `patience` seconds after its first request. While it runs, the next one
    is gathered. At most `at_once` batches run at a time; until one of them ends, the gathered batch goes on growing.

    Cancellation: a caller of `ask` that is cancelled leaves its batch, and the others in it are answered. If `run` is
    cancelled or `forward` fails, the whole nursery in which `run` was started is cancelled, including the callers.
    """

    def __init__(self, forward: Forward, most: int, patience: float, at_once: int = 2) -> None:
        self._forward = forward
        self._most = most
        self._patience = patience
        self._free = trio.Semaphore(at_once)
        # No bound is needed: each connection has at most one request, so the number of connections is the bound.
        self._entrance, self._queue = trio.open_memory_channel[Request](math.inf)
        self.sizes: list[int] = []
        """Sizes of the batches that ran, in order."""

    async def ask(self, image: Floats) -> Floats:
        """Return the answer (10,) to one image (64,), once its batch has run."""
        request = Request(image)
        self._entrance.send_nowait(request)
        try:
            await request.answered.wait()
        finally:
            request.wanted = False
        assert request.answer is not None, "it is set before the event is"
        return request.answer

    async def run(self) -> None:
        """Run batches until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                batch = [await self._queue.receive()]
                with trio.move_on_after(self._patience):
                    await self._fill(batch)
                await self._free.acquire()
                self._fill_at_once(batch)
                nursery.start_soon(self._answer, batch)

    async def _fill(self, batch: list[Request]) -> None:
        """Add requests as they come, until the batch is full. A cancellation loses none: a `receive` of trio either
        returns a request or is cancelled."""
        while len(batch) < self._most:
            batch.append(await self._queue.receive())

    def _fill_at_once(self, batch: list[Request]) -> None:
        """Add the requests that came in while the largest number of batches were running."""
        try:
            while len(batch) < self._most:
                batch.append(self._queue.receive_nowait())
        except trio.WouldBlock:
            pass

    async def _answer(self, batch: list[Request]) -> None:
        try:
            wanted = [request for request in batch if request.wanted]
            if wanted:
                answers = await self._forward(padded(np.stack([request.image for request in wanted])))
                self.sizes.append(len(wanted))
                for request, answer in zip(wanted, answers, strict=False):  # without the answers of the padding
                    request.answer = answer
                    request.answered.set()
        finally:
            self._free.release()


def padded(images: Floats) -> Floats:
    """Add blank images up to the next power of two. So a pipeline sees few shapes, and later batches reuse the plans
    and graphs of these shapes."""
    count = 1 << (len(images) - 1).bit_length()
    return np.pad(images, ((0, count - len(images)), (0, 0)))


async def read_exactly(stream: trio.abc.ReceiveStream, count: int) -> bytes | None:
    """Return the next `count` bytes, or None at the end of the stream. An incomplete request is dropped."""
    data = bytearray()
    while len(data) < count:
        part = await stream.receive_some(count - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


async def serve(
    batcher: Batcher, port: int = 0, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve on this machine until cancelled. `nursery.start` returns the port.

    Port 0 takes a free port. A client that disconnects, at any moment, ends only its own connection.
    """

    async def talk(stream: trio.SocketStream) -> None:
        try:
            while (data := await read_exactly(stream, IMAGE_BYTES)) is not None:
                answer = await batcher.ask(np.frombuffer(data, np.float32))
                await stream.send_all(answer.tobytes())
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(batcher.run)
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        task_status.started(int(listeners[0].socket.getsockname()[1]))
        await trio.serve_listeners(talk, listeners)
