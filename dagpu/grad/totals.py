"""The gradient of a value from those of what has read it: of all of it, of parts of it, and on other devices.

Parts that do not overlap are put together in one tensor by copies, as `gather` puts a whole together; what remains is
added up. On several devices each value has its gradient where it is itself: sums read the memory of other devices, as
`all_reduce` does.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from dagpu import arrays as array
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin
from dagpu.grad.cotangents import Cotangent, Steps, materialised, seen_as, total
from dagpu.handles import SharedTensor
from dagpu.handles.device_handles import Device
from dagpu.handles.handle_state import live_state
from dagpu.meshes.collectives import summed_on
from dagpu.meshes.layouts import Box, intersection, volume
from dagpu.meshes.moving import CopyInto, assembled
from dagpu.ops.compose import On
from dagpu.ops.creation import dup, from_host, zeros


class Part(NamedTuple):
    """The gradient of a part of a value, which may be all of it."""

    g: Cotangent
    layout: Layout
    """The place of the part in the memory of the value."""


class Home(NamedTuple):
    """Where a value is."""

    device: Device | None
    """None where all values are on one device, and nothing has to be said."""
    origin: Origin


def placed(steps: Steps, home: Home) -> Steps:
    """Return a computation in steps whose ops are placed on a device."""
    if home.device is None:
        return (yield from steps)
    value: Any = None
    while True:
        try:
            op = steps.send(value)
        except StopIteration as end:
            return end.value
        value = yield On(op, home.device, home.origin)


def total_of(parts: Sequence[Part], whole: Layout, home: Home) -> Steps:
    """Return the gradient of a value with this layout, on its device."""
    sums: list[Cotangent] = []
    boxes: list[tuple[Part, Box]] = []
    for part in parts:
        box = box_of(part.layout, whole)
        if part.layout.nbytes == whole.nbytes and part.layout.contiguous:
            sums.append((yield from seen_as(part.g, whole.shape)))
        elif box is not None:
            boxes.append((part, box))
        else:
            sums.append((yield from _scattered(part, whole, home)))
    while boxes:
        group, boxes = _disjoint(boxes)
        sums.append((yield from _put_together(group, whole, home)))
    return (yield from _added(sums, home))


def places_in(layout: Layout, whole: Layout) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the place of each element of a part among those of a whole value, which is contiguous."""
    itemsize = whole.dtype.itemsize
    places = np.full(layout.shape, (layout.offset - whole.offset) // itemsize, np.int64)
    for axis, (extent, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * (stride // itemsize)
        places += steps.reshape((-1, *[1] * (len(layout.shape) - axis - 1)))
    return places


def box_of(layout: Layout, whole: Layout) -> Box | None:
    """Return which box of a contiguous value a part is; None if it is no box of it, in its order."""
    pairs = list(zip(layout.strides, whole.strides, layout.shape, strict=False))
    if len(layout.shape) != len(whole.shape) or any(n > 1 and one != other for one, other, n in pairs):
        return None
    rest, box = layout.offset - whole.offset, []
    for extent, stride, limit in zip(layout.shape, whole.strides, whole.shape, strict=True):
        start = rest // stride if stride and limit > 1 else 0
        rest -= start * stride
        if start + extent > limit:
            return None
        box.append((start, start + extent))
    return None if rest else tuple(box)


def moved(x: Any, home: Home) -> Steps:
    """Return a tensor on a device: a copy of one that is elsewhere."""
    if home.device is None or live_state(x).storage.device == home.device:
        return x
    target = contiguous_layout(x.shape, x.dtype)
    return (yield assembled(home.device, x.shape, x.dtype, [CopyInto(x, target)], home.origin))


def _disjoint(boxes: Sequence[tuple[Part, Box]]) -> tuple[list[tuple[Part, Box]], list[tuple[Part, Box]]]:
    """Return boxes of which no two have an element in common, and the others."""
    taken: list[tuple[Part, Box]] = []
    left: list[tuple[Part, Box]] = []
    for part, box in boxes:
        free = all(intersection(box, other) is None for _, other in taken)
        (taken if free else left).append((part, box))
    return taken, left


def _put_together(group: Sequence[tuple[Part, Box]], whole: Layout, home: Home) -> Steps:
    """Return the gradient of a whole value from those of boxes of it, and 0 between them."""
    target, copies = contiguous_layout(whole.shape, whole.dtype), []
    for part, box in group:
        g = yield from materialised(part.g)
        inside = target.offset + sum([start * step for (start, _), step in zip(box, target.strides, strict=True)])
        copies.append(CopyInto(g, Layout(whole.dtype, part.layout.shape, target.strides, inside)))
    covered = sum([volume(box) for _, box in group]) == prod(whole.shape)
    op = assembled(home.device, whole.shape, whole.dtype, copies, home.origin, zeros=not covered)
    return Cotangent((yield op), whole.shape, whole.dtype)


def _scattered(part: Part, whole: Layout, home: Home) -> Steps:
    """Return the gradient of a whole value from that of any part of it."""
    count = whole.nbytes // whole.dtype.itemsize
    g = yield from moved((yield from materialised(part.g)), home)
    flat = g.reshape((-1,)) if live_state(g).layout.contiguous else (yield dup(g)).reshape((-1,))
    places = from_host(places_in(part.layout, whole).reshape(-1))
    found = yield array.scatter_add(zeros((count,), whole.dtype.type), places, flat)
    return Cotangent(found.reshape(whole.shape), whole.shape, whole.dtype)


def _added(parts: Sequence[Cotangent], home: Home) -> Steps:
    """Return the sum of cotangents, which is on a device."""
    tensors = [each.value for each in parts if isinstance(each.value, SharedTensor)]
    if home.device is None or all(live_state(each).storage.device == home.device for each in tensors):
        return (yield from total(parts))
    if len(tensors) > 1 and all(each.shape == parts[0].shape for each in tensors):
        found = yield summed_on(home.device, tensors, home.origin)
        near = [Cotangent(found, parts[0].shape, parts[0].dtype), *[each for each in parts if each.is_number]]
        return (yield from total(near))
    near = []
    for each in parts:
        value = (yield from moved(each.value, home)) if isinstance(each.value, SharedTensor) else each.value
        near.append(each._replace(value=value))
    return (yield from total(near))
