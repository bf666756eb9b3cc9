"""`Flow`, the description of values that follow each other, and the functions that make flows."""

from collections.abc import AsyncIterable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, final, overload

import trio
from typing_extensions import TypeVar

from dagpu.common.critical import run_user_code
from dagpu.common.pickling import PickledByName
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import check_count, check_flag, check_function, no_attribute, wrong_argument
from dagpu.handles import HANDLES
from dagpu.ops.base import DeviceOp, Static, check_op
from dagpu.reactive.flows.feed import Feed, OpenBlock
from dagpu.reactive.flows.host_stages import (
    FlowItems,
    MapStage,
    TakeStage,
    WindowStage,
    begin_items,
    begin_where,
    begin_zip,
)
from dagpu.reactive.flows.in_flight import begin_in_flight, fold_work, run_work
from dagpu.reactive.flows.merged_stages import SwitchStage, begin_merge
from dagpu.reactive.flows.stage import (
    FOREVER,
    Asker,
    Begin,
    FlowStage,
    Opening,
    check_seconds,
    check_step,
    check_target,
)
from dagpu.reactive.flows.timed_stages import AtMostStage, EveryStage, begin_batched, begin_latest

_T = TypeVar("_T")
_U = TypeVar("_U")
_S = TypeVar("_S")
_T_co = TypeVar("_T_co", covariant=True)
_T_contra = TypeVar("_T_contra", contravariant=True)


class Target(Protocol[_T_contra]):
    """Whatever a flow's values can be set to: a source."""

    def set(self, x: _T_contra, /) -> object: ...


