"""What the four kinds of tensor handles have in common, and the errors for what one of them lacks."""

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NoReturn, Protocol, cast, final

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.critical import in_user_code
from dagpu.common.errors import ExportError, NotReadyError, OwnershipError
from dagpu.common.frozen import Slot
from dagpu.common.layout import Shape
from dagpu.common.places import Origin, describe, here, here_outside, leaves_run
from dagpu.common.wrong_arguments import no_attribute
from dagpu.handles.device_handles import Device, driver_of
from dagpu.handles.handle_state import HANDLE_NAMES, HandleBase, live_state, origin_of
from dagpu.handles.operators import BINARY, COMPARISONS, UNARY, refuse_divmod

ARRAY_NAMES = frozenset(
    ("T", "all", "any", "argmax", "argmin", "astype", "copy", "cpu", "dot", "flatten", "get", "item", "max", "mean",
     "min", "numpy", "prod", "ravel", "std", "sum", "tolist", "transpose", "var")
)  # fmt: skip
"""Attributes of NumPy, CuPy and PyTorch arrays that handles and ops do not have."""

ARITHMETIC: Final = tuple(
    f"__{name}__" for name in ("divmod", "rdivmod", *BINARY, *(f"r{name}" for name in BINARY), *COMPARISONS, *UNARY)
)
"""The methods by which Python computes with arrays. Tensors and ops take all but `divmod`, partitions none."""
READING: Final = tuple(
    f"__{name}__"
    for name in ("array", "len", "contains", "reversed", "float", "int", "complex", "index", "round", "trunc")
)
"""The methods by which Python and NumPy read the contents of an array. Handles and ops refuse all of them; `bool()`,
`iter()` and `[]` have words of their own."""

_DEVICE_CALLS: Final = {
    "T": "array.transpose({})", "argmax": "array.argmax({}, axis)", "argmin": "array.argmin({}, axis)",
    "astype": "convert({}, f32)", "copy": "dup({})", "dot": "array.matmul({}, b)", "max": "array.amax({}, axis)",
    "min": "array.amin({}, axis)", "transpose": "array.transpose({})",
    **{name: f"array.{name}({{}}, axis)" for name in ("all", "any", "mean", "prod", "sum")},
}  # fmt: skip
"""The calls that do the work of methods of arrays on a device."""

OP_NAMES = frozenset(
    ("explain", "first", "graph", "graph_on", "host_map", "inspect", "last", "map", "on", "save_svg", "schedule",
     "shared", "sync", "sync_on", "then", "to_dot", "to_svg", "unzip")
)  # fmt: skip
"""Attributes of ops that handles do not have."""

_COPIERS = ("copy", "copyreg", "pickle")
"""The modules that call `__reduce_ex__`."""
_ARRAY = "the array that .to_host() gives can be copied and pickled"
_COPIES = {
    "Tensor": f"Copy its contents with dup(t.borrow()), or share it with .share(); {_ARRAY}",
    "SharedTensor": f"One more handle to the same memory is .clone(); {_ARRAY}",
    "TensorRef": f"Borrow the tensor once more with .borrow(); {_ARRAY}",
    "TensorMut": "A tensor is lent for writing to one at a time: when that is done, lend it again with .borrow_mut()",
    "Partition": "Put it together with .unpartition(): a tensor can be copied with dup(t.borrow())",
}
"""The cures for a copy, which say how to get a second handle, by class."""

