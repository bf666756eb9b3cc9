"""The tracer: stages, what closures may not do, what a run that fails gives back, and origins."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

from dagpu import (
    DeviceOp,
    MovedError,
    NestedRunError,
    NotReadyError,
    Out,
    Tensor,
    Tile,
    arange,
    device,
    f32,
    from_host,
    full,
    kernel,
    ones,
    plan_of,
    value,
    zeros,
    zip_ops,
)  # fmt: skip
from tests.unit.tracing.traced_ops import Op, bumped, line, stop

# ---- stages


def test_a_closure_over_handles_is_called_at_once() -> None:
    """A chain of `then` over handles is one stage: its plan shows all of it before anything has run."""
    op = ones((2,)).then(lambda t: bumped(value(t))).then(lambda t: bumped(value(t))).to_host()
    assert op.explain().count("Launch bump") == 2


def test_a_closure_over_host_data_is_called_with_it() -> None:
    """If the preceding value is host data, the closure gets that data, and tracing goes on from there."""
    seen: list[Any] = []

    def filled(a: Any) -> Op:
        seen.append(a.tolist())
        return full((2,), float(a.sum()))

    op = arange(4).to_host().then(filled).to_host()
    assert "Fill" in op.explain()
    assert seen == []
    assert op.sync().tolist() == [6.0, 6.0]
    assert seen == [[0.0, 1.0, 2.0, 3.0]]


def test_handles_pass_from_stage_to_stage() -> None:
    """A tensor made in one stage is written in the next, beside data that was fetched between."""
    op = zip_ops(ones((2,)), full((2,), 3.0).to_host()).then(lambda p: bumped(value(p[0]), float(p[1][0])))
    assert op.to_host().sync().tolist() == [4.0, 4.0]


def test_a_lazy_scalar_may_come_from_the_device() -> None:
    """A kernel's scalar that is computed by another op: the launch is in a later stage."""
    number = full((1,), 5.0).to_host().map(lambda a: float(a[0]))
    assert bumped(zeros((2,)), number).to_host().sync().tolist() == [5.0, 5.0]


def test_unzip_of_a_tuple_that_is_still_to_come() -> None:
    """Components of a closure's result over host data are picked when it has arrived; handles among them too."""
    source: DeviceOp[tuple[Any, Any]] = arange(2).to_host().then(lambda a: zip_ops(from_host(a + 1), value(a.tolist())))
    tensor, numbers = source.unzip(2)
    assert numbers.sync() == [0.0, 1.0]
    assert tensor.to_host().sync().tolist() == [1.0, 2.0]


def test_stages_of_independent_branches_do_not_wait_for_each_other() -> None:
    """Branches with one stage boundary each share their stages: two in all, not one after the other."""
    calls: list[str] = []

    def branch(name: str) -> Op:
        return ones((2,)).to_host().inspect(lambda _: calls.append(name)).then(from_host).to_host()

    plan = plan_of(zip_ops(branch("a"), branch("b")))
    assert plan.steps
    assert calls == []
    first, second = zip_ops(branch("a"), branch("b")).sync()
    assert calls == ["a", "b"]
    assert first.tolist() == second.tolist() == [1.0, 1.0]


READS: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "setitem": lambda t: t.__setitem__(0, 1.0),
    "float": float,
    "int": int,
    "iter": lambda t: list(t),
    "len": len,
    "bool": bool,
    "unpack": lambda t: max(*t),
}
HANDLES: dict[str, Callable[[Tensor[Any]], Any]] = {
    "Tensor": lambda t: t,
    "SharedTensor": lambda t: t.share(),
    "TensorRef": lambda t: t.borrow(),
    "TensorMut": lambda t: t.borrow_mut(),
    "Partition": lambda t: t.partition((1,)),
}


