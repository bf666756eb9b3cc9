"""`Mesh`, devices in a grid, and `Links`, the network between them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from math import prod
from time import perf_counter
from typing import Any, Final, final

import numpy as np

from dagpu.common.compiled import teach
from dagpu.common.errors import MeshError, NoDeviceError
from dagpu.common.places import Origin, here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, check_count, is_real_number, wrong_argument
from dagpu.handles import Tensor
from dagpu.handles.device_handles import FIND_DEVICE, Device, automatic_device, reaches
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import value, zip_ops
from dagpu.ops.creation import dup, zeros


@final
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Mesh:
    """Devices of one kind in a grid with named axes. Meshes are compared by value. One device is a mesh too.

    Args:
        devices: the devices or their names, row by row, each once.
        shape: the number of devices along each axis; by default all of them along one axis.
        axes: the name of each axis; by default `"devices"`, the name of the one axis.

    Raises:
        MeshError: there are no devices, they are of several kinds, one occurs twice, or the shape or the axes do not
            fit.
        NoDeviceError: this machine has no device of one of these names.
    """

    devices: tuple[Device, ...]
    """The devices, row by row."""
    shape: tuple[int, ...]
    """The number of devices along each axis."""
    axes: tuple[str, ...]
    """The name of each axis."""
    automatic: Device = field(compare=False)
    """The place of work that a policy puts on one of the devices later. Its name ends in `auto`, it has no memory."""

    @leaves_run
    def __init__(
        self,
        devices: Sequence[Device | str],
        shape: Sequence[int] | None = None,
        axes: Sequence[str] = ("devices",),
    ) -> None:
        where = here()
        found = _devices_of(devices, where)
        extents = (len(found),) if shape is None else _extents_of(shape, len(found), where)
        names: Any = axes  # whatever the user gave
        if (
            not isinstance(names, tuple | list)
            or not all(isinstance(name, str) for name in names)
            or len(names) != len(extents)
            or len({*names}) < len(names)
        ):
            wanted = f"a list of {len(extents)} different names, one for each axis of the shape,"
            raise wrong_argument("Mesh", where, "axes", axes, wanted, 'Write axes=("rows", "columns")', MeshError)
        for name, content in (
            ("devices", found),
            ("shape", extents),
            ("axes", tuple(names)),
            ("automatic", automatic_device(found[0])),
        ):
            object.__setattr__(self, name, content)

    def __len__(self) -> int:
        return len(self.devices)

    def __reduce__(self) -> "tuple[type[Mesh], tuple[object, ...]]":
        """A copy or pickle of a mesh has its devices by their names."""
        return Mesh, (self.devices, self.shape, self.axes)

    def __repr__(self) -> str:
        grid = "" if len(self.shape) == 1 else f", {self.shape}, {self.axes}"
        return f"Mesh([{', '.join([repr(device.name) for device in self.devices])}]{grid})"

    @leaves_run
    def along(self, axis: str) -> "tuple[Mesh, ...]":
        """Return the rows of the grid along one axis, each as a mesh of that axis.

        Raises:
            MeshError: the mesh has no axis of that name.
        """
        given: Any = axis  # whatever the user gave
        if not isinstance(given, str) or axis not in self.axes:
            names = " or ".join(map(repr, self.axes))
            raise wrong_argument("along", here(), "axis", axis, names, f"Write .along({self.axes[0]!r})", MeshError)
        at = self.axes.index(axis)
        stride, extent = prod(self.shape[at + 1 :]), self.shape[at]
        starts = [n for n in range(len(self.devices)) if n // stride % extent == 0]
        return tuple([Mesh(self.devices[n : n + stride * extent : stride], axes=(axis,)) for n in starts])


def _devices_of(devices: Any, where: Origin) -> tuple[Device, ...]:
    """Return the devices of a mesh, of which some may be given by name."""
    cure = 'Write Mesh(["cuda:0", "cuda:1"])'
    given = list(devices) if isinstance(devices, tuple | list) else []
    if not given or not all(isinstance(each, Device | str) for each in given):
        raise wrong_argument("Mesh", where, "devices", devices, "a list of devices or their names", cure, MeshError)
    try:
        found = tuple([FIND_DEVICE.value(each) if isinstance(each, str) else each for each in given])
    except NoDeviceError as error:
        raise add_call_place("Mesh()", where, error) from None
    if len({*found}) < len(found) or len({each.kind for each in found}) > 1:
        raise wrong_argument("Mesh", where, "devices", devices, "different devices of one kind", cure, MeshError)
    return found


def _extents_of(shape: Any, count: int, where: Origin) -> tuple[int, ...]:
    """Return the shape of a mesh of `count` devices."""
    found = [as_whole_number(extent) for extent in shape] if isinstance(shape, tuple | list) else []
    extents = tuple([extent for extent in found if extent is not None and extent > 0])
    if not found or len(extents) != len(found) or prod(extents) != count:
        wanted = f"a shape of {count} devices"
        raise wrong_argument("Mesh", where, "shape", shape, wanted, f"Write shape=({count},)", MeshError)
    return extents


_current: ContextVar[Mesh | None] = ContextVar("dagpu_mesh", default=None)
chosen_mesh = _current.get
teach(chosen_mesh=_current)
"""Returns the mesh of the innermost `use_mesh` around this task or thread; None if there is none."""


@leaves_run
def use_mesh(mesh: Mesh) -> AbstractContextManager[Mesh]:
    """Spread ops that are placed on no device over the mesh, within the `with` block, in this task or thread.

    Each instruction of a run goes where the cost model of `Spread` predicts that it is done soonest. A device that an
    op names with `.on(device)` stays its device. Results lie on the devices that made them; `to_host()` works on all.
    """
    if not isinstance(mesh, Mesh):
        cure = 'Write use_mesh(Mesh(["cuda:0", "cuda:1"]))'
        raise wrong_argument("use_mesh", here(), "mesh", mesh, "a Mesh", cure)
    return _using(mesh)


@contextmanager
def _using(mesh: Mesh) -> Iterator[Mesh]:
    token = _current.set(mesh)
    try:
        yield mesh
    finally:
        _current.reset(token)


# ---- links
#
# `Links`: the network between the devices of a host, and between hosts, as the cost model knows it.

_LARGE: Final = 64 << 20
"""Bytes of a copy whose time is that of its bytes."""
_SMALL_COPIES: Final = (4, 36)
"""Copies of one byte in a short and in a long measurement. Their difference leaves out what a measurement costs."""
_LARGE_COPIES: Final = (2, 10)
"""Copies of `_LARGE` bytes in a short and in a long measurement."""
_LEAST: Final = 1e-9
"""The shortest latency that a measurement returns, in seconds."""


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A way between two places. A copy of n bytes takes `latency + n / bandwidth` seconds."""

    latency: float
    """Seconds before the first byte."""
    bandwidth: float
    """Bytes a second."""
    ports: int = 1
    """The number of copies that one device sends at once, and the number that it receives at once."""

    def __post_init__(self) -> None:
        number: Any  # whatever the user gave
        for name, number, least in (("latency", self.latency, 0), ("bandwidth", self.bandwidth, 1)):
            if not is_real_number(number) or not least <= number < math.inf:
                wanted, cure = f"a number, {least} or more and finite,", "Write Link(5e-6, 382e9), say"
                raise wrong_argument("Link", here(), name, number, wanted, cure, ValueError)
        check_count(self.ports, "Link", here(), "ports")

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of a copy of `nbytes` bytes."""
        return self.latency + nbytes / self.bandwidth


@final
@dataclass(frozen=True, slots=True)
class Links:
    """The network of a mesh, by levels. Immutable, and compared by value.

    The defaults of `peer` were measured on two and four H200s (NVLink 4, 18 links, 22 November 2026): copies that the
    target pulls took 7.7 us for 4 KiB, and 382 GB/s for large ones. `host` was 37 GB/s there without access to the
    peer's memory. Its latency, that of two copies, was not measured, and neither was `node`: it is one network adapter
    of 400 Gbit/s.
    """

    peer: Link = Link(7.7e-6, 382e9)
    """Between two devices of one host that read each other's memory."""
    host: Link = Link(2 * 7.7e-6, 37e9)
    """Between two devices of one host that do not. The driver copies through page-locked memory of the host."""
    node: Link = Link(12e-6, 50e9)
    """Between two devices of different hosts."""

    def __post_init__(self) -> None:
        for name, link in (("peer", self.peer), ("host", self.host), ("node", self.node)):
            if not isinstance(link, Link):
                raise wrong_argument("Links", here(), name, link, "a Link", f"Write {name}=Link(5e-6, 382e9)")

    @leaves_run
    def between(self, one: Device, other: Device) -> Link:
        """Return the link between two different devices."""
        for name, place in (("one", one), ("other", other)):
            if not isinstance(place, Device):
                cure = 'Write between(device("cuda:0"), device("cuda:1"))'
                raise wrong_argument("between", here(), name, place, "a Device", cure)
        if node_of(one.name) != node_of(other.name):
            return self.node
        return self.peer if reaches(one, other) else self.host

    @classmethod
    @leaves_run
    def measured(cls, mesh: Mesh) -> "DeviceOp[Links]":
        """Return an op that measures `peer` (or `host`, where the devices do not read each other's memory) by copies
        from each device of the mesh to the next. Its value has the other levels' defaults.

        The op takes 128 MiB on each device. Run it while nothing else uses the devices. A mesh of one device gives the
        defaults.
        """
        if not isinstance(mesh, Mesh):
            cure = 'Write Links.measured(Mesh(["cuda:0", "cuda:1"]))'
            raise wrong_argument("Links.measured", here(), "mesh", mesh, "a Mesh", cure)
        if len(mesh) == 1:
            return value(cls())
        small, large = [(1, count) for count in _SMALL_COPIES], [(_LARGE, count) for count in _LARGE_COPIES]
        op: DeviceOp[Any] = value(())
        for nbytes, count in [small[0], *small, *large]:  # one after the other; the first only warms the devices up
            op = op.then(partial(_measure_next, mesh.devices, nbytes, count))
        return op.map(partial(_links_of, cls, reaches(mesh.devices[0], mesh.devices[1])))


