"""Checked, not run: sources, what is computed of them, and what `observe` takes and gives."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Feed,
    Flow,
    Partition,
    SharedTensor,
    Source,
    Stats,
    Tensor,
    TensorMut,
    TensorRef,
    batch,
    cutoff,
    f32,
    f64,
    from_host,
    observe,
    source,
    zip_ops,
)


def sources(t: Tensor[f32], s: SharedTensor[f32], a: NDArray[f32]) -> None:
    """A source has the type of its value; a tensor becomes a shared one."""
    assert_type(source(t), Source[SharedTensor[f32]])
    assert_type(source(s), Source[SharedTensor[f32]])
    assert_type(source(a), Source[NDArray[f32]])
    assert_type(source(3), Source[int])
    assert_type(source("x"), Source[str])
    assert_type(source(1.5, equal=lambda x, y: abs(x - y) < 0.1), Source[float])
    pair: Source[tuple[int, float]] = source((1, 2.0))
    pair.set((2, 3.0))
    pair.change(lambda p: (p[0] + 1, p[1]))
    assert_type(pair.get(), tuple[int, float])
    assert_type(pair.revision, int)
    with batch():
        source(t).set(t)
        source(t).set(s)
        source(1.0).set(2)


def derived(x: Source[NDArray[f32]]) -> None:
    """What is computed of sources has the types of ordinary ops."""
    device: DeviceOp[Tensor[f32]] = x.then(from_host)
    assert_type(observe(device), Flow[SharedTensor[f32]])
    assert_type(observe(x.then(from_host)), Flow[SharedTensor[f32]])
    assert_type(observe(x.then(from_host).to_host(), memory=1 << 20, check=True), Flow[NDArray[f32]])
    assert_type(observe(zip_ops(x, source(1))), Flow[tuple[NDArray[f32], int]])
    assert_type(cutoff(x.then(from_host)), DeviceOp[SharedTensor[f32]])
    assert_type(cutoff(source(1.5).map(round)), DeviceOp[int])
    assert_type(cutoff(source(1.5), lambda a, b: a == b), DeviceOp[float])


async def feeds(x: Source[NDArray[f32]]) -> None:
    """A feed gives what the op gives."""
    async with observe(x.then(from_host)) as feed:
        assert_type(feed, Feed[SharedTensor[f32]])
        assert_type(await feed.next(), SharedTensor[f32])
        async for value in feed:
            assert_type(value, SharedTensor[f32])
        assert_type(feed.stats, Stats)
        assert_type(feed.explain(), str)


def refused(
    op: DeviceOp[NDArray[f32], Borrowed], s: Source[SharedTensor[f32]], n: Source[int], r: TensorRef[f32]
) -> None:
    """A loan ends, and a feed goes on; a source holds what nobody can change in place, and is written."""
    observe(op)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    observe(r.to_host())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    source([1, 2])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    source({"a": 1})  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    n.set("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    s.set(np.zeros(3, f32))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    wide: Source[float] = n  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    n.change(str)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cutoff(op)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    observe(n, memory="all")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    found: Any = wide
    del found


def refused_loans(
    r: TensorRef[f32], m: TensorMut[f32], p: Partition[Tensor[f32]], n: Source[SharedTensor[f32]]
) -> None:
    """A source outlives each loan, and a partition is part of a run: no source is made of them, and none takes them."""
    source(r)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    source(m)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    source(p)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    n.set(m)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    n.set(p)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    n.change(lambda t: r)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    n.write(slice(0, 4), m)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    observe(m.to_host())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    cutoff(r.to_host())  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


def refused_parts(s: Source[SharedTensor[f32]], n: Source[int], r: TensorRef[f32], a: NDArray[f64]) -> None:
    """A part takes data of its element type, a number has no parts, and a loan goes into no source."""
    s.set(r)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    s.write(slice(0, 4), a)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    s.write(slice(0, 4), r)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    n.write(slice(0, 4), a)  # type: ignore[misc, arg-type]  # pyright: ignore[reportAttributeAccessIssue]
