"""The functions that make flows: `flow`, `every`, `merge` and `zip_flows`."""

from collections.abc import AsyncIterable, Iterable
from functools import partial
from typing import Any, TypeVar, overload

from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import wrong_argument
from dagpu.handles import HANDLES
from dagpu.ops.base import DeviceOp
from dagpu.reactive.flows.arguments import check_seconds
from dagpu.reactive.flows.flow_class import Flow
from dagpu.reactive.flows.host_stages import FlowItems, begin_items, begin_zip
from dagpu.reactive.flows.merged_stages import begin_merge
from dagpu.reactive.flows.timed_stages import EveryStage

_T = TypeVar("_T")
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
