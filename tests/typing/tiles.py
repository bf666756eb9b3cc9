"""Checked, not run: what a tile sees, and writes to parts of sources."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import Along, Around, Columns, Here, In, Out, Rows, SharedTensor, Source, Tensor, f32, kernel

TEXT = "__global__ void k(Tile<float, 2> y, View<const float, 2> a, View<const float, 2> b) {}"


@kernel(cuda=TEXT, sees={"a": Around(1, 2), "b": (Along(1), None)})
def k(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...


kernel(cuda=TEXT, sees={"a": Here(), "b": (Along(0, 1, 2), Along(1, before=1))})
kernel(cuda=TEXT, sees={"a": Rows(), "b": Columns()})
kernel(cuda=TEXT, sees=None)
assert_type(Around(1, 2).margins, tuple[int, ...])
assert_type(Along(0).before, int)


def parts(s: Source[SharedTensor[f32]], a: Source[NDArray[f32]], t: Tensor[f32], x: NDArray[f32]) -> None:
    """A part of a tensor takes an array or a tensor, a part of an array takes an array."""
    s.write(slice(0, 2), x)
    s.write((slice(0, 2), slice(None)), t)
    s.write(slice(0, 2), t.share())
    a.write((slice(0, 2),), x)


def refused(
    s: Source[SharedTensor[f32]], a: Source[NDArray[f32]], n: Source[int], t: Tensor[f32], x: NDArray[np.float64]
) -> None:
    """Data of another kind or element type, a part that is no slice, and values without parts."""
    s.write(slice(0, 2), x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    a.write(slice(0, 2), t)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    n.write(slice(0, 2), t)  # type: ignore[misc, arg-type]  # pyright: ignore[reportAttributeAccessIssue]
    s.write(3, t)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    kernel(cuda=TEXT, sees={"a": 3})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    Around("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
