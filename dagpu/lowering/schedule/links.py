"""`Links`: the network between the devices of a host, and between hosts, as the cost model knows it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, final

import numpy as np

from dagpu.common.origin import here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import check_count, is_real_number, wrong_argument
from dagpu.handles import Tensor
from dagpu.handles.device_handles import Device, reaches
from dagpu.lowering.schedule.mesh import Mesh
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import value, zip_ops
from dagpu.ops.creation import dup, zeros

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
