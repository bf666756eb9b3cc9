"""`ArrayHandle`: the metadata of the four kinds of tensor handles, their way to other libraries, and the errors for
access to their contents."""

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Protocol, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import ExportError, NotReadyError
from dagpu.common.origin import Origin, describe, here, here_outside
from dagpu.common.slot import Slot
from dagpu.common.tracebacks import leaves_run
from dagpu.handles.device_handles import Device, driver_of
from dagpu.handles.handle_errors import (
    ARITHMETIC,
    CONTENTS,
    READING,
    contents_cure,
    refuse_await,
    refuse_copy,
    refuse_name,
    slice_cure,
)
from dagpu.handles.handle_state import HandleBase, live_state

D_co = TypeVar("D_co", bound=np.generic, covariant=True)
S_co = TypeVar("S_co", bound=tuple[int, ...], covariant=True, default=tuple[int, ...])


@final
class ExportRequest(NamedTuple):
    """What a consumer of DLPack asks for; see `DLPackExport.__dlpack__`."""

    stream: int | None
    max_version: tuple[int, int] | None
    dl_device: tuple[int, int] | None
    copy: bool | None
    where: Origin
    """The place that asks."""

    @property
    def is_versioned(self) -> bool:
        """True if the consumer knows DLPack 1.0, which can say that memory is read-only."""
        return self.max_version is not None and self.max_version[0] >= 1


class Exports(Protocol):
    """How handles are given to other libraries."""

    def capsule(self, handle: HandleBase, request: ExportRequest) -> object: ...
    def interface(self, handle: HandleBase) -> dict[str, Any]: ...


EXPORTS: Final = Slot[Exports]("dagpu.interop")
"""Gives handles to other libraries. It is a slot, because handles cannot import the protocols of devices."""


