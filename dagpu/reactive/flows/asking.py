"""`batching`: many tasks ask for one answer each, and ops answer them in batches."""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar, final

import trio

from dagpu.common.places import Origin, describe, here, without_our_frames
from dagpu.common.wrong_arguments import check_count, check_function
from dagpu.handles import copy_error
from dagpu.ops.base import DeviceOp, Static
from dagpu.reactive.flows.feed import OpenBlock
from dagpu.reactive.flows.in_flight import InFlightStage, ItemWork, begin_op
from dagpu.reactive.flows.stage import FlowStage, ItemOutcome, Opening, Stats, ask, check_seconds
from dagpu.reactive.flows.timed_stages import BatchedStage

_A = TypeVar("_A")
_B = TypeVar("_B")
_A_contra = TypeVar("_A_contra", contravariant=True)
_B_co = TypeVar("_B_co", covariant=True)


@final
class Request(Generic[_A, _B]):
    """What one task asks for, until it has the answer. `wanted` is false once the task is cancelled."""

    __slots__ = ("answer", "settled", "wanted", "x")

    def __init__(self, x: _A) -> None:
        self.x = x
        self.wanted = True
        self.answer: ItemOutcome[_B] = ItemOutcome(trio.current_time())
        self.settled = trio.Event()

    def settle(self, error: Exception | None = None) -> None:
        """Wake the task that waits for the answer, which is set, or for the error."""
        if error is not None:
            self.answer.error, self.answer.done = error, True
        self.settled.set()


@final
class RequestsStage(FlowStage[Request[_A, _B]]):
    """Returns requests in the order in which they were made, without those whose task was cancelled."""

    def __init__(self) -> None:
        self._waiting: deque[Request[_A, _B]] = deque()
        self._consumer = trio.lowlevel.ParkingLot()
        self.open: set[Request[_A, _B]] = set()
        """The requests that are not answered."""

    def add(self, request: Request[_A, _B]) -> None:
        self._waiting.append(request)
        self.open.add(request)
        self._consumer.unpark()

    async def next(self) -> Request[_A, _B]:
        while True:
            while self._waiting:
                request = self._waiting.popleft()
                if request.wanted:
                    self.since = request.answer.since
                    return request
            await self._consumer.park()

    def state(self) -> str:
        return f"{len(self._waiting)} waiting"


@final
class ServedStage(FlowStage[Any]):
    """Asks a stage again and again, and drops the outcomes: its items take their results to the tasks that wait."""

    def __init__(self, source: FlowStage[Any], opening: Opening) -> None:
        self.sources = (source,)
        self._source = source
        opening.nursery.start_soon(self._pump, name="dagpu batching")

    @trio.lowlevel.enable_ki_protection
    async def _pump(self) -> None:
        while True:
            await ask(self._source)


@final
class Ask(Generic[_A_contra, _B_co]):
    """`await ask(x)` answers one request, as one of a batch."""

    __slots__ = ("_begun", "_origin", "_requests", "_stats")

    def __init__(self, requests: RequestsStage[Any, Any], stats: Stats, origin: Origin) -> None:
        self._requests: RequestsStage[Any, Any] | None = requests
        self._stats = stats
        self._origin = origin

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        what = f"the Ask of batching at {describe(self._origin)}"
        raise copy_error(what, "A copy would ask the same batches. Pass the Ask itself, to any task")

    async def __call__(self, x: _A_contra, /) -> _B_co:
        """Return the answer to `x`. A task that is cancelled leaves its batch, and the others in it are answered.

        Raises:
            Exception: the error of the batch, in each task that has a request in it.
            trio.ClosedResourceError: the block of `batching` is over, or ended before there was an answer.
        """
        if self._requests is None:
            raise self._closed()
        requests, request = self._requests, Request[Any, Any](x)
        requests.add(request)
        try:
            await request.settled.wait()
            self._stats.hand_over(request.answer.since, trio.current_time())
            found: _B_co = request.answer.take()
            return found
        except BaseException as error:
            without_our_frames(error)
            raise
        finally:
            request.wanted = False
            requests.open.discard(request)

    @property
    def stats(self) -> Stats:
        """The numbers of this service so far. `values` are answers, and `in_flight` counts batches."""
        return self._stats

    def close(self) -> None:
        """End the service: requests without an answer get an error, and later ones are refused."""
        requests, self._requests = self._requests, None
        if requests is not None:
            for request in requests.open:
                request.settle(self._closed())

    def _closed(self) -> trio.ClosedResourceError:
        return trio.ClosedResourceError(
            f"the block of batching at {describe(self._origin)} is over. Ask inside, and wait for the answers there."
        )