@final
class Flow(PickledByName, Generic[_T_co]):
    """An immutable description of values that follow each other. Nothing runs until it is opened:

        async with flow(frames).run(softened, in_flight=3) as feed:
            async for picture in feed:
                ...

    All tasks that the feed started have ended when the block is left, and their device work is drained. A flow may be
    opened any number of times, by any number of tasks.

    An error of an item takes the item's place among the values. It is raised by the feed after all values before it.
    """

    __slots__ = ("_begin", "_blocks", "kind", "origin")

    def __init__(self, kind: str, begin: Begin[_T_co], origin: Origin) -> None:
        self._begin = begin
        self._blocks: dict[trio.lowlevel.Task, list[OpenBlock[_T_co]]] = {}
        self.kind = kind
        """The function that made the flow, such as "run"."""
        self.origin = origin

    def begin(self, opening: Opening) -> FlowStage[_T_co]:
        """Begin the stages of this flow in an open one."""
        stage = self._begin(opening)
        stage.kind, stage.origin = self.kind, self.origin
        return stage

    # ---- opening

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Feed[_T_co]:
        origin = here()
        if not trio.lowlevel.in_trio_task():
            raise RuntimeError(
                f"{self!r} was opened at {describe(origin)}, outside a trio task (asyncio and Jupyter run none). Open "
                "it in an async function that trio.run(...) runs."
            )
        block: OpenBlock[_T_co] = OpenBlock()
        feed = await block.open(self.begin, origin)
        self._blocks.setdefault(trio.lowlevel.current_task(), []).append(block)
        return feed

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        task = trio.lowlevel.current_task()
        blocks = self._blocks[task]
        block = blocks.pop()
        if not blocks:
            del self._blocks[task]
        try:
            return await block.close(kind, error, trace)
        finally:
            del error, trace

    # ---- on the host, in the task that asks

    @leaves_run
    def map(self, f: Callable[[_T_co], _U], /) -> "Flow[_U]":
        """Return the flow of `f(x)` for each value `x`. `f` is called in the task that asks, and must not block."""
        origin = here()
        check_function(f, "map", origin)
        return Flow("map", lambda opening: MapStage(self.begin(opening), f, origin), origin)

    @leaves_run
    def where(self, f: Callable[[_T_co], bool], /) -> "Flow[_T_co]":
        """Return the flow of the values `x` for which `f(x)` is true."""
        origin = here()
        check_function(f, "where", origin)
        return Flow("where", lambda opening: begin_where(self.begin, f, opening, origin), origin)

    @leaves_run
    def take(self, n: int, /) -> "Flow[_T_co]":
        """Return the flow of the first `n` values, 1 or more. No further value is asked for."""
        origin = here()
        count = check_count(n, "take", origin, "n")
        return Flow("take", lambda opening: TakeStage(self.begin(opening), count), origin)

    @leaves_run
    def window(self, n: int, /, step: int = 1) -> "Flow[tuple[_T_co, ...]]":
        """Return the flow of tuples of `n` consecutive values, each beginning `step` values after the one before.

        An incomplete window at the end is dropped.
        """
        origin = here()
        count, step = check_count(n, "window", origin, "n"), check_count(step, "window", origin, "step")
        return Flow("window", lambda opening: WindowStage(self.begin(opening), count, step), origin)

    # ---- on the device

    @leaves_run
    def run(
        self,
        f: Callable[[_T_co], DeviceOp[_U, Static, Any]],
        /,
        *,
        in_flight: int = 2,
        memory: int | None = None,
        ordered: bool = True,
    ) -> "Flow[_U]":
        """Return the flow of the results of the op `f(x)` for each value `x`, some of which run at once.

        The first call of `next` starts the work, which then keeps ahead of the consumer. An item is in flight from its
        pull until its result is handed out, so a slow consumer holds up the work, and nothing is queued. Each op runs
        on streams of its own, as with `spawn`.

        Args:
            f: makes the op of a value. The op may hold no borrow.
            in_flight: the number of permits, 1 or more: the maximum number of items in flight.
            memory: bytes of device memory for the items in flight. An item begins only if its plan's peak and those of
                the items in flight before it fit together; an item that does not fit by itself runs alone. This plans
                each op one more time.
            ordered: true for results in the order of the values. False for results as they are complete.
        """
        origin = here()
        check_function(f, "run", origin)
        permits = check_count(in_flight, "run", origin, "in_flight")
        limit = None if memory is None else check_count(memory, "run", origin, "memory")
        work = run_work(f, permits, limit, check_flag(ordered, "run", origin, "ordered"), origin)
        return Flow("run", lambda opening: begin_in_flight(self.begin, work, opening, origin), origin)

    @leaves_run
    def fold(
        self,
        state: DeviceOp[_S, Static, Any],
        f: Callable[[_S, _T_co], DeviceOp[tuple[_S, _U], Static, Any]],
        /,
        *,
        in_flight: int = 2,
    ) -> "Flow[_U]":
        """Return the flow of the outputs of steps, each of which takes the state that the step before it returned.

        The op `f(state, x)` results in a tuple of the next state and an output. The state moves into it, and may stay
        on the device. Steps run one after another, ahead of the consumer by at most `in_flight` values. The first step
        that fails ends the flow after its error, for the state is lost with it.

        Args:
            state: the op of the first state. It runs each time the flow is opened, with the first value.
            f: makes the op of a step. The op may hold no borrow.
            in_flight: the number of permits, 1 or more: the maximum number of values that are pulled and whose output
                is not handed out.
        """
        origin = here()
        check_op(state, "fold", name="state")
        check_step(f, origin)
        permits = check_count(in_flight, "fold", origin, "in_flight")

        def begin_fold(opening: Opening) -> FlowStage[_U]:
            return begin_in_flight(self.begin, fold_work(state, f, permits, origin), opening, origin)

        return Flow("fold", begin_fold, origin)

    # ---- time

    @leaves_run
    def latest(self) -> "Flow[_T_co]":
        """Return the flow of the newest values: one that nobody has taken is replaced by the next.

        Values are pulled as fast as they come, from when the flow is opened, so the values' producer never waits for
        the consumer. `stats.skipped` counts the replaced values. Errors and the last value are not replaced.
        """
        origin = here()
        return Flow("latest", lambda opening: begin_latest(self.begin, opening), origin)

    @leaves_run
    def at_most(self, per_second: float, /) -> "Flow[_T_co]":
        """Return the flow of the newest values, as `latest` does, at most `per_second` of them in a second."""
        origin = here()
        period = 1 / check_seconds(per_second, "at_most", origin, "per_second", "values a second")
        return Flow("at_most", lambda opening: AtMostStage(begin_latest(self.begin, opening), period), origin)

    @leaves_run
    def batched(self, most: int, /, *, within: float = FOREVER) -> "Flow[tuple[_T_co, ...]]":
        """Return the flow of tuples of at most `most` consecutive values.

        A tuple is handed out when it is full, when the values end, and at the latest `within` seconds after its first
        value came. An error is raised after the values before it.
        """
        origin = here()
        count = check_count(most, "batched", origin, "most")
        limit = check_seconds(within, "batched", origin, "within", zero=True, endless=True)
        return Flow("batched", lambda opening: begin_batched(self.begin, count, limit, opening), origin)

    @leaves_run
    def switch(self, f: "Callable[[_T_co], Flow[_U]]", /) -> "Flow[_U]":
        """Return the flow of the values of `f(x)` for the newest value `x`. The flow made before it is closed.

        The values `x` are pulled as fast as they come, from when the flow is opened. Before the next flow is begun, the
        runs of the one before it are cancelled and drained, and a value of it that nobody has taken is dropped.
        """
        origin = here()
        check_function(f, "switch", origin)

        begins = _begins_of(f, origin)
        return Flow(
            "switch", lambda opening: SwitchStage(self.begin(opening.asked_by(Asker.PUMP)), begins, opening), origin
        )

    async def into(self, target: Target[_T_co], /) -> None:
        """Open the flow, and set a source to each of its values. Returns when the values end, and raises their errors.

        Args:
            target: a source, or another object with a method `set(x)`.
        """
        check_target(target, here())
        async with self as feed:
            async for value in feed:
                target.set(value)

    def __repr__(self) -> str:
        return f"<Flow of {self.kind} at {describe(self.origin)}>"

    if not TYPE_CHECKING:  # a type checker that saw these methods would accept what they refuse

        def __iter__(self) -> NoReturn:
            self._refuse("iterated over")

        def __aiter__(self) -> NoReturn:
            self._refuse("iterated over")

        def __await__(self) -> NoReturn:
            self._refuse("awaited")

        def _refuse(self, what: str) -> NoReturn:
            raise TypeError(
                f"{self!r} was {what} at {describe(here())}: it is a description and has no values. Open it: "
                "async with flow as feed, and then async for x in feed."
            )

        def __getattr__(self, name: str) -> NoReturn:
            if name in ("next", "__anext__", "stats", "explain"):
                raise AttributeError(
                    f"{self!r} has no {name!r}: the open flow has. Open it: async with flow as feed, and then "
                    f"feed.{name}."
                )
            raise no_attribute(self, name)


