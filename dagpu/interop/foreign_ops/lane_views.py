"""What a body sees of a run: the stream that it enqueues to, and its operands by address."""

import threading
from typing import Any, Final, Generic, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import ForeignError
from dagpu.common.layout import Layout
from dagpu.common.origin import describe, here
from dagpu.handles import DLPackExport, ExportRequest
from dagpu.interop.capsules import CUDA, ArrayForm, ArrayMemory, form_of, make_capsule

_D_co = TypeVar("_D_co", bound=np.generic, covariant=True)


@final
class BodyLane:
    """The stream that a body of a foreign op enqueues to, during its call. It speaks `__cuda_stream__`."""

    __slots__ = ("_capturing", "_device", "_handle", "library_stream")

    def __init__(self, handle: int, device: int, capturing: bool) -> None:
        self.library_stream: Any = None
        """The stream as an object of the body's library; None before the first body, and without such objects."""
        self._handle = handle
        self._device = device
        self._capturing = capturing

    @property
    def handle(self) -> int:
        """The CUstream."""
        return self._handle

    @property
    def device(self) -> int:
        """The index of the CUDA device."""
        return self._device

    @property
    def capturing(self) -> bool:
        """True if the stream is being captured, so that what the body enqueues becomes a part of a CUDA graph."""
        return self._capturing

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, 0, and the CUstream."""
        return 0, self._handle

    def __repr__(self) -> str:
        return f"<Lane {self._handle:#x} on cuda:{self._device}>"


@final
class OperandView(DLPackExport, Generic[_D_co]):
    """An operand of a `raw` body, during its call: an address with a shape.

    It speaks the CUDA array interface and DLPack. Neither names a stream: the plan orders the work, so no consumer
    waits.
    """

    __slots__ = ("_address", "_device", "_layout", "_read_only")

    def __init__(self, address: int, layout: Layout, device: int, read_only: bool) -> None:
        self._address = address
        self._layout = layout
        self._device = device
        self._read_only = read_only

    @property
    def address(self) -> int:
        """The address of the first element."""
        return self._address

    @property
    def shape(self) -> Shape:
        """The extents in elements, one for each axis."""
        return self._layout.shape

    @property
    def strides(self) -> Shape:
        """The distances between neighbours along each axis, in bytes."""
        return self._layout.strides

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type."""
        return self._layout.dtype

    @property
    def device(self) -> int:
        """The index of the CUDA device."""
        return self._device

    @property
    def nbytes(self) -> int:
        """The bytes that the elements span, gaps included."""
        return self._form.nbytes

    @property
    def _form(self) -> ArrayForm:
        layout = self._layout
        return form_of(layout.dtype, layout.shape, layout.strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA array interface, version 3, without a stream."""
        layout = self._layout
        return {
            "shape": layout.shape,
            "typestr": layout.dtype.str,
            "data": (self._address, self._read_only),
            "strides": None if layout.contiguous else layout.strides,
            "version": 3,
            "stream": None,
        }

    def _capsule(self, request: ExportRequest) -> object:
        """Return a capsule of the memory. A capsule below DLPack 1.0 cannot say that an input is read-only."""
        memory = ArrayMemory(self._address, self._form, (CUDA, self._device), self._read_only, None)
        return make_capsule(memory, versioned=request.is_versioned)

    def _dlpack_device(self) -> tuple[int, int]:
        return CUDA, self._device

    def __repr__(self) -> str:
        return f"<View {self._layout.dtype.name}, {self._layout.shape}, cuda:{self._device}>"


class _Lanes(threading.local):
    """The lane of the body that this thread calls."""

    current: BodyLane | None = None


LANES: Final = _Lanes()


def current_lane() -> BodyLane:
    """Return the stream of the body that runs, for libraries that have no current stream: Numba's
    `kernel[grid, block, cuda.external_stream(current_lane().handle)]`.

    Raises:
        ForeignError: no body of a foreign op runs in this thread on a CUDA device.
    """
    if LANES.current is None:
        raise ForeignError(
            f"current_lane() at {describe(here())}: no body of a foreign op runs on a CUDA device in this thread. Call "
            "it in the body, on the thread that calls the body."
        )
    return LANES.current
