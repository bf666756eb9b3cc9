"""Looks up devices and backends by name, and keeps the current device of each task and thread."""

import itertools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib import metadata
from typing import Final, Protocol, cast, runtime_checkable

from dagpu.backends.protocol import Backend
from dagpu.common.compiled import teach
from dagpu.common.env_vars import DEVICE
from dagpu.common.errors import NoDeviceError
from dagpu.common.places import here, leaves_run
from dagpu.common.wrong_arguments import add_call_place, replace_message, wrong_argument
from dagpu.handles.device_handles import FIND_DEVICE, Device
from dagpu.kernels.declaration import ARCH_COMPILER
from dagpu.ops.kernel_spec import KernelSpec

GROUP = "dagpu.backends"
"""The entry point group of the backends. The name of an entry point is a kind of device."""

_SHIPPED = {
    "host": "dagpu.backends.host:HostBackend",
    "cuda": "dagpu.backends.cuda:CudaBackend",
    "explore": "dagpu.backends.explore:ExploreBackend",
}
"""The backends of this package, for a run from a source tree, which has no package metadata."""

_current: ContextVar[Device | None] = ContextVar("dagpu_device", default=None)
chosen_device = _current.get
teach(lookup=globals(), chosen_device=_current)
"""Returns the device of the innermost `use_device` around this task or thread; None if there is none."""


backends: dict[str, Backend] = {}
"""The loaded backends, by the kind of their devices."""


def backend(kind: str) -> Backend:
    """Return the backend for devices of this kind. The first call for a kind loads it.

    Raises:
        NoDeviceError: no installed package provides one.
    """
    found = backends.get(kind)
    # setdefault is atomic: two threads that load a backend at once get the same object.
    return backends.setdefault(kind, _load(kind)) if found is None else found


_replacements: Final = itertools.count()
version: int = next(_replacements)
"""A number that changes whenever a name may have come to mean another device."""


@contextmanager
def replaced_backend(kind: str, replacement: Backend) -> Iterator[None]:
    """Use `replacement` as the backend for this kind within the `with` block, on all threads. For tests."""
    before = backends.get(kind)
    backends[kind] = replacement
    _forget_devices()
    try:
        yield
    finally:
        if before is None:
            del backends[kind]
        else:
            backends[kind] = before
        _forget_devices()


@runtime_checkable
class NamingBackend(Backend, Protocol):
    """A backend that finds its devices by their whole names, since those of several machines have equal numbers."""

    def named(self, name: str) -> Device:
        """Return a device by its name.

        Raises:
            NoDeviceError: there is no such device.
        """
        ...


def add_nodes(nodes: Iterable[str], cluster: NamingBackend) -> None:
    """Make a cluster the backend of its workers' devices. `nodes` has the part of their names before the colon:
    `node3/cuda`."""
    backends.update(dict.fromkeys(nodes, cluster))
    _forget_devices()


def remove_nodes(nodes: Iterable[str]) -> None:
    """Undo `add_nodes`, when the cluster is closed."""
    for kind in nodes:
        backends.pop(kind, None)
    _forget_devices()


def _forget_devices() -> None:
    """Forget which device each name means."""
    global version
    _automatic.cache_clear()
    numbered_device.cache_clear()
    version = next(_replacements)


def _load(kind: str) -> Backend:
    found = next(iter(metadata.entry_points(group=GROUP, name=kind)), None)
    if found is None and kind in _SHIPPED:
        found = metadata.EntryPoint(kind, _SHIPPED[kind], GROUP)
    if found is None and "/" in kind:
        raise NoDeviceError(
            f"no open cluster has a device {kind}:... of that name. cluster.mesh has the devices of a cluster, as long "
            "as its block is open."
        )
    if found is None:
        raise NoDeviceError(
            f"no backend for devices of kind {kind!r} is installed. Known: {', '.join(backend_names())}. "
            f"A package provides one through the entry point group {GROUP!r}."
        )
    return cast(Backend, found.load()())