_CURES: Final[dict[tuple[str, str], str]] = {
    ("Tensor", "clone"): "It has one owner. Copy its contents with dup(t.borrow()), or share it: t.share().clone()",
    ("Tensor", "try_unwrap"): "It is owned already: leave .try_unwrap() out",
    ("Tensor", "tile"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("Tensor", "grid"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("SharedTensor", "share"): "It is shared already: .clone() makes one more handle",
    ("SharedTensor", "borrow"): "It need not be lent: pass it itself, as often as you like",
    ("TensorRef", "share"): "It is only lent: share the tensor that it was lent from",
    ("TensorRef", "try_unwrap"): "It is only lent: use the tensor that it was lent from",
    ("TensorRef", "borrow"): "It is lent already, for reading: pass it itself, as often as you like",
    ("TensorRef", "clone"): "It is lent already, for reading: pass it itself, as often as you like",
    ("TensorMut", "share"): "It is only lent: share the tensor that it was lent from",
    ("TensorMut", "try_unwrap"): "It is only lent: use the tensor that it was lent from",
    ("TensorMut", "borrow"): "It is lent already, for writing. A kernel reads it too: pass it itself",
    ("TensorMut", "borrow_mut"): "It is lent already, for writing: pass it itself, or cut it with .partition(tile)",
    ("TensorMut", "tile"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("TensorMut", "grid"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("Partition", "partition"): (
        "It is cut already. To cut it otherwise, put it together: .unpartition().partition(tile)"
    ),
}
"""The cures by the class of a handle and an attribute that it lacks."""

_OTHERWISE: Final[dict[str, str]] = {
    "SharedTensor": "It is immutable: write to a copy, dup(t), or to an empty(shape)",
    "TensorRef": "It is lent for reading: lend the tensor for writing, .borrow_mut().partition(tile)",
    "TensorMut": "It is lent for writing: ask that of the tensor, before it is lent or after that",
    "Partition": "Put it together first: .unpartition()",
}
"""The cures for all other attributes, by the class of the handle."""


@leaves_run
def refuse_copy(handle: HandleBase, _protocol: object = None) -> NoReturn:
    """Raise for a copy or pickle of a handle. It is the `__reduce_ex__` of handles, which copy and pickle call.

    A copy would be a second owner of the memory, or a holder that is not counted.

    Raises:
        OwnershipError: always. The message has the place of the copy, and says how to get a second handle.
    """
    why = "A copy of a handle would be a second owner of its memory, or a reader that is not counted"
    raise copy_error(f"{handle!r} made at {describe(origin_of(handle))}", f"{why}. {_COPIES[type(handle).__name__]}")


def copy_error(what: str, why: str) -> OwnershipError:
    """Return the error for a copy of an object that has one owner. `why` ends with the cure, without a full stop."""
    return OwnershipError(f"{what} was to be copied or pickled at {describe(here_outside(*_COPIERS))}. {why}.")


def contents_cure() -> str:
    """Return how a program gets the contents of a tensor: at once, or in a function that a run calls."""
    if in_user_code():
        return "Return t.to_host() from the function of a .then: the function after it gets an array"
    return "Get them with .to_host().sync(), or with await t.to_host() in a trio task"


@leaves_run
def refuse_name(handle: HandleBase, name: str) -> NoReturn:
    """Raise for an unknown attribute, with a cure if arrays, ops or other handles have it. It is their `__getattr__`.

    Raises:
        AttributeError: always.
    """
    if name.startswith("_"):  # the look-up of a protocol
        raise no_attribute(handle, name)
    kind = type(handle)
    if name in HANDLE_NAMES:
        cure = _cure(kind, name)
    elif name in ARRAY_NAMES:
        whole = ".unpartition()" if kind.__name__ == "Partition" else ""
        cure = (
            f"Its contents are on the device: t{whole}.to_host().sync(), or await t{whole}.to_host(), is a NumPy array"
        )
        if (call := device_call(name, f"t{whole}")) is not None:
            cure = f"{cure}. On the device say {call}"
    elif name == "sync":
        cure = "A handle is a result already, not an op: leave .sync() out"
    elif name in OP_NAMES:
        cure = f"A handle is a result already, not an op. Make an op of it: value(t).{name}(...)"
    else:
        raise no_attribute(handle, name)
    raise AttributeError(f"{handle!r} made at {describe(origin_of(handle))} has no {name!r}. {cure}.")


def device_call(name: str, of: str) -> str | None:
    """Return the text of the call that does the work of an array's method on a device, for a message."""
    call = _DEVICE_CALLS.get(name)
    return None if call is None else call.format(of)


@leaves_run
def refuse_await(handle: HandleBase) -> NoReturn:
    """Raise for `await handle`. It is the `__await__` of handles.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"await at {describe(here())} of {handle!r}, which is a result already, not an op: leave await out. Get its "
        "contents with await t.to_host()."
    )


def wrong_kind(value: object, method: str, where: Origin) -> OwnershipError:
    """Return the error for partition(), unpartition(), reshape() or share() of a value that lacks that method."""
    cure = _cure(type(value), method.removesuffix("()"))
    return OwnershipError(f"{method} at {describe(where)} of a value of type {type(value).__name__}. {cure}.")


def _cure(kind: type[Any], name: str) -> str:
    """Return the cure for the attribute `name`, which a class of handles has and `kind` lacks."""
    if issubclass(kind, tuple):
        return "A kernel call gives a tuple of all its arguments: pick one with .first() or .unzip()"
    ours = issubclass(kind, HandleBase)
    if name == "unpartition" and ours:
        return "It is whole already. Leave that out, or pick the output if this is an input of a kernel"
    otherwise = "Only tensors on a device have that; from_host(array) makes one"
    if not ours:
        return otherwise
    return _CURES.get((kind.__name__, name), _OTHERWISE.get(kind.__name__, otherwise))


# ---- array handle
#
# `ArrayHandle`: the metadata of the four kinds of tensor handles, their way to other libraries, and the errors for
# access to their contents.

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
        def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
            """Raise a `NotReadyError`, because the operation needs the contents."""
            raise self._not_ready()

        @leaves_run
        def _no_writes(self, *_args: object) -> NoReturn:
            """Raise a `NotReadyError` that names the way to write a part of the tensor."""
            raise self._not_ready(
                ". A part of it is written on the device: fill(t.borrow_mut()[1:], 0), or memcpy(t.borrow_mut()[1:], x)"
            )

        __reduce_ex__ = refuse_copy  # copy, deepcopy and pickle call it
        __divmod__ = __rdivmod__ = refuse_divmod
        vars().update(dict.fromkeys(READING, _no_contents))
        __delitem__ = __iter__ = __bool__ = _no_contents
        __setitem__ = _no_writes
