"""Kernels of cuTile. Only where cuTile is installed can this be imported."""

import cuda.tile as ct


@ct.kernel
def axpy(y, a, x, T: ct.Constant[int]):
    i = ct.bid(0)
    both = ct.load(y, index=(i,), shape=(T,)) + a * ct.load(x, index=(i,), shape=(T,))
    ct.store(y, index=(i,), tile=both)


@ct.kernel
def swapped(y, x, N: ct.Constant[int], M: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    ct.store(y, index=(i, j), tile=ct.transpose(ct.load(x, index=(j, i), shape=(M, N))))
