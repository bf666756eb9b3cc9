"""`ArrayHandle`: the metadata of the four kinds of tensor handles, and the errors for access to their contents."""

from typing import TYPE_CHECKING, Any, Generic, NoReturn, cast

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.dtypes import Shape
from dagpu.common.errors import NotReadyError
from dagpu.common.origin import describe
from dagpu.handles.device_handles import Device
from dagpu.handles.handle_errors import refuse_await, refuse_copy, refuse_name
from dagpu.handles.handle_state import HandleBase, live_state

D_co = TypeVar("D_co", bound=np.generic, covariant=True)
S_co = TypeVar("S_co", bound=tuple[int, ...], covariant=True, default=tuple[int, ...])

_CONTENTS = (int, float, complex, np.generic, np.ndarray)
"""Types whose comparison with a handle would mean a comparison of contents."""


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
        __getattr__ = refuse_name
        __await__ = refuse_await

        def _no_arithmetic(self, _other: object = None) -> NoReturn:
            """Raise a `NotReadyError` that names the way to compute on the device."""
            _, made, _ = self._summary()
            raise NotReadyError(
                f"{type(self).__name__} made at {describe(made)}: a handle never reveals its contents by itself; "
                "inside a run they do not exist yet, outside they are on the device. Get them with .to_host(), or "
                "compute on the device: expr(f32, f32)(lambda x, y: x + y)(a, b)."
            )

        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Raise a `NotReadyError`, because the operation needs the contents."""
            _, made, _ = self._summary()
            raise NotReadyError(
                f"{type(self).__name__} made at {describe(made)}: a handle never reveals its contents by itself; "
                "inside a run they do not exist yet, outside they are on the device. Get them with .to_host()."
            )

        __reduce_ex__ = refuse_copy  # copy, deepcopy and pickle call it
        __array__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = _no_contents
        __float__ = __int__ = __complex__ = __index__ = _no_contents
        __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = __pow__ = __neg__ = _no_arithmetic
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = __rpow__ = _no_arithmetic
        __mod__ = __floordiv__ = __abs__ = _no_arithmetic
        __lt__ = __le__ = __gt__ = __ge__ = _no_contents

        def __eq__(self, other: object) -> bool:
            """Compare handles by identity. Raise for a number or an array, because that would compare contents."""
            if isinstance(other, _CONTENTS):
                self._no_contents()
            return NotImplemented

        __hash__ = object.__hash__  # a class that defines `__eq__` loses the inherited one
