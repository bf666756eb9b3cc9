"""An array of another library is adopted once, and not used again under its old name."""

from typing import Any

import numpy as np

from dagpu import adopt, f32, from_array, lend, share_array
from tests.typing.plugin.kernels import total


def used_before() -> None:
    x = np.ones(8, np.float32)
    x[0] = 2
    print(x.sum())
    t = adopt(x)
    print(t.shape)


def under_its_new_name() -> None:
    x: Any = np.ones(8, np.float32)
    x = adopt(x, f32)
    print(x.shape)


def each_of_a_list() -> None:
    arrays = [np.ones(8, np.float32) for _ in range(3)]
    kept = []
    for x in arrays:
        print(x.sum())
        kept.append(adopt(x))
    print(len(kept))


def made_again() -> None:
    x = np.ones(8, np.float32)
    t = adopt(x)
    x = np.zeros(8, np.float32)
    print(x.sum(), t.shape)


def deleted() -> None:
    x = np.ones(8, np.float32)
    t = adopt(x)
    del x
    print(t.shape)


def on_branches_that_exclude_each_other() -> None:
    x = np.ones(8, np.float32)
    if x.sum() > 3:
        print(adopt(x).shape)
    else:
        print(x)


def copied_and_shared() -> None:
    x, y = np.ones(8, np.float32), np.ones(8, np.float32)
    t, s = from_array(x).sync(), share_array(y)
    with lend(x) as r:
        total(r)
    print(x.sum(), y.sum(), t.shape, s.shape)


def in_a_helper() -> None:
    def taken(x: Any) -> Any:
        return adopt(x, f32)

    x = np.ones(8, np.float32)
    print(taken(x).shape)
