"""How a feed builds its values: from the memory of the targets and the inputs, after each update.

Device results are `SharedTensor`s: the next update writes none that something still reads. NumPy arrays are read-only,
because an array that no update has made again is handed out again. `map` of host data that the device makes is called
here, again only if what it is given has changed.
"""

from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any, TypeAlias, final

from dagpu.common.containers import is_container, map_values, own_containers, values_in
from dagpu.common.errors import OwnershipError
from dagpu.common.layout import Layout
from dagpu.common.places import Origin, describe
from dagpu.handles import OWNING, HandleState, Holders, SharedTensor, Tensor, clone_shared, live_state
from dagpu.handles.device_handles import Device, driver_of
from dagpu.handles.handle_state import Storage
from dagpu.handles.tensors import make_unwritable
from dagpu.ops.compose import Map
from dagpu.ops.source_op import as_read
from dagpu.tracing.live_inputs import NOT_CALLED, LiveInputs
from dagpu.tracing.run_memo import Deferred, FromCell, FromItems, SuspendedOp, resolve
from dagpu.tracing.user_code import apply_map

Build: TypeAlias = Callable[[], Any]
"""A function that builds a part of the result after an update."""


@final
class TargetMemory:
    """The memory of the targets between updates, by the buffers of the whole program."""

    __slots__ = ("_held", "_seen_elsewhere", "memory")

    def __init__(self, size: int) -> None:
        self.memory: list[Any] = [None] * size
        self._held: dict[int, tuple[object, Any]] = {}
        """For each device result that was handed out: its memory, and a handle, so that nobody else becomes its
        owner."""
        self._seen_elsewhere: set[int] = set()
        """The buffers whose memory something else may read: it is never written again."""

    def adopt(self, buffer: int, handle: Any) -> None:
        """Hand out clones of this handle for a buffer, as long as it keeps its present memory."""
        self._held[buffer] = self.memory[buffer], handle

    def take_over(self, buffer: int, memory: object, handle: Any) -> None:
        """Take over the memory of an earlier trace, and the handle that was handed out for it, if there is one."""
        self.memory[buffer] = memory
        self._seen_elsewhere.add(buffer)
        if handle is not None:
            self._held[buffer] = memory, handle

    def lend(self, buffer: int) -> tuple[object, Any]:
        """Return the memory of a buffer, which is not written any more, and another handle to it, if one was handed
        out."""
        self._seen_elsewhere.add(buffer)
        handle = self.handle_of(buffer)
        return self.memory[buffer], None if handle is None else handle.clone()

    def drop(self, buffer: int) -> None:
        """Free the memory of a buffer that is not a target any more."""
        self.memory[buffer] = None
        self._held.pop(buffer, None)

    def own_memory(self, buffer: int) -> Any:
        """Return the memory of a buffer if nothing else reads it, so that an update may write it; else None.

        A result whose handles have all been dropped is written again where it is: its address stays, so no node of a
        graph changes for it.
        """
        if buffer in self._seen_elsewhere:
            return None
        own, found = self.memory[buffer], self._held.get(buffer)
        return own if found is None or found[0] is not own or not _is_read(found[1], own) else None

    def replace(self, buffer: int, memory: object) -> None:
        """Set the memory in which an update has made a buffer."""
        if memory is not self.memory[buffer]:
            self.memory[buffer] = memory
            self._held.pop(buffer, None)  # it would keep the memory that was replaced
            self._seen_elsewhere.discard(buffer)

    def handle_of(self, buffer: int) -> Any:
        """Return the handle to the present contents of a buffer that was handed out; None if there is none."""
        memory, handle = self._held.get(buffer, (None, None))
        return handle if memory is self.memory[buffer] else None

    def is_held(self, buffer: int) -> bool:
        """Return true if something outside of the feed may read the present contents of a buffer: a handle, a run,
        another library, or another target in the same memory."""
        own, handle = self.memory[buffer], self.handle_of(buffer)
        if buffer in self._seen_elsewhere or sum(map(partial(is_, own), self.memory)) > 1:
            return True
        return handle is not None and _is_read(handle, own)

    def shared(self, buffer: int, device: Device, nbytes: int, layout: Layout, origin: Origin) -> Any:
        """Return a handle to a device result. All handles to one version share its memory."""
        memory = self.memory[buffer]
        found = self._held.get(buffer)
        if found is None or found[0] is not memory:
            state = HandleState(SharedTensor, Storage(device, nbytes, memory), layout, origin, holders=Holders())
            self._held[buffer] = memory, SharedTensor(state)
            return SharedTensor(state)
        state = live_state(found[1])
        # `clone_shared` without its lock: the handle that is held stays one of the holders.
        return SharedTensor(HandleState(SharedTensor, state.storage, layout, state.origin, holders=state.holders))


