"""Kernels of Triton, beside the parameters that each writes. Only where Triton is installed can this be imported.

All but `indexed` take (y, x, w, n, BLOCK): three pointers to float32 and an int32.
"""

from typing import Any, Final

import triton
import triton.language as tl


@triton.jit
def axpy(y_ptr, x_ptr, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, a * tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


@triton.jit
def helper(p, v):
    tl.store(p, v)


@triton.jit(noinline=True)
def far(p, q, v):
    tl.store(q, v)
    return p + 1


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def rows(y, x, w, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    p = x + tl.arange(0, BLOCK)
    q = w + tl.arange(0, BLOCK)
    for _ in range(0, n, BLOCK):
        total += tl.load(p) * tl.load(q)
        tl.store(p, total)
        p += BLOCK
        q += BLOCK
    tl.atomic_add(y, tl.sum(total))


@triton.jit
def two_loops(y, x, w, n, BLOCK: tl.constexpr):
    p = x + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(0, n, BLOCK):
        total += tl.load(p)
        p += BLOCK
    q = y + tl.arange(0, BLOCK)
    for _ in range(0, n, BLOCK):
        tl.store(q, total)
        q += BLOCK


@triton.jit
def while_loop(y, x, w, n, BLOCK: tl.constexpr):
    p = x
    q = y
    i = 0
    while i < n:
        tl.store(q, tl.load(p))
        p += 1
        q += 1
        i += 1


@triton.jit
def branch(y, x, w, n, BLOCK: tl.constexpr):
    p = w
    if n > 3:
        p = y
    tl.store(p, tl.load(x))


@triton.jit
def turns(y, x, w, n, BLOCK: tl.constexpr):
    p = y
    q = w
    for _ in range(n):
        tl.store(p, tl.load(x))
        p, q = q, p


@triton.jit
def loop_after_loop(y, x, w, n, BLOCK: tl.constexpr):
    p = y
    q = x
    for _ in range(n):
        p += 1
        q += tl.load(w).to(tl.int32)
    for i in range(n):
        tl.store(p + i, tl.load(q + i))


@triton.jit
def early_return(y, x, w, n, BLOCK: tl.constexpr):
    if n > 3:
        return
    helper(y, tl.load(x))


@triton.jit
def call(y, x, w, n, BLOCK: tl.constexpr):
    z = far(x, y, n * 1.0)
    tl.store(z, 1.0)


@triton.jit
def indexed(y, x, i, n, BLOCK: tl.constexpr):
    at = tl.load(i + tl.arange(0, BLOCK)).to(tl.int32)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def by_integers(y, x, w, n, BLOCK: tl.constexpr):
    address = y.to(tl.int64) + 4 * n
    tl.store(address.to(tl.pointer_type(tl.float32)), tl.load(x))


@triton.jit
def compare_and_swap(y, x, w, n, BLOCK: tl.constexpr):
    tl.atomic_cas(w.to(tl.pointer_type(tl.int32)), 0, 1)
    tl.store(y, tl.load(x))


@triton.jit
def descriptors(y, x, w, n, BLOCK: tl.constexpr):
    to = tl.make_tensor_descriptor(y, shape=[n, 16], strides=[16, 1], block_shape=[BLOCK, 16])
    of = tl.make_tensor_descriptor(x, shape=[n, 16], strides=[16, 1], block_shape=[BLOCK, 16])
    to.store([0, 0], of.load([0, 0]))


@triton.jit
def assembly(y, x, w, n, BLOCK: tl.constexpr):
    v = tl.inline_asm_elementwise("st.global.b32 [$1], 0;", "=r,l", [w], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(y, tl.load(x) + v)


@triton.jit
def scan(y, x, w, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.associative_scan(tl.load(x + at), 0, added)
    tl.store(y + at, v + tl.sum(tl.load(w + at)))


@triton.jit
def either(y, x, w, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(tl.where(at < 3, y + at, w + at), 1.0)


@triton.jit
def address_in_memory(y, x, w, n, BLOCK: tl.constexpr):
    address = tl.load(x.to(tl.pointer_type(tl.int64)))
    tl.store(address.to(tl.pointer_type(tl.float32)), 1.0)


@triton.jit
def product(c, a, b, n, BLOCK: tl.constexpr, DEPTH: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    step = tl.arange(0, DEPTH)
    of_a = a + row[:, None] * n + step[None, :]
    of_b = b + step[:, None] * n + column[None, :]
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for _ in range(0, n, DEPTH):
        total += tl.dot(tl.load(of_a), tl.load(of_b), input_precision="tf32")
        of_a += DEPTH
        of_b += DEPTH * n
    tl.store(c + row[:, None] * n + column[None, :], total)


WRITTEN: Final[dict[Any, set[str]]] = {
    axpy: {"y_ptr"}, rows: {"x", "y"}, two_loops: {"y"}, while_loop: {"y"}, branch: {"y", "w"}, turns: {"y", "w"},
    loop_after_loop: {"y"}, early_return: {"y"}, call: {"x", "y"}, indexed: {"y"}, by_integers: {"y"},
    compare_and_swap: {"y", "w"}, descriptors: {"y"},
    assembly: {"y", "w"}, scan: {"y"}, either: {"y", "w"}, address_in_memory: set(),
}  # fmt: skip
"""The parameters that each kernel writes, as one can read."""
