"""Errors for what a handle does not have or do, with their cures. The tables are keyed by the class of the handle."""

from typing import Any, Final, NoReturn

from dagpu.common.errors import OwnershipError
from dagpu.common.origin import Origin, describe, here, here_but_for
from dagpu.common.wrong_arguments import no_attribute
from dagpu.handles.handle_state import HANDLE_NAMES, HandleBase, made_at

ARRAY_NAMES = frozenset(
    ("T", "all", "any", "argmax", "argmin", "astype", "copy", "cpu", "dot", "flatten", "get", "item", "max", "mean",
     "min", "numpy", "prod", "ravel", "std", "sum", "tolist", "transpose", "var")
)  # fmt: skip
"""Names that arrays of NumPy, CuPy and PyTorch have, and neither handles nor ops."""

OP_NAMES = frozenset(
    ("explain", "first", "graph", "graph_on", "host_map", "inspect", "last", "map", "on", "save_svg", "schedule",
     "shared", "sync", "sync_on", "then", "to_dot", "to_svg", "unzip")
)  # fmt: skip
"""Names that ops have, and no handle."""

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
"""How to get a second handle, by class."""

_CURES: Final[dict[tuple[str, str], str]] = {
    ("Tensor", "clone"): "It has one owner. Copy its contents with dup(t.borrow()), or share it: t.share().clone()",
    ("Tensor", "try_unwrap"): "It is owned already: leave .try_unwrap() out",
    ("Tensor", "tile"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("Tensor", "grid"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("SharedTensor", "share"): "It is shared already: .clone() makes one more handle",
    ("SharedTensor", "borrow"): "It need not be lent: pass it itself, as often as you like",
    ("SharedTensor", "view"): "Give it the other shape with .reshape(shape): one more handle to the same memory",
    ("SharedTensor", "slice"): "Slice a tensor before it is shared, or a copy: dup(t).sync().slice(...)",
    ("TensorRef", "share"): "It is only lent: share the tensor that it was lent from",
    ("TensorRef", "try_unwrap"): "It is only lent: use the tensor that it was lent from",
    ("TensorRef", "borrow"): "It is lent already, for reading: pass it itself, as often as you like",
    ("TensorRef", "clone"): "It is lent already, for reading: pass it itself, as often as you like",
    ("TensorRef", "view"): "Give it the other shape with .reshape(shape)",
    ("TensorMut", "share"): "It is only lent: share the tensor that it was lent from",
    ("TensorMut", "try_unwrap"): "It is only lent: use the tensor that it was lent from",
    ("TensorMut", "borrow"): "It is lent already, for writing. A kernel reads it too: pass it itself",
    ("TensorMut", "borrow_mut"): "It is lent already, for writing: pass it itself, or cut it with .partition(tile)",
    ("TensorMut", "tile"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("TensorMut", "grid"): "Tiles belong to what is cut: t.partition(tile) has them",
    ("TensorMut", "view"): "Give it the other shape with .reshape(shape)",
    ("Partition", "partition"): (
        "It is cut already. To cut it otherwise, put it together: .unpartition().partition(tile)"
    ),
}
"""Cures by the class of a handle and a name that it lacks."""

_OTHERWISE: Final[dict[str, str]] = {
    "SharedTensor": "It is immutable: write to a copy, dup(t), or to an empty(shape)",
    "TensorRef": "It is lent for reading: lend the tensor for writing, .borrow_mut().partition(tile)",
    "TensorMut": "It is lent for writing: ask that of the tensor, before it is lent or after that",
    "Partition": "Put it together first: .unpartition()",
}
"""Cures for all other names."""


def refuse_copy(handle: HandleBase, _protocol: object = None) -> NoReturn:
    """The `__reduce_ex__` of handles, which copy.copy, copy.deepcopy and pickle call.

    A copy would be a second owner of the memory, or a holder that is not counted.

    Raises:
        OwnershipError: always. It says where the copy was asked for, and how to get a second handle.
    """
    why = "The copy of a handle would have the same memory, and nobody would know of it"
    raise copy_error(f"{handle!r} made at {describe(made_at(handle))}", f"{why}. {_COPIES[type(handle).__name__]}")


def copy_error(what: str, why: str) -> OwnershipError:
    """The error for a copy or pickle of an object that has one owner. `why` ends with the cure, without a full stop."""
    return OwnershipError(f"{what} was to be copied or pickled at {describe(here_but_for(*_COPIERS))}. {why}.")


def refuse_name(handle: HandleBase, name: str) -> NoReturn:
    """The `__getattr__` of handles: names that arrays, ops or other handles have get an error with a cure.

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
    elif name == "sync":
        cure = "It is there already, and no op: leave .sync() out"
    elif name in OP_NAMES:
        cure = f"It is there already, and no op. Make one of it: value(t).{name}(...)"
    else:
        raise no_attribute(handle, name)
    raise AttributeError(f"{handle!r} made at {describe(made_at(handle))} has no {name!r}. {cure}.")


def refuse_await(handle: HandleBase) -> NoReturn:
    """The `__await__` of handles.

    Raises:
        TypeError: always.
    """
    raise TypeError(
        f"await at {describe(here())} of {handle!r}, which is there already, and no op: leave await out. Its contents "
        "come with await t.to_host()."
    )


def wrong_kind(value: object, method: str, where: Origin) -> OwnershipError:
    """The error for partition(), unpartition(), reshape() or share() of a value that lacks that method."""
    cure = _cure(type(value), method.removesuffix("()"))
    return OwnershipError(f"{method} at {describe(where)} of a value of type {type(value).__name__}. {cure}.")


def _cure(kind: type[Any], name: str) -> str:
    """The cure for the use of `name`, which some class of handles has and `kind` lacks."""
    if issubclass(kind, tuple):
        return "A kernel call gives a tuple of all its arguments: pick one with .first() or .unzip()"
    ours = issubclass(kind, HandleBase)
    if name == "unpartition" and ours:
        return "It is whole already. Leave that out, or pick the output if this is an input of a kernel"
    otherwise = "Only tensors on a device have that; from_host(array) makes one"
    if not ours:
        return otherwise
    return _CURES.get((kind.__name__, name), _OTHERWISE.get(kind.__name__, otherwise))
