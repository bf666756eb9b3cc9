"""The rules of what collectives are made of: copies that put a tensor together, and sums over several devices.

The rest follows of itself: the gradient of `all_gather` is a `reduce_scatter`, that of `broadcast` and `all_reduce`
sums over the devices, and that of `shard`, `reshard`, `gather` and `halo` brings each element back to where it was.
"""

from typing import Any, Final

from dagpu.common.errors import GradientError
from dagpu.common.layout import Layout
from dagpu.common.places import describe
from dagpu.grad.cotangents import Cotangent, Steps, materialised, scaled
from dagpu.grad.reverse import OF_COMPLEX, RULES, CallBack
from dagpu.grad.totals import Home, Part, placed, total_of
from dagpu.handles import SharedTensor
from dagpu.handles.handle_state import live_state
from dagpu.ops.creation import dup

_LINEAR: Final = ("sum", "mean")


def _put_together(back: CallBack) -> Steps:
    """What was copied to a part of the result has the gradient of that part, which stays where it is."""
    g, whole = back.g, None
    found: list[Any] = []
    for place, into in zip(back["sources"], back["into"], strict=True):
        if not back.needs(place):
            found.append(None)
        elif g.is_number:
            found.append(Cotangent(g.value, into.shape, g.dtype))
        else:
            if whole is None:
                whole = yield from materialised(g)
                whole = whole if live_state(whole).layout.contiguous else (yield dup(whole))
            state = live_state(whole)
            part = Layout(g.dtype, into.shape, into.strides, state.layout.offset + into.offset)
            found.append(Cotangent(SharedTensor(state.with_layout(part)), into.shape, g.dtype))
    return {"sources": found}


def _combined_at_once(back: CallBack) -> Steps:
    """Each summand has the gradient of the sum; of a mean its part of that."""
    tensors = back["tensors"]
    g = yield from scaled(back.g, 1.0 if back["how"] == "sum" else 1 / len(tensors))
    return {"tensors": [g for _ in tensors]}


def _reduced_by_nccl(back: CallBack) -> Steps:
    """Each summand has the gradient of the results on all devices, added up on its own device."""
    how, summands = back["how"], back["summands"]
    if how not in _LINEAR:
        raise GradientError(
            f'all_reduce at {describe(back.call.origin)}: engine="nccl" has derivatives of sums and means alone, and '
            f"how is {how!r}. Leave engine out."
        )
    results = zip(back.gs, back.call.results, strict=True)
    parts = [Part(g, seen.layout) for g, seen in results if g is not None]
    scale = 1.0 if how == "sum" else 1 / len(summands)
    found: list[Any] = []
    for place in summands:
        seen = back.call.args[place.number]
        assert seen is not None
        home = Home(seen.storage.device, back.call.origin)
        whole = yield from placed(total_of(parts, parts[0].layout, home), home)
        found.append((yield from placed(scaled(whole, scale), home)))
    return {"summands": found}


RULES.update(
    {"put_together": _put_together, "combined_at_once": _combined_at_once, "reduced_by_nccl": _reduced_by_nccl}
)
OF_COMPLEX.update({"put_together", "combined_at_once"})