def _begins_of(f: Callable[[_T], Flow[_U]], origin: Origin) -> Callable[[_T], Begin[_U]]:
    """Return the function of `switch`, with a check of what the user's function returns."""

    def begin_inner(x: _T) -> Begin[_U]:
        made = run_user_code(f, x)
        if not isinstance(made, Flow):
            raise wrong_argument("switch", origin, "the result of f", made, "a flow", "Return one: flow(items)")
        return made.begin

    return begin_inner


# ---- the functions that make flows


_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_H = TypeVar("_H")
_I = TypeVar("_I")


@leaves_run
def flow(items: AsyncIterable[_T] | Iterable[_T], /) -> Flow[_T]:
    """Return the flow of the items of an iterable: a list, a generator, a camera, a memory channel of trio, a feed.

    Each is pulled when it is asked for. An iterator that is not async is called in the trio task that asks, so it must
    not block. Each time the flow is opened, it iterates again. An iterator goes on from where it is: a flow of one
    that has ended has an error, a `RuntimeError`, in the place of its values when it is opened again. An async
    generator is closed with the block of the feed, as trio wants it.
    """
    origin = here()
    if isinstance(items, Flow):
        raise wrong_argument("flow", origin, "items", items, "an iterable", "Use the flow itself, which is one already")
    if isinstance(items, DeviceOp) or type(items) in HANDLES or not isinstance(items, AsyncIterable | Iterable):
        cure = "Pass a list or a generator. Of ops, make a flow of their arguments: flow(items).run(f)"
        raise wrong_argument("flow", origin, "items", items, "an iterable", cure)
    return Flow("flow", partial(begin_items, FlowItems(items, origin)), origin)


