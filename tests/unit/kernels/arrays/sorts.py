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


def expected(name: str, x: NDArray[Any], k: int) -> list[NDArray[Any]]:
    rows = x.reshape(-1, x.shape[-1])
    order = np.array(places(rows, descending=name == "topk"), np.int64).reshape(rows.shape)
    order = order[:, :k] if name == "topk" else order
    shape = (*x.shape[:-1], order.shape[1])
    values = np.take_along_axis(rows, order, 1).reshape(shape)
    order = order.reshape(shape)
    return {"sort": [values], "argsort": [order], "topk": [values, order]}[name]


def ran(name: str, t: Any, k: int) -> Any:
    return array.topk(t, k) if name == "topk" else getattr(array, name)(t)