@final
class SharedTarget:
    """Builds a device result that is the memory of one target."""

    __slots__ = ("_buffer", "_device", "_layout", "_nbytes", "_origin", "_targets")

    def __init__(
        self, targets: TargetMemory, buffer: int, device: Device, nbytes: int, layout: Layout, origin: Origin
    ) -> None:
        self._targets = targets
        self._buffer = buffer
        self._device = device
        self._nbytes = nbytes
        self._layout = layout
        self._origin = origin

    def __call__(self) -> Any:
        """Return a handle to the memory; see `TargetMemory.shared`."""
        return self._targets.shared(self._buffer, self._device, self._nbytes, self._layout, self._origin)


def _is_read(handle: Any, memory: object) -> bool:
    """Return true if something may read the memory of a result beside the handle that the feed keeps: another handle, a
    run, or another library."""
    state = live_state(handle)
    lock, holders = state.storage.lock, state.holders
    if (holders is not None and holders.count > 1) or lock.readers or lock.writer is not None:
        return True
    return driver_of(state.storage.device).exchange.is_parked(memory)


Made: TypeAlias = dict[Storage, tuple[TargetMemory, int]]
"""The memory that the stages of a trace make, by the storages to which the traced handles refer."""


def result_builder(root: Any, live: LiveInputs, cells: TargetMemory, made: Made, where: Origin) -> Build | None:
    """Return the function that builds the result of the traced value `root`; None if it needs a further stage.

    The function raises what a closure raises, with a note that names the closure. `cells` has
    the values of the stage that was traced last, `made` the memory of all stages; `where` is the place of `observe`.

    Raises:
        OwnershipError: the result owns handles, and is not one bare `Tensor`.
    """
    root = resolve(root)
    if type(root) is not Tensor:
        for item in values_in(root):
            if type(item) in OWNING:
                raise OwnershipError(
                    f"observe() at {describe(where)} of an op whose result owns {item!r}: each value of a feed may be "
                    "handed out again. Let the op share it: .share(), or .unpartition().share()."
                )
    return _Builder(live, cells, made).part(root)


@final
class _Builder:
    """Reads off a traced value how to build it after each update."""

    def __init__(self, live: LiveInputs, cells: TargetMemory, made: Made) -> None:
        self._live = live
        self._cells = cells
        self._made = made

    def part(self, value: Any) -> Build | None:
        """Return the function that builds a part of the result."""
        value = resolve(value)
        index = self._live.index_of(value)
        if index is not None:
            made = self._live.inputs[index]
            return lambda: as_read(made.value)
        if type(value) is Deferred:
            return self._deferred(value)
        if type(value) is Tensor or type(value) is SharedTensor:
            return self._tensor(value)
        if is_container(value):
            return self._container(value)
        return lambda: value

    def _tensor(self, handle: Any) -> Build:
        state = live_state(handle)
        storage = state.storage
        found = self._made.get(storage)
        if found is not None:
            memory, buffer = found
            return SharedTarget(memory, buffer, storage.device, storage.nbytes, state.layout, state.origin)
        index = self._live.storages.get(storage)
        if index is not None:
            made, layout = self._live.inputs[index], state.layout
            return lambda: clone_shared(made.value, layout)
        if type(handle) is not SharedTensor:
            handle = SharedTensor(HandleState(SharedTensor, storage, state.layout, state.origin, holders=Holders()))
        own: SharedTensor[Any] = handle
        return own.clone

    def _container(self, container: Any) -> Build | None:
        """Return the function that builds a tuple, list or dict."""
        parts: list[Build] = []
        possible = True

        def add(item: Any) -> int:
            nonlocal possible
            build = self.part(item)
            if build is None:
                possible = False
            else:
                parts.append(build)
            return len(parts) - 1

        places = map_values(lambda item: _Place(add(item)), container)
        return (lambda: map_values(lambda place: parts[place.index](), places, _PLACES)) if possible else None

    def _deferred(self, value: Deferred) -> Build | None:
        """Return the function that builds a value of the host that the device makes, or that is computed of one."""
        match value.cause:
            case FromCell(buffer=buffer):
                memory = self._cells
                return lambda: memory.memory[buffer]
            case FromItems(items=items):
                return self._container(items)
            case SuspendedOp(node=Map() as node, inputs=(argument,)):
                return self._mapped(node, argument)
            case _:
                return None

    def _mapped(self, node: Map[Any], argument: Any) -> Build | None:
        """Return the function that calls a closure again if what it is given is another object."""
        given = self.part(argument)
        if given is None:
            return None
        live = self._live

        def build() -> Any:
            value = given()
            made = live.bound_value(node, value)
            if made is NOT_CALLED:
                made = make_unwritable(apply_map(node, own_containers(value)))
            live.bind(node, (), value, made)
            return made

        return build


@final
class _Place:
    """The place of a part in a container."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


_PLACES = frozenset((_Place,))