@final
class _Service(Generic[_A, _B]):
    """The block of `batching`. It may be opened any number of times, one block at a time."""

    def __init__(
        self, work: ItemWork[tuple[Request[_A, _B], ...], int], most: int, within: float, origin: Origin
    ) -> None:
        self._work = work
        self._most = most
        self._within = within
        self._origin = origin
        self._block: OpenBlock[Any] | None = None
        self._ask: Ask[_A, _B] | None = None

    async def __aenter__(self) -> Ask[_A, _B]:
        if self._block is not None:
            raise trio.BusyResourceError(
                f"the block of batching at {describe(self._origin)} is open already. Call batching(...) for each block."
            )
        requests = RequestsStage[_A, _B]()
        requests.kind, requests.origin = "ask", self._origin

        def begin(opening: Opening) -> FlowStage[Any]:
            batches = BatchedStage(requests, self._most, self._within, lambda: requests.since)
            served = InFlightStage(batches, self._work, opening, self._origin)
            for stage in (batches, served):
                stage.kind, stage.origin = "batching", self._origin
            return ServedStage(served, opening)

        block: OpenBlock[Any] = OpenBlock()
        feed = await block.open(begin, self._origin)
        self._block = block
        self._ask = Ask(requests, feed.stats, self._origin)
        return self._ask

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        block, ask, self._block, self._ask = self._block, self._ask, None, None
        assert block is not None, "the block is open"
        assert ask is not None, "the block is open"
        try:
            return await block.close(kind, error, trace)
        finally:
            ask.close()
            del error, trace


def batching(
    f: Callable[[tuple[_A, ...]], DeviceOp[Iterable[_B], Static, Any]],
    /,
    *,
    most: int,
    within: float = 0.0,
    in_flight: int = 2,
) -> AbstractAsyncContextManager[Ask[_A, _B]]:
    """Answer the requests of many tasks in batches, each by one op.

        async with batching(forward, most=32, within=0.002) as ask:
            ...  # in each of many tasks: answer = await ask(image)

    A batch runs when it has `most` requests, or `within` seconds after its first one was made. While `in_flight`
    batches run, requests wait, and the next batch grows. If the op of a batch fails, each task with a request in that
    batch gets its error, and the next batches are answered.

    Args:
        f: makes the op of a batch, a tuple of requests. The result is an iterable of the answers in the same order.
            Answers beyond the number of requests are dropped, so a batch may be padded.
        most: the maximum number of requests in a batch, 1 or more.
        within: seconds that the first request of a batch waits for more. With 0, a batch has what is there.
        in_flight: the maximum number of batches that run at once, 1 or more.
    """
    origin = here()
    check_function(f, "batching", origin)
    count = check_count(most, "batching", origin, "most")
    limit = check_seconds(within, "batching", origin, "within", zero=True)
    permits = check_count(in_flight, "batching", origin, "in_flight")
    return _Service(ItemWork(_answering(f, origin), permits, tasks=permits, ordered=False), count, limit, origin)


def _answering(
    f: Callable[[tuple[_A, ...]], DeviceOp[Iterable[_B], Static, Any]], origin: Origin
) -> Callable[[tuple[Request[_A, _B], ...]], Awaitable[int]]:
    whose = f"the function of batching at {describe(origin)}"

    async def answer(batch: tuple[Request[_A, _B], ...]) -> int:
        """Run one batch, and settle its requests. Returns the number of requests."""
        wanted = [request for request in batch if request.wanted]
        if not wanted:
            await trio.lowlevel.checkpoint()
            return 0
        try:
            answers = list(await begin_op(f, whose, tuple([request.x for request in wanted])))
            if len(answers) < len(wanted):
                raise ValueError(
                    f"{whose} gave {len(answers)} answers to {len(wanted)} requests. Return one for each, in order."
                )
        except Exception as error:
            without_our_frames(error)
            for request in wanted:
                request.settle(error)
            return len(wanted)
        for request, found in zip(wanted, answers, strict=False):
            request.answer.succeed(found)
            request.settle()
        return len(wanted)

    return answer
