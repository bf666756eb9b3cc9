"""The call of a body on a CUDA device: arrays over the operands' addresses, in the library's contexts."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, Literal, final

import numpy as np

from dagpu.common.errors import ForeignError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import describe
from dagpu.common.param_form import Form
from dagpu.common.wrong_arguments import format_value
from dagpu.handles.library_bodies import Capturing, TemporaryMemory, UserBody, tuple_getter
from dagpu.interop.foreign_ops.array_libraries import ArrayLibrary
from dagpu.interop.foreign_ops.bodies import BodyList, ChosenBody
from dagpu.interop.foreign_ops.lane_views import LANES, BodyLane, OperandView

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
    """A body for operands of certain layouts on a device. Implements `dagpu.handles.library_bodies.UserCall`."""

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
