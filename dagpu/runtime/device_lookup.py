"""The devices of this machine, and the current one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from typing import cast

from dagpu.backends.protocol import Backend
from dagpu.common.env_vars import DEVICE
from dagpu.common.errors import NoDeviceError
from dagpu.common.origin import here
from dagpu.common.wrong_arguments import at_call, reworded, wrong_argument
from dagpu.handles.device_handles import Device

GROUP = "dagpu.backends"
"""The entry point group in which backends are found: its names are kinds of device."""

_SHIPPED = {
    "host": "dagpu.backends.host:HostBackend",
    "cuda": "dagpu.backends.cuda:CudaBackend",
    "explore": "dagpu.backends.explore:ExploreBackend",
}
"""The backends of this package, for a run from a source tree, whose metadata cannot be read."""

_current: ContextVar[Device | None] = ContextVar("dagpu_device", default=None)


backends: dict[str, Backend] = {}
"""The backends that are loaded, by the kind of their devices."""


def backend(kind: str) -> Backend:
    """The backend that brings devices of this kind; loaded when it is first asked for.

    Raises:
        NoDeviceError: no package that is installed has one.
    """
    found = backends.get(kind)
    # setdefault is atomic: of two threads that load it at once, both get the same one.
    return backends.setdefault(kind, _load(kind)) if found is None else found


@contextmanager
def replaced_backend(kind: str, replacement: Backend) -> Iterator[None]:
    """Within the `with` block `replacement` brings the devices of this kind, on all threads. For tests."""
    before = backends.get(kind)
    backends[kind] = replacement
    _automatic.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del backends[kind]
        else:
            backends[kind] = before
        _automatic.cache_clear()


def _load(kind: str) -> Backend:
    found = next(iter(metadata.entry_points(group=GROUP, name=kind)), None)
    if found is None and kind in _SHIPPED:
        found = metadata.EntryPoint(kind, _SHIPPED[kind], GROUP)
    if found is None:
        raise NoDeviceError(
            f"no backend for devices of kind {kind!r} is installed. Known: {', '.join(backend_names())}. "
            f"A package brings one through the entry point group {GROUP!r}."
        )
    return cast(Backend, found.load()())


@cache
def backend_names() -> tuple[str, ...]:
    """The kinds of device that the installed backends bring, in alphabetical order."""
    return tuple(sorted({*_SHIPPED, *(entry.name for entry in metadata.entry_points(group=GROUP))}))


def device(name: str = "auto") -> Device:
    """A device by name: `"host"`, `"host:1"`, `"cuda"`, `"cuda:1"`; `"auto"` is a CUDA device if there is one.

    Raises:
        NoDeviceError: there is no such device here; the message says which part is missing.
    """
    origin = here()
    if not isinstance(name, str):
        raise wrong_argument("device", origin, "name", name, "the name of a device", 'Write device("host:1")')
    try:
        return find(name)
    except NoDeviceError as error:
        raise at_call(f"device({name!r})", origin, error) from None


def find(name: str) -> Device:
    """`device(name)` for a caller that adds the place of the name to the error itself.

    Raises:
        NoDeviceError: there is no such device here.
    """
    if name == "auto":
        return _automatic()
    kind, colon, number = name.partition(":")
    if colon and not number.isdecimal():
        raise NoDeviceError(f"{name!r} is no device. Write a kind, or a kind and a number: 'host', 'host:1', 'cuda:0'.")
    return backend(kind).device(int(number) if colon else 0)


@cache
def _automatic() -> Device:
    if "cuda" in backend_names():
        try:
            if backend("cuda").device_count():
                return backend("cuda").device(0)
        except NoDeviceError:
            pass  # no GPU, or not what drives it: that is what "auto" is for
    return backend("host").device(0)


def current_device() -> Device:
    """The device on which ops run that say nothing else: of `use_device`, else `DAGPU_DEVICE`, else `"auto"`."""
    chosen = _current.get()
    if chosen is not None:
        return chosen
    asked = DEVICE.get()
    if asked is None:
        return _automatic()
    try:
        return find(asked)
    except NoDeviceError as error:
        raise reworded(error, f"{DEVICE.name}={asked!r}: {error} {DEVICE.cure}") from None


def devices() -> list[Device]:
    """All devices of this machine."""
    found = []
    for kind in backend_names():
        try:
            found += [backend(kind).device(index) for index in range(backend(kind).device_count())]
        except NoDeviceError:
            continue  # a backend whose hardware or driver is absent brings no devices
    return found


def use_device(place: Device | str) -> AbstractContextManager[Device]:
    """Within the `with` block, in this task or thread, ops run on this device unless they say otherwise.

    Raises:
        NoDeviceError: there is no device of that name here.
    """
    origin = here()
    if isinstance(place, Device):
        return _using(place)
    if not isinstance(place, str):
        cure = 'Write use_device("host:1"), or pass device("host:1")'
        raise wrong_argument("use_device", origin, "place", place, "a device or its name", cure)
    try:
        return _using(find(place))
    except NoDeviceError as error:
        raise at_call(f"use_device({place!r})", origin, error) from None


@contextmanager
def _using(chosen: Device) -> Iterator[Device]:
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)