@leaves_run
def every(seconds: float, /) -> Flow[float]:
    """Return the flow of ticks: the time on trio's clock when it is asked first, and every `seconds` after that.

    Ticks that the consumer is too late for are skipped, and the others stay on the grid.
    """
    origin = here()
    period = check_seconds(seconds, "every", origin, "seconds")
    return Flow("every", lambda opening: EveryStage(period, opening.stats), origin)


@leaves_run
def merge(*flows: Flow[_T]) -> Flow[_T]:
    """Return the flow of the values of all these flows, in the order in which they come.

    It ends when all of them have ended. Of each flow, at most one value is pulled before it is wanted.
    """
    origin = here()
    check_flows(flows, "merge", origin)
    return Flow("merge", partial(begin_merge, tuple([each.begin for each in flows])), origin)


@overload
def zip_flows(a: Flow[_A], b: Flow[_B], /) -> Flow[tuple[_A, _B]]: ...
@overload
def zip_flows(a: Flow[_A], b: Flow[_B], c: Flow[_C], /) -> Flow[tuple[_A, _B, _C]]: ...
@overload
def zip_flows(a: Flow[_A], b: Flow[_B], c: Flow[_C], d: Flow[_D], /) -> Flow[tuple[_A, _B, _C, _D]]: ...
@overload
def zip_flows(
    a: Flow[_A], b: Flow[_B], c: Flow[_C], d: Flow[_D], e: Flow[_E], /
) -> Flow[tuple[_A, _B, _C, _D, _E]]: ...
@overload
def zip_flows(
    a: Flow[_A], b: Flow[_B], c: Flow[_C], d: Flow[_D], e: Flow[_E], f: Flow[_F], /
) -> Flow[tuple[_A, _B, _C, _D, _E, _F]]: ...
@overload
def zip_flows(
    a: Flow[_A], b: Flow[_B], c: Flow[_C], d: Flow[_D], e: Flow[_E], f: Flow[_F], h: Flow[_H], /
) -> Flow[tuple[_A, _B, _C, _D, _E, _F, _H]]: ...
@overload
def zip_flows(
    a: Flow[_A], b: Flow[_B], c: Flow[_C], d: Flow[_D], e: Flow[_E], f: Flow[_F], h: Flow[_H], i: Flow[_I], /
) -> Flow[tuple[_A, _B, _C, _D, _E, _F, _H, _I]]: ...
@leaves_run
def zip_flows(*flows: Flow[Any]) -> Flow[tuple[Any, ...]]:
    """Return the flow of tuples of one value of each of these flows, up to 8. It ends with the first flow that ends.

    The flows are asked one after another. If the value of one fails, the values of the others at that position are
    dropped, so that the positions stay aligned.
    """
    origin = here()
    check_flows(flows, "zip_flows", origin)
    return Flow("zip_flows", partial(begin_zip, tuple([each.begin for each in flows])), origin)


def check_flows(flows: tuple[object, ...], call: str, where: Origin) -> None:
    """Check that the arguments are flows, and that there is one at least.

    Raises:
        TypeError: there is none, or one of them is something else.
    """
    if not flows:
        raise TypeError(f"{call} at {describe(where)}: no flow was given. Pass one or more: {call}(a, b).")
    for each in flows:
        if not isinstance(each, Flow):
            raise wrong_argument(call, where, "an argument", each, "a flow", "Make one of it: flow(items)")