def node_of(name: str) -> str:
    """Return the node in the name of a device, such as `node3` of `node3/cuda:1`; empty for this process."""
    return name.rpartition("/")[0]


def _measure_next(devices: Sequence[Device], nbytes: int, count: int, before: tuple[float, ...]) -> DeviceOp[Any]:
    """Return an op that measures `count` copies of `nbytes` bytes, and adds their seconds to a tuple."""
    start = zeros((nbytes,), np.uint8).on(devices[0]).host_map(_stamp)
    return start.then(partial(_copy_round, devices, count)).host_map(_stamp).map(partial(_seconds, before))


def _stamp(found: Any) -> tuple[Any, float]:
    """Return the argument, and the time now. It is called on the host once the argument is complete."""
    return found, perf_counter()


def _copy_round(devices: Sequence[Device], count: int, stamped: tuple[Tensor[Any], float]) -> DeviceOp[Any]:
    """Return an op that copies a tensor from device to device `count` times, one copy after the other."""
    tensor, begin = stamped
    op: DeviceOp[Any] = value(tensor)
    for number in range(1, count + 1):
        op = op.then(partial(_copy_to, devices[number % len(devices)]))
    return zip_ops(op, value(begin))


def _copy_to(place: Device, tensor: Tensor[Any]) -> DeviceOp[Any]:
    return dup(tensor).on(place)


def _seconds(before: tuple[float, ...], stamped: tuple[tuple[Any, float], float]) -> tuple[float, ...]:
    (_, begin), end = stamped
    return (*before, end - begin)


def _links_of(links: type[Links], peers: bool, seconds: tuple[float, ...]) -> Links:
    """Return the links that the measured times show."""
    _, short, long, large_short, large_long = seconds
    latency = max((long - short) / (_SMALL_COPIES[1] - _SMALL_COPIES[0]), _LEAST)
    large = (large_long - large_short) / (_LARGE_COPIES[1] - _LARGE_COPIES[0])
    link = Link(latency, _LARGE / max(large - latency, _LEAST))
    return links(peer=link) if peers else links(host=link)
