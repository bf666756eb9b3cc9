"""The bodies of a foreign op: their registration, the choice of one, and its call on a device."""

import inspect
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Concatenate, Final, Literal, TypeAlias, cast, final

import numpy as np

from dagpu.common.env_vars import FOREIGN
from dagpu.common.errors import ForeignError, NoDeviceError
from dagpu.common.frozen import frozen
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value, suspended_result
from dagpu.handles.device_handles import Capturing, TemporaryMemory, UserBody, tuple_getter
from dagpu.interop.array_libraries import LANES, ArrayLibrary, BodyLane, LibraryName, OperandView, find_library
from dagpu.kernels.annotations import takes_by_position
from dagpu.ops.kernel_spec import Form, HostBody

Body: TypeAlias = Callable[..., object]
"""A function that does the work of a foreign op on arrays of one library."""

_LIBRARIES: Final = ("torch", "cupy", "numba")
_INSTALL: Final = {"torch": "pip install torch", "cupy": "pip install cupy-cuda13x", "numba": "pip install numba-cuda"}


@final
@frozen
class ChosenBody:
    """A registered body."""

    kind: str
    """"torch", "cupy", "numba", "raw" or "host"."""
    function: Body
    on_host: bool
    """True if it serves on the host too."""

    @property
    def place(self) -> str:
        """The file and line of the body."""
        code = getattr(self.function, "__code__", None)
        return "an unknown place" if code is None else describe((code, 0))


@final
class BodyList:
    """The bodies of one foreign op, in the order of their registration."""

    def __init__(self, name: str, origin: Origin, names: tuple[str, ...], results: int | None) -> None:
        self.name = name
        self.origin = origin
        self._names = names
        """The names of the declaration's parameters."""
        self._results = results
        """The number of new tensors, None if the annotation does not say it."""
        self._bodies: list[ChosenBody] = []
        self.host = HostBody(whole=True)
        """The host body of the op's kernels."""

    def add(self, kind: str, function: Body, *, on_host: bool) -> None:
        """Register a body.

        Raises:
            ForeignError: it cannot be one, or there is one of its kind.
        """
        where = f"{self.name}, declared at {describe(self.origin)}"
        if not callable(function):
            raise ForeignError(
                f"{where}: its {kind} body is {format_value(function)}, not a function. Decorate a function, def."
            )
        if (gives := suspended_result(function)) is not None:
            raise ForeignError(
                f"{where}: a call of its {kind} body {format_value(function)} gives {gives} and runs nothing. Write a "
                "plain function: def, with no await and no yield."
            )
        body = ChosenBody(kind, function, on_host)
        before = next((each for each in self._bodies if each.kind == kind), None)
        if before is not None:
            raise ForeignError(
                f"{where}: a second {kind} body is at {body.place}; the first is at {before.place}. Keep one of them."
            )
        self._check_parameters(body, where)
        self._bodies.append(body)
        if on_host:
            self.host.function = cast("Callable[..., None]", self.run_on_host)  # a value that it returns is refused

    def _check_parameters(self, body: ChosenBody, where: str) -> None:
        try:
            parameters = list(inspect.signature(body.function).parameters.values())
        except (TypeError, ValueError):
            return  # a function in C: its call checks them
        first = ("lane", *self._names) if body.kind == "raw" else self._names
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return
        by_position = [p for p in parameters if p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD]
        count = len(by_position) - len(first)
        least = 0 if self._results is None else self._results
        most = len(by_position) if self._results is None else least + (body.kind == "raw")
        if body.kind == "raw" and by_position:  # the name of the lane is the body's own
            first = (by_position[0].name, *self._names)
        rest = [p.name for p in by_position[len(first) :]]
        if not (least <= count <= most and takes_by_position(parameters, [*first, *rest])):
            got = ", ".join(p.name for p in parameters)
            lane = "lane, " if body.kind == "raw" else ""
            wanted = ", ".join([*self._names, *["a new tensor"] * least])
            raise ForeignError(
                f"{where}: its {body.kind} body at {body.place} takes ({got}), and it is called with ({lane}{wanted}) "
                "by position. Give the body the declaration's parameters in their order, then one for each new tensor."
            )

    # ---- choice
    def choose(self) -> tuple[ChosenBody, ArrayLibrary | None]:
        """Return the body that runs on a CUDA device, and its library, None for a `raw` body.

        It is the first whose library can be imported; one of the kind that DAGPU_FOREIGN names comes first.

        Raises:
            NoDeviceError: there is none. The message has the cure.
        """
        wanted = FOREIGN.get()
        missing: list[str] = []
        for body in sorted(self._bodies, key=lambda each: each.kind != wanted):
            if body.kind == "raw":
                return body, None
            if body.kind in _LIBRARIES:
                try:
                    return body, find_library(body.kind)
                except ImportError as error:
                    missing.append(f"{body.kind} ({error})")
        on_host = 'On the host it needs none: op.on("host")' if self.host.function is not None else ""
        if missing:
            kind = missing[0].partition(" ")[0]
            raise NoDeviceError(
                f"none of the libraries of its bodies can be imported: {', '.join(missing)}. Install one: "
                f"{_INSTALL[kind]}. {on_host}".strip(". ")
                + "."
            )
        raise NoDeviceError(
            f'it has no body for a GPU. Give it one: @{self.name}.on("torch"), .on("cupy"), .on("numba") or '
            f"@{self.name}.raw. {on_host}".strip(". ")
            + "."
        )

    def run_on_host(self, *arguments: Any) -> object:
        """Call the body of the host: the one that `host` decorates, else the first with `host=True` whose library can
        be imported.

        Raises:
            ForeignError: none of the libraries can be imported.
        """
        missing: list[str] = []
        for body in sorted(self._bodies, key=lambda each: each.kind != "host"):
            if body.kind == "host":
                return body.function(*arguments)
            if body.on_host and body.kind != "torch":
                return body.function(*arguments)
            if body.on_host:
                try:
                    library = find_library(body.kind)
                except ImportError as error:
                    missing.append(f"{body.kind} ({error})")
                    continue
                given = [
                    library.host_array(np.asarray(each)) if isinstance(each, np.ndarray) else each for each in arguments
                ]
                with library.entered_on_host():
                    return body.function(*given)
        raise ForeignError(
            f"{self.name}, declared at {describe(self.origin)}: on the host, none of the libraries of its bodies can "
            f"be imported: {', '.join(missing)}. Install it: {_INSTALL['torch']}; or give the op a NumPy body with "
            f"@{self.name}.host."
        )


