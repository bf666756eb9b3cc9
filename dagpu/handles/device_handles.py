"""Devices and streams as values: a name and what drives it.

How to reach one (`device("host:1")`, `use_device`) is in dagpu.runtime.device_lookup; how one works is in
dagpu.backends.
"""

from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Final, Literal, Protocol, final

from dagpu.common.critical import Section


class Driver(Protocol):
    """The functions of a backend for one of its devices."""

    def open_stream(self) -> Hashable:
        """A new stream of the device; it closes when the last reference to it goes."""
        ...

    def stream_handle(self, lane: Hashable) -> int:
        """The CUstream of a stream that `open_stream` gave; 0 where there is none."""
        ...

    def memory_info(self) -> tuple[int, int]:
        """Free and total memory, bytes."""
        ...

    def memory_used(self) -> int:
        """Bytes that dagpu's handles and runs hold."""
        ...


INSTALL_CUDA: Final = "pip install 'pycuda>=2026.1' 'cuda-bindings>=12'"
"""The command that brings what drives CUDA devices, beside NVIDIA's own driver. It is the extra `cuda` of
pyproject.toml, spelt out: dagpu is on no package index, and outside of a checkout an extra cannot be named."""


@final
class Device:
    """One place where work runs and memory lies: `host`, `host:1`, `cuda:0`."""

    __slots__ = ("__weakref__", "_driver", "_index", "_kind")

    def __init__(self, kind: Literal["host", "cuda", "explore"], index: int, driver: Driver) -> None:
        self._kind: Literal["host", "cuda", "explore"] = kind
        self._index = index
        self._driver = driver

    @property
    def name(self) -> str:
        return f"{self._kind}:{self._index}"

    @property
    def kind(self) -> Literal["host", "cuda", "explore"]:
        return self._kind

    @property
    def index(self) -> int:
        return self._index

    def stream(self) -> "Stream":
        """A new stream, for `op.sync_on(stream)`; it lives as long as a reference to it."""
        with Section("device.stream() was called"):
            return Stream(self, self._driver.open_stream())

    def memory_info(self) -> tuple[int, int]:
        """Free and total memory of the device, bytes."""
        with Section("device.memory_info() was called"):
            return self._driver.memory_info()

    def memory_used(self) -> int:
        """Bytes that dagpu's handles and runs hold on this device."""
        with Section("device.memory_used() was called"):
            return self._driver.memory_used()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self._kind, self._index) == (other._kind, other._index)

    def __hash__(self) -> int:
        return hash((self._kind, self._index))

    def __repr__(self) -> str:
        return f"device({self.name!r})"


driver_of: Final[Callable[[Device], Driver]] = attrgetter("_driver")
"""The driver of a device."""


@final
class Stream:
    """A queue of work on one device: what is put into it runs in that order."""

    __slots__ = ("_device", "lane")

    def __init__(self, device: Device, lane: Hashable) -> None:
        self._device = device
        self.lane = lane

    @property
    def device(self) -> Device:
        return self._device

    @property
    def handle(self) -> int:
        """The CUstream, for other libraries; 0 on the host."""
        return driver_of(self._device).stream_handle(self.lane)

    def __repr__(self) -> str:
        return f"<Stream on {self._device.name}>"
