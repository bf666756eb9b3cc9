"""Parts as bytes, for other machines.

A blob is a pickle of plan data. It is read by an unpickler that knows dagpu's classes for programs, and refuses all
other names. Arrays, numbers and element types of NumPy are written as bytes and names, since what NumPy's own pickles
name differs with their contents and with NumPy's version.

What is code is not in it: it names kernels and the functions of `host_map` by the hash of their contents, which travel
beside it. A kernel is data with its CUDA source text, and the function of a `host_map` and the host body of a kernel
are pickled by cloudpickle, unless that is refused.
"""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np

from dagpu.common.errors import ClusterSecurityError
from dagpu.common.frozen import plain
from dagpu.common.layout import Layout
from dagpu.lowering.program import (
    Buffer,
    Cell,
    CopyDtoD,
    CopyDtoH,
    CopyHtoD,
    Fill,
    HostCall,
    Items,
    Launch,
    Role,
    Tiles,
    View,
)
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Uniform
from dagpu.ops.kernel_spec import Indexed, Param, Sight

FORMAT: Final = 4
"""The number of the format. It changes with the classes that a blob may contain."""


@final
@plain
class Code:
    """A function or a constant in a `HostCall` of a blob, by the hash of its pickle."""

    digest: str


@final
@plain
class WriteCheckpoint:
    """The function of a checkpoint: it writes an array to a file, which is there whole or not at all."""

    path: str

    def __call__(self, array: "np.ndarray[Any, Any]") -> str:
        """Write the array in C order, as `StoredArray` reads it, and return the name of its element type."""
        import os
        from uuid import uuid4

        scratch = f"{self.path}.{uuid4().hex[:8]}.part"
        try:
            with open(scratch, "wb") as file:  # noqa: PTH123  # reason: a path with a scheme is no Path
                np.save(file, np.asarray(array, order="C"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, self.path)  # noqa: PTH105  # reason: the same
        except BaseException:
            if os.path.exists(scratch):  # noqa: PTH110  # reason: the same
                os.unlink(scratch)  # noqa: PTH108  # reason: the same
            raise
        return str(array.dtype.name)


CLASSES: Final = {
    (each.__module__, each.__qualname__): each
    for each in (
        Arange, Buffer, Cell, Code, Constant, CopyDtoD, CopyDtoH, CopyHtoD, Eye, Fill, HostCall, Indexed, Items, Launch,
        Layout, Linspace, Normal, Param, Role, Sight, Tiles, Uniform, View, WriteCheckpoint,
    )
}  # fmt: skip
"""The classes that a blob may contain."""


@final
class KeptCode:
    """The bytes of a function, a constant or a kernel, as long as a blob names it. `thing` is what they were made of:
    while it is alive, no other object has its identity."""

    __slots__ = ("__weakref__", "content", "digest", "thing")

    def __init__(self, thing: object, content: bytes, digest: str) -> None:
        self.thing = thing
        self.content = content
        self.digest = digest


@final
class Codes:
    """The code that a blob names. Blobs that name the same code have one object."""

    __slots__ = ("__weakref__", "_kept", "content")

    def __init__(self, kept: Sequence[KeptCode]) -> None:
        self._kept = kept
        self.content = {each.digest: each.content for each in kept}
        """The bytes of each, by their hash."""


@final
@plain
class Blob:
    """A part's program as bytes."""

    content: bytes
    digest: str
    """The hash of `content`. Equal parts have equal ones, and one plan on each worker."""
    codes: Codes


def refused_code(what: str) -> ClusterSecurityError:
    """Return the error for Python code on a cluster that takes none."""
    return ClusterSecurityError(
        f"{what} is Python code, which this cluster does not take, since it was opened with code=False. Run the op on "
        "a cluster with code=True, or on a device of this process."
    )