class DLPackExport:
    """The base class of what other libraries take without a copy: `torch.from_dlpack(t)`, `cupy.from_dlpack(t)`."""

    __slots__ = ()

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Give the memory to another library, without a copy. Other libraries call it: `torch.from_dlpack(t)`.

        A call that succeeds moves a `Tensor`, whose consumer may write it. A `SharedTensor` goes out read-only, any
        number of times. It never waits, because what dagpu gives out is complete.

        Args:
            stream: the CUstream in which the consumer will use the memory; -1 if it orders its work itself.
            max_version: the newest version of DLPack that the consumer knows.
            dl_device: the device on which the consumer wants the memory.
            copy: true if the consumer wants a copy.

        Raises:
            ExportError: the consumer wants what only a copy could give, or cannot be told that it is read-only.
            MovedError: the tensor has been moved.
            BorrowError: a run uses the `Tensor`.
        """
        return self._capsule(ExportRequest(stream, max_version, dl_device, copy, here()))

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the type of the device in DLPack's numbers, and its index."""
        return self._dlpack_device()

    if not TYPE_CHECKING:  # hidden from type checkers, which must report these uses themselves

        def __array__(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Refuse: NumPy would make an array of one object."""
            raise ExportError(
                f"{self!r} at {describe(here())}: an array is made of it by DLPack alone. Say numpy.from_dlpack(x), or "
                "the same of a library that computes on its device."
            )

        def __reduce_ex__(self, _protocol: object) -> NoReturn:
            """Refuse: it is valid in its block, or in its call of a body, alone."""
            where = describe(here_outside("copy", "pickle"))
            raise ExportError(
                f"{self!r} was to be copied or pickled at {where}: it is lent for a block or a call. Pass it on as it "
                "is, or copy the contents: dup(t)."
            )

    def _capsule(self, request: ExportRequest) -> object:
        """Return the capsule."""
        raise NotImplementedError

    def _dlpack_device(self) -> tuple[int, int]:
        raise NotImplementedError


class ArrayHandle(HandleBase, Generic[D_co, S_co]):
    """The base class of the four kinds of tensor handles."""

    __slots__ = ()

    @property
    def shape(self) -> S_co:
        """The extents in elements, one for each axis."""
        return cast(S_co, live_state(self).layout.shape)

    @property
    def strides(self) -> Shape:
        """The strides in bytes, one for each axis."""
        return live_state(self).layout.strides

    @property
    def dtype(self) -> "np.dtype[Any]":
        """The element type."""
        return live_state(self).layout.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return live_state(self).layout.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of its elements."""
        return live_state(self).layout.nbytes

    @property
    def device(self) -> Device:
        """The device that has its memory."""
        return live_state(self).storage.device

    def _capsule(self, request: ExportRequest) -> object:
        return EXPORTS.value.capsule(self, request)

    def _dlpack_device(self) -> tuple[int, int]:
        return driver_of(live_state(self).storage.device).exchange.dlpack_device

    def __repr__(self) -> str:
        layout, _, where = self._summary()
        return f"{type(self).__name__}({layout.dtype.name}, {layout.shape}, {where})"

    def _repr_html_(self) -> str:
        """Return a table row with the metadata, for a notebook."""
        layout, _, where = self._summary()
        shape = " &times; ".join(map(str, layout.shape)) or "scalar"
        row = "".join(f"<td>{cell}</td>" for cell in (type(self).__name__, layout.dtype.name, shape, where))
        dimmed = " style=opacity:0.5" if where == "gone" else ""
        return f"<table><tr{dimmed}>{row}<td>{layout.nbytes:,} bytes</td></tr></table>"

    if not TYPE_CHECKING:  # hidden from type checkers, which must report these uses themselves
        __dlpack__ = DLPackExport.__dlpack__  # a borrow is refused, with the cure
        __dlpack_device__ = DLPackExport.__dlpack_device__
        __getattr__ = refuse_name
        __await__ = refuse_await

        def _not_ready(self, more: str = "") -> NotReadyError:
            """Return the error for a use that needs the contents. `more` is added to its cure."""
            _, made, _ = self._summary()
            return NotReadyError(
                f"{type(self).__name__} made at {describe(made)}: a handle never reveals its contents by itself; "
                "inside a run they do not exist yet, outside they are on the device. "
                f"{contents_cure()}{more}."
            )

        @leaves_run
        def _no_arithmetic(self, *_others: object) -> NoReturn:
            """Raise a `NotReadyError` that names the way to compute on the device."""
            raise self._not_ready(", or compute on the device: expr(f32, f32)(lambda x, y: x + y)(a, b)")

        @leaves_run
        def _no_comparison(self) -> NoReturn:
            """Raise a `NotReadyError` that names the way to compare on the device, and the identity of handles."""
            raise self._not_ready(
                ", or compare on the device: expr(f32, f32)(lambda x, y: x == y)(a, b). Whether two names mean one "
                "handle says a is b"
            )

        @leaves_run
        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Raise a `NotReadyError`, because the operation needs the contents."""
            raise self._not_ready()

        @leaves_run
        def _no_items(self, _index: object) -> NoReturn:
            """Raise a `NotReadyError` that names the way to a part of the tensor, too."""
            raise self._not_ready(f". {slice_cure(self)}")

        __reduce_ex__ = refuse_copy  # copy, deepcopy and pickle call it
        vars().update(dict.fromkeys(ARITHMETIC, _no_arithmetic) | dict.fromkeys(READING, _no_contents))
        __setitem__ = __delitem__ = __iter__ = __bool__ = _no_contents
        __getitem__ = _no_items

        @leaves_run
        def __eq__(self, other: object) -> bool:
            """Compare handles by identity. Raise for another handle, a number or an array: that would compare
            contents."""
            if other is not self and isinstance(other, CONTENTS):
                self._no_comparison()
            return True if other is self else NotImplemented

        __hash__ = object.__hash__  # a class that defines `__eq__` loses the inherited one