# ---- closures see handles, not data


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("kind", HANDLES)
def test_contents_are_not_ready(kind: str, read: Callable[[Any], Any]) -> None:
    """Outside a run and inside its closures, a handle's contents are `NotReadyError`, cure `.to_host()`."""
    tensor = ones((2,)).sync()
    with pytest.raises(NotReadyError, match=r"\.to_host\(\)"):
        read(HANDLES[kind](tensor))
    for op in (
        ones((2,)).map(lambda t: read(HANDLES[kind](t))),
        ones((2,)).then(lambda t: value(read(HANDLES[kind](t)))),
        ones((2,)).inspect(lambda t: read(HANDLES[kind](t))),
        ones((2,)).host_map(lambda t: read(HANDLES[kind](t))),
    ):
        with pytest.raises(NotReadyError, match=r"\.to_host\(\)") as caught:
            op.sync()
        assert any(f"{__file__}:" in note for note in caught.value.__notes__)


def test_the_message_names_where_the_handle_was_made() -> None:
    """`NotReadyError` says of which handle."""
    tensor, here = ones((2,)).sync(), line()
    with pytest.raises(NotReadyError, match=f"{__file__}:{here}"):
        float(tensor)  # type: ignore[arg-type]  # reason: that is the mistake


def test_metadata_is_ready() -> None:
    """Shape, strides, dtype, size and device are known inside a closure."""
    seen: list[Any] = []
    ones((2, 3)).inspect(
        lambda t: seen.extend((t.shape, t.strides, t.dtype, t.ndim, t.size, t.nbytes, t.device))
    ).sync()
    assert seen == [(2, 3), (12, 4), np.dtype(f32), 2, 6, 24, device("host:0")]


def test_handles_do_not_leak_out_of_an_unfinished_run() -> None:
    """A handle that a closure put aside, used in another run while its own is not complete, is refused."""
    kept: list[Any] = []

    def keep(t: Any) -> Any:
        kept.append(t.borrow())
        return value(t)

    with pytest.raises(ValueError, match="stop"):
        zip_ops(ones((2,)).then(keep), value(0).map(stop)).sync()
    with pytest.raises((MovedError, NotReadyError)):
        value(kept[0]).to_host().sync()


# ---- no runs inside a run


def test_a_run_inside_a_closure_is_refused() -> None:
    """`sync` in `map`, `then`, `inspect` and `host_map`: `NestedRunError`, cure `.then`."""
    for op in (
        value(1).map(lambda x: value(2).sync()),
        value(1).then(lambda x: value(value(2).sync())),
        value(1).inspect(lambda x: value(2).sync()),
        value(1).host_map(lambda x: value(2).sync()),
        value(1).map(lambda x: value(2).explain()),
        value(1).map(lambda x: plan_of(value(2))),
        value(1).map(lambda x: value(2).sync_on(device("host:0").stream())),
    ):
        with pytest.raises(NestedRunError, match=r"\.then") as caught:
            op.sync()
        assert __file__ in str(caught.value)
    assert value(1).sync() == 1


def test_await_inside_a_closure_is_refused() -> None:
    """An `await` that is driven by hand, for a closure cannot await, is refused as well."""

    def drive(_: object) -> Any:
        steps: Iterator[Any] = value(2).__await__()
        return next(steps)

    async def main(op: Op) -> Any:
        return await op

    for op in (value(1).map(drive), value(1).host_map(drive)):
        with pytest.raises(NestedRunError):
            trio.run(main, op)


def test_a_kernel_body_may_not_run_ops() -> None:
    """The host body of a kernel is inside a run as well."""

    @kernel(cuda="__global__ void nested(Tile<float, 1> y) {}")
    def nested(y: Out[f32]) -> None: ...

    @nested.host
    def _(y: Tile[f32]) -> None:
        value(1).sync()

    with pytest.raises(NestedRunError):
        nested(zeros((2,)).partition((2,))).sync()


def test_a_shared_op_that_leads_back_to_itself_is_refused() -> None:
    """A closure that gives the op whose value it is to make."""
    ops: list[Op] = []
    ops.append(value(1).then(lambda _: ops[0]).shared())
    with pytest.raises(NestedRunError, match="its own result"):
        ops[0].sync()


def test_a_shared_op_that_waits_for_itself_is_refused() -> None:
    """A shared op that waits for itself is also refused over host data, where the cycle shows in the second stage."""
    ops: list[Op] = []
    ops.append(value(1).host_map(lambda x: x).then(lambda _: ops[0]).shared())
    with pytest.raises(NestedRunError, match="its own result"):
        ops[0].sync()
