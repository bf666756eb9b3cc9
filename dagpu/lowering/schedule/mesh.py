"""`Mesh`: devices in a grid, over which an op may be spread."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import prod
from typing import Any, final

from dagpu.common.errors import MeshError, NoDeviceError
from dagpu.common.origin import Origin, here
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import add_call_place, as_whole_number, wrong_argument
from dagpu.handles.device_handles import FIND_DEVICE, Device, automatic_device


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
        for name, value in (
            ("devices", found),
            ("shape", extents),
            ("axes", tuple(names)),
            ("automatic", automatic_device(found[0])),
        ):
            object.__setattr__(self, name, value)

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