class BodyDecorators:
    """The decorators that give a foreign op its bodies."""

    _bodies: BodyList

    @leaves_run
    def on(self, library: LibraryName, /, *, host: bool = False) -> Callable[[Body], None]:
        """Decorate a body that takes arrays of a library: tensors of PyTorch, arrays of CuPy, device arrays of Numba.

        It takes the declaration's parameters in order, then one array for each new tensor, which it writes; it returns
        nothing, must not write an input, and keeps no array. Nothing is copied. The library's current stream is the one
        that the plan gives the op. Numba has no current stream: name it, `current_lane()`. A body of PyTorch runs under
        `no_grad`. The first body whose library can be imported runs on a GPU; DAGPU_FOREIGN chooses another.

        Args:
            library: "torch", "cupy" or "numba".
            host: True if the body serves on the host too: on tensors of PyTorch on the CPU, for the others on arrays of
                NumPy.

        Raises:
            ForeignError: the library is none of these, the op has a body for it, or the body's parameters differ.
        """
        if library not in _LIBRARIES:
            raise ForeignError(
                f"{self._bodies.name}.on({format_value(library)}) at {describe(here())}: dagpu knows no such library. "
                'Write "torch", "cupy" or "numba", or use raw for others.'
            )

        def decorate(body: Body) -> None:
            self._bodies.add(library, body, on_host=bool(host))

        return decorate

    @leaves_run
    def raw(self, body: Callable[Concatenate[BodyLane, ...], object], /) -> None:
        """Decorate a body that takes a `Lane`, then a `View` for each tensor, and numbers, in the order of the
        parameters, then the new tensors, then a view of the scratch memory if the declaration reserves some.

        Raises:
            ForeignError: the op has a raw body, or the parameters differ.
        """
        self._bodies.add("raw", body, on_host=False)

    @leaves_run
    def host(self, body: Body, /) -> None:
        """Decorate the NumPy body, the reference: it takes whole arrays, inputs are read-only.

        Raises:
            ForeignError: the op has a NumPy body, or the parameters differ.
        """
        self._bodies.add("host", body, on_host=True)


# ---- user bodies
#
# The call of a body on a CUDA device: arrays over the operands' addresses, in the library's contexts.

KEPT: Final = 8
"""The most sets of addresses for which a call keeps arrays: those of a plan come back run for run."""


