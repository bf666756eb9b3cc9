"""The quick way to run `model(x).map(f)`: the plan of what is below all functions of the user's, and then these.

A run of such an op need not be traced: a chain of functions has nothing that runs beside it, and no place. What a
function of `.then` returns is run in the same way, if it is such a chain too.
"""

from typing import Any, Final

from dagpu.common.compiled import MISS
from dagpu.common.containers import own_containers, values_in
from dagpu.common.places import Origin
from dagpu.handles import HANDLES
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, Map, Shared, Then, Value
from dagpu.runtime.loaded_plan import Settings
from dagpu.runtime.plan_lookup import PlanLookup, direct_call, pipeline_call, run_by_a_plan
from dagpu.runtime.waits import BlockingWaits, Waits
from dagpu.tracing.run_memo import BoundClaims, RunMemo
from dagpu.tracing.user_code import apply_map, call_closure, not_an_op_error

AnyOp = DeviceOp[Any, Any, Any]

_FEW_NODES: Final = 64
"""The most nodes below the functions for which a plan is looked up here: the key of a larger DAG takes its time."""

_MOST: Final = 100
"""The most functions that are called in this way. In a chain that may have no end a trace counts them."""


async def run_composed(op: AnyOp, settings: Settings, waits: Waits, origin: Origin) -> tuple[Any, AnyOp | None]:
    """Run an op as far as possible in this way. Return its result, or `MISS` and the op that is left to be run: the op
    itself, of which nothing has been run then, or what the functions so far have made of it."""
    above: list[Map[Any] | Then[Any]] = []
    """The nodes whose functions are still to be called, the last one next."""
    called = 0
    bottom, value = op, MISS
    while True:
        while (type(bottom) is Map or type(bottom) is Then) and pipeline_call(bottom) is None:
            above.append(bottom)
            bottom = bottom.source
        if type(bottom) is Value and called and HANDLES.isdisjoint(map(type, values_in(bottom.content))):
            value = own_containers(bottom.content)
        elif above and type(above[-1]) is Map and type(above[-1].f) in BUILT_IN:
            value = MISS  # it is a part of what has a plan
        else:
            value = await call_directly(bottom, settings, waits, origin)
            if value is MISS and not called and all(type(node) is Map for node in above):
                # Nothing else of this run reads sources, so the instant at which it does is its own.
                value = await run_by_a_plan(PlanLookup(bottom, settings, most=_FEW_NODES), settings, waits, origin)
        if value is MISS:
            return MISS, _above(bottom, above) if called else op
        while above:
            if waits.pause_is_due():
                await waits.pause()
            node = above.pop()
            called += 1
            if type(node) is Map:
                value = apply_map(node, value)
                continue
            bottom = call_closure(node, node.f, value)
            if not isinstance(bottom, DeviceOp):
                raise not_an_op_error(node, bottom)
            if called > _MOST:
                return MISS, _above(bottom, above)
            break
        else:
            return value, None


async def run_shared(op: Shared[Any], settings: Settings, waits: Waits, origin: Origin) -> tuple[Any, AnyOp | None]:
    """Run a `shared()` op in this way, if it is above a chain of `.map` over a call that has a direct one, and has not
    run. Its value depends on no source."""
    above: list[Map[Any]] = []
    bottom = op.source
    while type(bottom) is Map:
        above.append(bottom)
        bottom = bottom.source
    if pipeline_call(bottom) is None or (above and type(above[-1].f) in BUILT_IN):
        return MISS, op
    claims = BoundClaims([(op.once, {})])
    if op.once.remembers() or not claims.claim():
        return MISS, op
    try:
        value = await call_directly(bottom, settings, waits, origin)
        if value is MISS:
            return MISS, op
        for node in reversed(above):
            if waits.pause_is_due():
                await waits.pause()
            value = apply_map(node, value)
        memo = RunMemo()
        result = memo.record_shared(op, value)
        return claims.publish(([memo.claimed_value(op.once)], result)), None
    finally:
        claims.abandon()


def _above(op: AnyOp, nodes: list[Map[Any] | Then[Any]]) -> AnyOp:
    """Return an op with these nodes above it, the last one next."""
    for node in reversed(nodes):
        op = Map(op, node.f, node.origin) if type(node) is Map else Then(op, node.f, node.origin)
    return op


async def call_directly(op: AnyOp, settings: Settings, waits: Waits, origin: Origin) -> Any:
    """Run the call of a pipeline by the direct call of its latest plan. Return `MISS` if that refuses it, and for any
    other op."""
    if not settings.direct or pipeline_call(op) is None or (call := direct_call(op)) is None:
        return MISS
    loaded, direct, arguments, named, cache = call
    if type(waits) is BlockingWaits:
        result = direct.now(loaded, arguments, named, settings, origin)
    else:
        result = await direct.in_task(loaded, arguments, named, settings, origin)
    if result is not MISS and cache is not None:
        cache.hits += 1
    return result
