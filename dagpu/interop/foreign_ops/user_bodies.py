"""The call of a body on a CUDA device: arrays over the operands' addresses, in the library's contexts."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, final

import numpy as np

from dagpu.common.errors import ForeignError
from dagpu.common.layout import Layout, contiguous_layout
from dagpu.common.origin import describe
from dagpu.common.wrong_arguments import format_value
from dagpu.handles.device_handles import Capturing, TemporaryMemory, UserBody
from dagpu.interop.foreign_ops.array_libraries import ArrayLibrary
from dagpu.interop.foreign_ops.bodies import BodyList, ChosenBody
from dagpu.interop.foreign_ops.lane_views import LANES, BodyLane, OperandView

KEPT: Final = 8
"""The most sets of addresses for which a call keeps arrays: those of a plan come back run for run."""


@final
class DeclaredBody(UserBody):
    """The bodies of a foreign op that is called with so many bytes of scratch memory."""

    def __init__(
        self, bodies: BodyList, forms: Sequence[str], scratch: int, *,
        capture: Literal["auto", "never", "required"], audit: bool,
    ) -> None:  # fmt: skip
        self._bodies = bodies
        self._forms = tuple(forms)
        """For each parameter of the kernel "in", "out" or "scalar"."""
        self._scratch = scratch
        self.capture = capture
        self.audit = audit
        self.refused = self.noted = None

    @property
    def most_streams(self) -> int | None:
        """The most streams on which the body is called."""
        _, library = self._bodies.choose()
        return None if library is None else library.most_streams

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
        self, bodies: BodyList, body: ChosenBody, library: ArrayLibrary | None, forms: tuple[str, ...],
        operands: Sequence[Layout], device: int, scratch: int,
    ) -> None:  # fmt: skip
        self._bodies = bodies
        self._body = body
        self._library = library
        self._forms = forms
        self._layouts = [(layout, form == "in") for layout, form in zip(operands, _tensors(forms), strict=True)]
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
        memory: TemporaryMemory,
        capturing: Capturing | None = None,
    ) -> None:
        """Call the body.

        Raises:
            ForeignError: the body returned a value.
        """
        lane = BodyLane(stream, self._device, capturing is not None)
        before, LANES.current = LANES.current, lane
        try:
            with self._entered(lane, memory, capturing):
                tensors, others = iter(self._operands(tuple(addresses))), iter(numbers)
                given = [next(others) if form == "scalar" else next(tensors) for form in self._forms]
                if self._library is None:
                    given.insert(0, lane)
                    if self._scratch.shape[0]:
                        given.append(OperandView(scratch, self._scratch, self._device, False))
                returned = self._body.function(*given)
        finally:
            LANES.current = before
        if returned is not None:
            raise ForeignError(
                f"{self._bodies.name}, declared at {describe(self._bodies.origin)}: its {self._body.kind} body "
                f"({self._body.place}) returned {format_value(returned)}, and a body returns nothing. Write the result "
                "into the output: out.copy_(...) in PyTorch, out[...] = ... in CuPy."
            )

    def _entered(
        self, lane: BodyLane, memory: TemporaryMemory, capturing: Capturing | None
    ) -> AbstractContextManager[object]:
        return nullcontext() if self._library is None else self._library.entered(lane, memory, capturing)

    def _operands(self, addresses: tuple[int, ...]) -> list[Any]:
        """Return an array of the library for each tensor; for a `raw` body a view."""
        library = self._library
        found = self._arrays.get(addresses)
        if found is None:
            views: list[OperandView[Any]] = [
                OperandView(address, layout, self._device, read_only)
                for address, (layout, read_only) in zip(addresses, self._layouts, strict=True)
            ]
            found = views if library is None else [library.array(view) for view in views]
            if len(self._arrays) >= KEPT:
                self._arrays.clear()
            self._arrays[addresses] = found
        return found if library is None else [library.again(array) for array in found]


def _tensors(forms: Sequence[str]) -> list[str]:
    return [form for form in forms if form != "scalar"]