@final
class DeclaredBody(UserBody):
    """The bodies of a foreign op that is called with so many bytes of scratch memory."""

    def __init__(
        self, bodies: BodyList, forms: Sequence[Form], scratch: int, *,
        capture: Literal["auto", "never", "required"], audit: bool,
    ) -> None:  # fmt: skip
        self._bodies = bodies
        self._forms = tuple(forms)
        """The forms of the kernel's parameters."""
        self._scratch = scratch
        self.capture = capture
        self.audit = audit
        self.refused = self.noted = None

    @property
    def described(self) -> str:
        """The kind and the place of the body that runs on a CUDA device."""
        body, _ = self._bodies.choose()
        return f"{body.kind} body ({body.place})"

    def scratch_bytes(self, operands: Sequence[Layout], device: int) -> int:
        """Return the bytes that the declaration has reserved, which a `raw` body alone gets."""
        body, _ = self._bodies.choose()
        return self._scratch if body.kind == "raw" else 0

    def bind(self, operands: Sequence[Layout], device: int) -> "BoundBody":
        """Return the call of the body for operands of these layouts."""
        body, library = self._bodies.choose()
        return BoundBody(self._bodies, body, library, self._forms, operands, device, self._scratch)


@final
class BoundBody:
    """A body for operands of certain layouts on a device. Implements `dagpu.handles.device_handles.UserCall`."""

    def __init__(
        self, bodies: BodyList, body: ChosenBody, library: ArrayLibrary | None, forms: tuple[Form, ...],
        operands: Sequence[Layout], device: int, scratch: int,
    ) -> None:  # fmt: skip
        self._bodies = bodies
        self._body = body
        self._library = library
        self.most_streams = None if library is None else library.most_streams
        self.takes_memory = library is not None and library.takes_memory
        tensors, numbers = count(), count(len(operands))
        self._in_order = tuple_getter([next(tensors if form.is_tensor else numbers) for form in forms])
        """Returns the arguments in the order of the parameters, given the tensors, followed by the numbers."""
        self._lanes: dict[int, BodyLane] = {}
        """The lanes of calls that are not captured, by their CUstreams."""
        written = [form.is_written for form in forms if form.is_tensor]
        self._layouts = [(layout, not writes) for layout, writes in zip(operands, written, strict=True)]
        self._device = device
        self._scratch = contiguous_layout((scratch,), np.dtype(np.uint8))
        self._arrays: dict[tuple[int, ...], list[Any]] = {}
        """Arrays over the operands by their addresses. They own no memory."""

    def __call__(
        self,
        stream: int,
        addresses: Sequence[int],
        scratch: int,
        /,
        *numbers: Any,
        memory: TemporaryMemory | None = None,
        capturing: Capturing | None = None,
    ) -> None:
        """Call the body.

        Raises:
            ForeignError: the body returned a value.
        """
        lane = self._lanes.get(stream) if capturing is None else BodyLane(stream, self._device, True)
        if lane is None:
            lane = self._lanes[stream] = BodyLane(stream, self._device, False)
        library, body = self._library, self._body.function
        arguments = self._arguments(addresses, numbers)
        before, LANES.current = LANES.current, lane
        try:
            if library is not None:
                returned = library.call(body, arguments, lane, memory, capturing)
            elif self._scratch.shape[0]:
                returned = body(lane, *arguments, OperandView(scratch, self._scratch, self._device, False))
            else:
                returned = body(lane, *arguments)
        finally:
            LANES.current = before
        if returned is not None:
            raise ForeignError(
                f"{self._bodies.name}, declared at {describe(self._bodies.origin)}: its {self._body.kind} body "
                f"({self._body.place}) returned {format_value(returned)}, and a body returns nothing. Write the result "
                "into the output: out.copy_(...) in PyTorch, out[...] = ... in CuPy."
            )

    def _arguments(self, addresses: Sequence[int], numbers: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return an array of the library for each tensor, for a `raw` body a view, among the numbers."""
        addresses, library = tuple(addresses), self._library
        arrays = self._arrays.get(addresses)
        if arrays is None:
            views: list[OperandView[Any]] = [
                OperandView(address, layout, self._device, read_only)
                for address, (layout, read_only) in zip(addresses, self._layouts, strict=True)
            ]
            arrays = views if library is None else [library.array(view) for view in views]
            if len(self._arrays) >= KEPT:
                self._arrays.clear()
            self._arrays[addresses] = arrays
        return self._in_order((*(arrays if library is None else map(library.again, arrays)), *numbers))
