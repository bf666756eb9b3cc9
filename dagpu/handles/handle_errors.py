"""Errors for attributes and operations that a handle lacks, with their cures by the class of the handle."""

from typing import Any, Final, NoReturn

import numpy as np

from dagpu.common.critical import in_user_code
from dagpu.common.errors import OwnershipError
from dagpu.common.origin import Origin, describe, here, here_outside
from dagpu.common.tracebacks import leaves_run
from dagpu.common.wrong_arguments import no_attribute
from dagpu.handles.handle_state import HANDLE_NAMES, HandleBase, origin_of

ARRAY_NAMES = frozenset(
    ("T", "all", "any", "argmax", "argmin", "astype", "copy", "cpu", "dot", "flatten", "get", "item", "max", "mean",
     "min", "numpy", "prod", "ravel", "std", "sum", "tolist", "transpose", "var")
)  # fmt: skip
"""Attributes of NumPy, CuPy and PyTorch arrays that handles and ops do not have."""

_TWO_SIDED: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "lshift", "rshift",
                     "and", "or", "xor")  # fmt: skip
ARITHMETIC: Final = tuple(
    f"__{name}__"
    for name in (
        *_TWO_SIDED,
        *(f"r{name}" for name in _TWO_SIDED),
        "neg",
        "pos",
        "abs",
        "invert",
        "lt",
        "le",
        "gt",
        "ge",
    )
)
"""The methods by which Python computes with arrays. Handles and ops refuse all of them."""
READING: Final = tuple(
    f"__{name}__"
    for name in ("array", "len", "contains", "reversed", "float", "int", "complex", "index", "round", "trunc")
)
"""The methods by which Python and NumPy read the contents of an array. Handles and ops refuse all of them; `bool()`,
`iter()` and `[]` have words of their own."""
CONTENTS: Final = (int, float, complex, np.generic, np.ndarray, HandleBase)
"""Types whose comparison by `==` with a handle or an op would mean a comparison of contents."""

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


def slice_cure(handle: HandleBase) -> str:
    """Return how a program gets a part of a tensor on its device, for a message about square brackets."""
    return (
        "A part of it on the device is t.slice(slice(1, None))"
        if hasattr(handle, "slice")
        else _cure(type(handle), "slice")
    )


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
