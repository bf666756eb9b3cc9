"""The parts of an op that run by plans of their own, since no plan can serve the whole.

A function of the user's beside a call of a pipeline (`model(x).map(f)`) may do another thing in each run, so the op has
no key. The call of the pipeline has one. So a run of such an op first runs the largest parts that no function of the
user's comes before, all of them together, each by the plan that its key finds. Then it calls the functions with what
these parts have made.
"""

from typing import Any

from dagpu.common.containers import values_in
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import HostCall, Map, Shared, Then, Unzip, Value, sources_of
from dagpu.ops.live.source_op import Source
from dagpu.ops.node_functions import BUILT_IN, Pure
from dagpu.ops.single_flight import Once

AnyOp = DeviceOp[Any, Any, Any]


def parts_with_plans(root: AnyOp, *, inside: bool = False) -> set[AnyOp]:
    """Return the largest parts of a DAG that contain no function of the user's but those of pipelines. There are none
    if no pipeline is called, or if that is the whole DAG. With `inside`, a closure has built the DAG, and what is
    around it may take other components of the tuples in it."""
    waits: set[AnyOp] = set()
    """The nodes that a function of the user's comes before, or that call one."""
    calls = False
    for op in _sources_first(root):
        if type(op) is Then and type(op.f) is Pure and type(op.source) is Value:
            calls = True
        elif _calls_user(op) or not waits.isdisjoint(sources_of(op)):
            waits.add(op)
    if not calls:
        return set()
    parts = {source for op in waits for source in sources_of(op)} - waits
    if _divide_a_tuple(root, inside=inside):
        return set()
    return {part for part in parts if type(part) is not Value and type(part) is not Source}


def _divide_a_tuple(root: AnyOp, *, inside: bool) -> bool:
    """Return true if one component of an `unzip()` is below a `shared()` op, or below an argument of a pipeline, and
    another is not; or is below another one, or is not here, where closures may build ops that take it too. Parts that
    take the two in runs of their own would take the tuple twice, so such an op is traced as a whole."""
    below: dict[Once, set[AnyOp | None]] = {}
    left: dict[Once, set[int]] = {}
    """The components that nothing here takes."""
    calls = inside
    start: tuple[AnyOp, AnyOp | None] = (root, None)
    todo = [start]
    seen: set[tuple[AnyOp, AnyOp | None]] = {start}
    while todo:
        op, around = todo.pop()
        calls |= type(op) is Then and type(op.f) is not Pure
        if type(op) is Unzip:
            below.setdefault(op.split.once, set()).add(around)
            left.setdefault(op.split.once, set(range(op.split.n))).discard(op.index)
        more: list[tuple[AnyOp, AnyOp | None]] = [
            (source, op if type(op) is Shared else around) for source in sources_of(op)
        ]
        if type(op) is Value:
            more += [(each, op) for each in values_in(op.content) if isinstance(each, DeviceOp)]
        todo += [each for each in more if each not in seen]
        seen.update(more)
    return any(
        inside or (calls and bool(left[once])) or (len(places) > 1 and (calls or None in places))
        for once, places in below.items()
    )


def visible_sources(part: AnyOp) -> set[AnyOp]:
    """Return the sources of a part, and those that the pipelines in it are called with."""
    found: set[AnyOp] = set()
    for op in _sources_first(part):
        if type(op) is Source:
            found.add(op)
        elif type(op) is Value:
            for each in values_in(op.content):
                if isinstance(each, DeviceOp):
                    found |= visible_sources(each)
    return found


def _sources_first(root: AnyOp) -> list[AnyOp]:
    """Return the ops of a DAG, each once, after its sources."""
    found: dict[AnyOp, None] = {}
    todo: list[tuple[AnyOp, bool]] = [(root, False)]
    while todo:
        op, has_sources = todo.pop()
        if has_sources:
            found[op] = None
        elif op not in found:
            todo.append((op, True))
            todo += [(source, False) for source in sources_of(op) if source not in found]
    return list(found)


def _calls_user(op: AnyOp) -> bool:
    """Return true for an op that calls a function of the user's."""
    return type(op) is Then or type(op) is HostCall or (type(op) is Map and type(op.f) not in BUILT_IN)
