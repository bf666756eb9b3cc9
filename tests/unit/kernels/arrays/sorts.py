"""Sorts of rows: the calls, and what they are to give."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import array


def places(rows: NDArray[Any], *, descending: bool = False) -> list[list[int]]:
    """The places that sort each row, one comparison after the other: stable, and a NaN is the largest."""
    found = []
    for row in rows.tolist():
        keys = [(x != x, 0 if x != x else x) for x in row]
        if descending:
            keys = [(not odd, -x) for odd, x in keys]
        found.append(sorted(range(len(row)), key=keys.__getitem__))
    return found


def expected(name: str, x: NDArray[Any], k: int, axis: int | None = -1) -> list[NDArray[Any]]:
    """The results of a sort, or of the k largest elements, along an axis; None for all elements in C order."""
    turned = np.moveaxis(x.reshape(-1) if axis is None else x, -1 if axis is None else axis, -1)
    rows = turned.reshape(-1, turned.shape[-1])
    order = np.array(places(rows, descending=name == "topk"), np.int64).reshape(rows.shape)
    order = order[:, :k] if name == "topk" else order
    shape = (*turned.shape[:-1], order.shape[1])
    values, order = [
        np.moveaxis(found.reshape(shape), -1, -1 if axis is None else axis)
        for found in (np.take_along_axis(rows, order, 1), order)
    ]
    return {"sort": [values], "argsort": [order], "topk": [values, order]}[name]


def ran(name: str, t: Any, k: int, axis: int | None = -1) -> Any:
    return array.topk(t, k, axis) if name == "topk" else getattr(array, name)(t, axis)
