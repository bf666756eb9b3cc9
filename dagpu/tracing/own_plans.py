"""The parts of an op that run by plans of their own, since no plan can serve the whole.

A function of the user's beside a call of a pipeline (`model(x).map(f)`) may do another thing in each run, so the op has
no key. The call of the pipeline has one. So a run of such an op first runs the largest parts that no function of the
user's comes before, all of them together, each by the plan that its key finds. Then it calls the functions with what
these parts have made.

All parts that are visible run together, so what they share is theirs: the components of one `unzip()` come from one
run of its source. A component that only a closure asks for stays in the `Once`, as after any run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dagpu.common.containers import values_in
from dagpu.handles import HANDLES
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import BUILT_IN, ByResults, HostCall, Map, Pure, Shared, Then, Unzip, Value, sources_of
from dagpu.ops.creation import from_host
from dagpu.ops.single_flight import NOTHING
from dagpu.ops.source_op import Source
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.value_tokens import PLAIN

AnyOp = DeviceOp[Any, Any, Any]

_KEPT: Final = PLAIN | frozenset(HANDLES)
"""The types of what an op may hold and hand on by a plan."""

_CALLS: Final = 1
"""A call of a pipeline, with whatever its arguments are made of."""

_CHOOSES: Final = 2
"""A function of dagpu's that builds an op of results: it has no plan together with a call, which has one of its own."""

_WAITS: Final = 4
"""A function of the user's."""

_ONE_PLAN: Final = frozenset((0, _CALLS, _CHOOSES))


def parts_with_plans(root: AnyOp) -> set[AnyOp]:
    """Return the largest parts of a DAG that contain no function of the user's but those of pipelines. There are none
    if none of them calls a pipeline, or if that is the whole DAG."""
    found: dict[AnyOp, int] = {}
    """What is in each node and before it."""
    todo = [root]
    while todo:
        op = todo[-1]
        sources = _sources_of(op)
        known = len(todo)
        todo += [source for source in sources if source not in found]
        if len(todo) == known:
            todo.pop()
            found[op] = _found_in(op, [found[source] for source in sources])
    if not any(what & _CALLS for what in found.values()) or found[root] in _ONE_PLAN:
        return set()
    parts, seen, todo = set[AnyOp](), {root}, [root]
    while todo:
        op = todo.pop()
        if found[op] in _ONE_PLAN:
            parts.add(op)
        else:
            more = [source for source in _sources_of(op) if source not in seen]
            seen.update(more)
            todo += more
    single = (Value, Source)
    return {part for part in parts if not (isinstance(part, single) or found[part] & _CHOOSES or _is_made(part))}


def _sources_of(op: AnyOp) -> Sequence[AnyOp]:
    return () if _is_made(op) else inputs_of(op)


def _found_in(op: AnyOp, below: Sequence[int]) -> int:
    what = _WAITS if _has_no_key(op) else 0
    for each in below:
        what |= each
    if type(op) is Then and type(op.f) is Pure:
        return what & _WAITS | _CALLS
    return what | _CHOOSES if type(op) is Then and type(op.f) is ByResults else what


def sources_of_part(part: AnyOp, inputs: Flattened) -> Mapping[AnyOp, int]:
    """Return the sources on which a part of an op depends, with their revisions. A plan has made its value, so there
    are none that only a function knows. `inputs` are those of the plan."""
    revisions = inputs.revisions()
    found: dict[AnyOp, int] = {}
    seen, todo = {part}, [part] if revisions else []
    while todo:
        op = todo.pop()
        if op in revisions:
            found[op] = revisions[op]
        elif (type(op) is Shared or type(op) is Unzip) and op.once in inputs.remembered:
            found |= inputs.remembered[op.once].made_for
        more = [source for source in inputs_of(op) if source not in seen]
        seen.update(more)
        todo += more
    return found


def inputs_of(op: AnyOp) -> Sequence[AnyOp]:
    """Return the sources of an op; of the call of a pipeline the ops that it is called with."""
    if type(op) is Then and type(op.source) is Value and type(op.f) is Pure:
        return [each for each in values_in(op.source.content) if isinstance(each, DeviceOp)]
    return (op.source,) if type(op) is Map else tuple(sources_of(op))


def _is_made(op: AnyOp) -> bool:
    """Return true for an op whose value a run is making, or has made for all times: nobody looks at what is below."""
    return (type(op) is Shared or type(op) is Unzip) and (
        not op.once.settled() or (op.once.remembers() and not op.once.made_for)
    )


def _has_no_key(op: AnyOp) -> bool:
    """Return true for an op that calls a function of the user's, or that holds a value with which no plan is kept: an
    object, an array of the host, or what a run is making."""
    if type(op) is Then:
        f, source = op.f, op.source
        called = (type(f) is Pure and type(source) is Value) or (f is from_host and type(source) is Source)
        return not called and type(f) is not ByResults
    if type(op) is Shared or type(op) is Unzip:
        value, made_for = op.once.remembered()
        if made_for or value is NOTHING:
            return not op.once.settled()
        return not _KEPT.issuperset(map(type, values_in(value[op.index] if type(op) is Unzip else value)))
    if type(op) is Value:
        return not _KEPT.issuperset(map(type, values_in(op.content)))
    return type(op) is HostCall or (type(op) is Map and type(op.f) not in BUILT_IN)