def _compile_for(spec: KernelSpec, arch: str) -> None:
    from dagpu.backends.cuda.compile.compiler import compile_for

    compile_for(spec, arch)


ARCH_COMPILER.set(_compile_for)


@cache
def backend_names() -> tuple[str, ...]:
    """Return the kinds of device of the installed backends, in alphabetical order."""
    return tuple(sorted({*_SHIPPED, *(entry.name for entry in metadata.entry_points(group=GROUP))}))


@leaves_run
def device(name: str = "auto") -> Device:
    """Return a device by name: `"host"`, `"host:1"`, `"cuda"`, `"cuda:1"`. `"auto"` is a CUDA device if there is one.

    Raises:
        NoDeviceError: this machine has no such device. The message names the missing part.
    """
    origin = here()
    if not isinstance(name, str):
        raise wrong_argument("device", origin, "name", name, "the name of a device", 'Write device("host:1")')
    try:
        return find_device(name)
    except NoDeviceError as error:
        raise add_call_place(f"device({name!r})", origin, error) from None


def find_device(name: str) -> Device:
    """Return a device by name, as `device` does, for a caller that adds the place of the call to the error itself.

    Raises:
        NoDeviceError: this machine has no such device.
    """
    if name == "auto":
        return _automatic()
    kind, index = _split_name(name)
    found = backend(kind)
    return found.named(name) if isinstance(found, NamingBackend) else found.device(index)


FIND_DEVICE.set(find_device)


@lru_cache(maxsize=64)
def numbered_device(kind: str, index: int) -> Device:
    """Return a device by its kind and number, as `find_device` does.

    Raises:
        NoDeviceError: this machine has no such device.
    """
    return backend(kind).device(index)


@lru_cache(maxsize=64)
def _split_name(name: str) -> tuple[str, int]:
    """Return the kind and the index in the name of a device.

    Raises:
        NoDeviceError: this is not the name of a device.
    """
    kind, colon, number = name.partition(":")
    if colon and not number.isdecimal():
        raise NoDeviceError(
            f"{name!r} is not a device. Write a kind, or a kind and a number: 'host', 'host:1', 'cuda:0'."
        )
    return kind, int(number) if colon else 0


@cache
def _automatic() -> Device:
    if "cuda" in backend_names():
        try:
            if backend("cuda").device_count():
                return backend("cuda").device(0)
        except NoDeviceError:
            pass  # without a GPU, or without its driver, "auto" is the host
    return backend("host").device(0)


def current_device() -> Device:
    """Return the device for ops that are placed on none: that of `use_device`, else `DAGPU_DEVICE`, else `"auto"`."""
    chosen = _current.get()
    if chosen is not None:
        return chosen
    asked = DEVICE.get()
    if asked is None:
        return _automatic()
    try:
        return find_device(asked)
    except NoDeviceError as error:
        raise replace_message(error, f"{DEVICE.name}={asked!r}: {error} {DEVICE.cure}") from None


def devices() -> list[Device]:
    """Return all devices of this machine."""
    found = []
    for kind in backend_names():
        try:
            found += [backend(kind).device(index) for index in range(backend(kind).device_count())]
        except NoDeviceError:
            continue  # without its hardware or driver a backend has no devices
    return found


@leaves_run
def use_device(place: Device | str) -> AbstractContextManager[Device]:
    """Make this the device for ops that are placed on none, within the `with` block, in this task or thread.

    Raises:
        NoDeviceError: this machine has no device of that name.
    """
    origin = here()
    if isinstance(place, Device):
        return _using(place)
    if not isinstance(place, str):
        cure = 'Write use_device("host:1"), or pass device("host:1")'
        raise wrong_argument("use_device", origin, "place", place, "a device or its name", cure)
    try:
        return _using(find_device(place))
    except NoDeviceError as error:
        raise add_call_place(f"use_device({place!r})", origin, error) from None


@contextmanager
def _using(chosen: Device) -> Iterator[Device]:
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)
