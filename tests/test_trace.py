"""The tracer: stages, what closures may not do, what a run that fails gives back, and origins."""

import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dagpu
from dagpu import (
    BorrowError,
    DeviceOp,
    In,
    KernelArgumentError,
    Lazy,
    MovedError,
    NestedRunError,
    NotReadyError,
    Out,
    PartitionError,
    ShapeError,
    SharedTensor,
    Tensor,
    TensorRef,
    Tile,
    arange,
    device,
    dup,
    empty,
    f32,
    fill,
    from_host,
    full,
    kernel,
    ones,
    plan_of,
    record_origins,
    value,
    zeros,
    zip_ops,
)  # fmt: skip

Op = DeviceOp[Any, Any, Any]
UNTYPED: Callable[[Any], Op] = value
"""`value`, for mistakes that a checker would see."""


@kernel(cuda="__global__ void bump(Tile<float, 1> y, float a) { for (auto i : y) y[i] += a; }")
def bump(y: Out[f32], a: Lazy[float]) -> None:
    """y += a."""


@bump.host
def _(y: Tile[f32], a: float) -> None:
    y[...] += f32(a)


@kernel(cuda="__global__ void copy(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = x[i]; }")
def copy(y: Out[f32], x: In[f32]) -> None:
    """y = x."""


@copy.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] = x[y.at]


def bumped(t: Op, a: Any = 1.0) -> Op:
    """`t + a`, in place."""
    return bump(t.partition((2,)), a).first().unpartition()


def line() -> int:
    """The line of whoever calls this."""
    return sys._getframe(1).f_lineno


# ---- stages


def test_a_closure_over_handles_is_called_at_once() -> None:
    """A chain of `then` over handles is one stage: its plan shows all of it before anything has run."""
    op = ones((2,)).then(lambda t: bumped(value(t))).then(lambda t: bumped(value(t))).to_host()
    assert op.explain().count("Launch bump") == 2


def test_a_closure_over_host_data_is_called_with_it() -> None:
    """Where the value above is host data, the closure sees that data, and tracing goes on from there."""
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


# ---- closures see handles, not data


READS: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "getitem": lambda t: t[0],
    "getitem slice": lambda t: t[...],
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
        zip_ops(ones((2,)).then(keep), value(0).map(_stop)).sync()
    with pytest.raises((MovedError, NotReadyError)):
        value(kept[0]).to_host().sync()


def _stop(_: object) -> Any:
    raise ValueError("stop")


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
    """The same over host data: the knot shows only in the second stage."""
    ops: list[Op] = []
    ops.append(value(1).host_map(lambda x: x).then(lambda _: ops[0]).shared())
    with pytest.raises(NestedRunError, match="its own result"):
        ops[0].sync()


# ---- one use in one run


def test_one_use_in_one_run() -> None:
    """Reaching a node twice is a `MovedError` that says `.shared()`, and names the node."""
    op, here = ones((2,)), line()
    for twice in (zip_ops(op, op), zip_ops(op.to_host(), op.then(dup)), zip_ops(op, value(1).then(lambda _: op))):
        with pytest.raises(MovedError, match=r"\.shared\(\)") as caught:
            twice.sync()
        assert f"{__file__}:{here}" in str(caught.value)
    assert op.to_host().sync().tolist() == [1.0, 1.0]


def test_one_use_within_a_row() -> None:
    """In a row of launches and maps each op may be used once, and the one that was used twice is named."""
    launched = bump(zeros((2,)).partition((2,)), 1.0)
    picked, here = launched.first(), line()
    whole = picked.unpartition()
    for twice in (
        zip_ops(whole, picked),
        zip_ops(picked, whole),
        zip_ops(whole, picked.unpartition()),
        zip_ops(bumped(whole), picked.map(lambda p: p)),
        zip_ops(picked.map(lambda p: p), bumped(whole)),
    ):
        with pytest.raises(MovedError, match=r"\.shared\(\)") as caught:
            twice.sync()
        assert f"{__file__}:{here}" in str(caught.value)
    assert whole.to_host().sync().tolist() == [1.0, 1.0]


def test_row_that_fails_names_the_op() -> None:
    """An error in the middle of a row gets one note, with the line of the op whose error it is."""
    whole = bumped(zeros((4,)))
    wrong, here = whole.partition((3,)), line()
    with pytest.raises(PartitionError) as caught:
        bump(wrong, 1.0).first().unpartition().sync()
    assert caught.value.__notes__ == [f"dagpu: in the op built at {__file__}:{here}"]


def test_row_behind_host_data() -> None:
    """A row whose input comes in a later stage goes on then, in its order."""
    number = full((2,), 2.0).to_host().map(lambda array: (float(array[0]), array)).first()
    assert bumped(bumped(zeros((2,)), number), 3.0).to_host().sync().tolist() == [5.0, 5.0]
    pair: Op = full((2,), 2.0).to_host().then(lambda array: zip_ops(from_host(array), value(array)))
    assert bumped(bumped(pair.first()), 3.0).to_host().sync().tolist() == [6.0, 6.0]


def test_one_use_of_every_kind_of_node() -> None:
    """Whatever the node is: it is the op that may be used once, not only its tensor."""
    tensor = ones((2,)).sync()
    for build in (
        lambda: value(1).map(lambda x: x),
        lambda: value(1).then(value),
        lambda: value(1).host_map(lambda x: x),
        lambda: ones((2,)).to_host(),
        lambda: zip_ops(value(1)),
        lambda: ones((2,)).on("host:0"),
        lambda: bump(zeros((2,)).partition((2,)), 1.0),
        lambda: from_host(np.ones(2, f32)),
        lambda: dup(tensor.borrow()),
        lambda: value(ones((2,)).sync()),
    ):
        op: Op = build()
        with pytest.raises(MovedError, match=r"\.shared\(\)"):
            zip_ops(op, op).sync()


def test_a_value_that_does_not_move_may_be_reached_often() -> None:
    """A number, a `SharedTensor`, a `TensorRef`: any number of times in one run, and in any number of runs."""
    tensor = ones((2,)).sync()
    for held in (3, "text", None, ones((2,)).share().sync(), tensor.borrow()):
        op: Op = value(held)
        for _ in range(2):
            first, second = zip_ops(op, op).sync()
            assert first is second or type(first) in (SharedTensor, TensorRef)


def test_an_op_of_constructors_runs_again_and_again() -> None:
    """An op is a recipe: each run makes fresh memory."""
    op = bumped(zeros((2,)))
    results = [op.sync() for _ in range(3)]
    assert [t.to_host().sync().tolist() for t in results] == [[1.0, 1.0]] * 3


def test_an_op_that_owns_handles_is_used_up() -> None:
    """Its second run is a `MovedError` that names where they were made and that a run took them."""
    tensor, here = zeros((2,)).sync(), line()
    op = bump(tensor.partition((2,)), 1.0)
    op.sync()
    with pytest.raises(MovedError, match=f"{__file__}:|run of the op"):
        op.sync()
    with pytest.raises(MovedError, match=f"{__file__}:{here}"):
        tensor.shape


# ---- a run that fails before it submits anything gives everything back


class Once:
    """Raises when called for the first time."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, x: Any) -> Any:
        if not self.called:
            self.called = True
            raise ValueError("the first time")
        return x


def owning_ops() -> dict[str, Callable[[], Op]]:
    """Ops that own handles in every way there is, each giving a tensor [2, 2]."""

    def component() -> Op:
        first, second = zip_ops(full((2,), 2.0), ones((2,))).unzip()
        second.sync()
        return first

    return {
        "value": lambda: value(full((2,), 2.0).sync()),
        "values in a dict": lambda: value({"a": [full((2,), 2.0).sync()]}).map(lambda x: x["a"][0]),
        "partition": lambda: bump(ones((2,)).sync().partition((2,)), 1.0).first().unpartition(),
        "partition in a value": lambda: value(full((2,), 2.0).sync().partition((1,))).unpartition(),
        "input": lambda: copy(empty((2,)).partition((1,)), full((2,), 2.0).sync()).first().unpartition(),
        "dup": lambda: dup(full((2,), 2.0).sync()),
        "fill": lambda: fill(zeros((2,)).sync(), 2.0),
        "to_host": lambda: full((2,), 2.0).sync().to_host().then(from_host),
        "component": component,
        "shared": lambda: value(full((2,), 2.0).sync()).shared().then(dup),
        "unzip": lambda: zip_ops(value(full((2,), 2.0).sync()), value(ones((2,)).sync())).unzip()[0],
    }


FAILING: dict[str, Callable[[Op, Callable[[Any], Any]], Op]] = {
    "beside it": lambda op, f: zip_ops(op, value(0).map(f)).first(),
    "map": lambda op, f: op.map(f),
    "then": lambda op, f: op.then(value).then(lambda t: value(f(t))),
}


@pytest.mark.parametrize("where", FAILING)
@pytest.mark.parametrize("kind", owning_ops())
def test_a_closure_that_raises_leaves_the_op_its_handles(kind: str, where: str) -> None:
    """After a failure in a trace the op is as it was, and runs once the cause has gone."""
    if kind == "to_host" and where != "beside it":
        return  # a closure after host data is called when something has been submitted
    op = FAILING[where](owning_ops()[kind](), Once())
    with pytest.raises(ValueError, match="the first time"):
        op.sync()
    assert op.to_host().sync().tolist() == [2.0, 2.0]


@pytest.mark.parametrize("kind", owning_ops())
def test_a_borrow_conflict_leaves_the_op_its_handles(kind: str) -> None:
    """A run that is refused because of a lock is refused before it takes anything for good."""
    lender = ones((2,)).sync()
    op = zip_ops(owning_ops()[kind](), value(lender.borrow()).to_host(), value(0)).first().to_host()
    blocked = Blocked()
    writer = zip_ops(bump(lender.borrow_mut().partition((2,)), 1.0), value(0).host_map(blocked))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_await, writer)
            await trio.testing.wait_all_tasks_blocked()
            try:
                with pytest.raises(BorrowError, match="is being written"):
                    await op
            finally:
                blocked.release()

    trio.run(main)
    assert op.sync().tolist() == [2.0, 2.0]


class Blocked:
    """A function for `host_map` that waits until it is released."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.release = self._event.set

    def __call__(self, x: Any) -> Any:
        self._event.wait()
        return x


async def _await(op: Op) -> Any:
    return await op


@pytest.mark.parametrize("kind", owning_ops())
def test_planning_leaves_an_op_runnable(kind: str) -> None:
    """`plan_of` and `explain` take nothing, however often."""
    op = owning_ops()[kind]().to_host()
    plan_of(op)
    assert "Plan" in op.explain()
    assert op.sync().tolist() == [2.0, 2.0]


def test_errors_of_the_trace_leave_the_op_its_handles() -> None:
    """The same for what the tracer itself refuses: tiles, kernel arguments, results that are no op."""
    tile = [(3,)]
    op = value(ones((2,)).sync()).map(lambda t: t.partition(tile[0])).unpartition().to_host()
    with pytest.raises(PartitionError):
        op.sync()
    tile[0] = (2,)
    assert op.sync().tolist() == [1.0, 1.0]

    numbers: list[Any] = ["no number"]
    op = bumped(value(ones((2,)).sync()), value(0).map(lambda _: numbers[0])).to_host()
    with pytest.raises(KernelArgumentError):
        op.sync()
    numbers[0] = 1.0
    assert op.sync().tolist() == [2.0, 2.0]

    results: list[Any] = [7]
    op = zip_ops(value(ones((2,)).sync()), value(0).then(lambda _: results[0])).first().to_host()
    with pytest.raises(TypeError, match=r"no op.*value\(x\)"):
        op.sync()
    results[0] = value(0)
    assert op.sync().tolist() == [1.0, 1.0]


def test_after_submission_the_handles_are_gone() -> None:
    """A run that fails once something has been submitted drops what it took: memory too."""
    host = device("host:0")
    gc.collect()  # what earlier tests left in cycles
    before = host.memory_used()
    op = zip_ops(value(ones((1000,)).sync()), ones((2,)).to_host().map(_stop))
    with pytest.raises(ValueError, match="stop"):
        op.sync()
    with pytest.raises(MovedError):
        op.sync()
    del op
    gc.collect()
    assert host.memory_used() == before


def test_a_failed_run_gives_its_borrows_back() -> None:
    """After a failure, before or after submission, the lender can be written again."""
    lender = ones((2,)).sync()
    for op in (
        zip_ops(value(lender.borrow()).to_host(), value(0).map(_stop)),
        zip_ops(value(lender.borrow()).to_host(), value(0).host_map(_stop)),
        value(lender.borrow()).to_host().map(_stop),
    ):
        with pytest.raises(ValueError, match="stop"):
            op.sync()
        bump(lender.borrow_mut().partition((2,)), 1.0).sync()
    assert lender.to_host().sync().tolist() == [4.0, 4.0]


# ---- origins


def test_every_op_knows_its_line() -> None:
    """`repr` names the user's file and line, of fluent methods and functions alike."""
    for op, here in (
        (ones((2,)), line()),
        (value(1).map(lambda x: x), line()),
        (value(1).then(value), line()),
        (zip_ops(value(1), value(2)), line()),
        (zip_ops(value(1), value(2)).unzip()[1], line()),
        (ones((2,)).shared(), line()),
        (ones((2,)).partition((1,)), line()),
        (ones((2,)).to_host(), line()),
        (bump(zeros((2,)).partition((2,)), 1.0), line()),
        (value(1).on("host:0"), line()),
        (value(1).host_map(abs), line()),
        (from_host(np.ones(2)), line()),
    ):
        assert f"{__file__}:{here}" in repr(op)


def test_an_error_in_a_closure_keeps_its_type_and_gets_a_note() -> None:
    """The note says which closure of which line: `map`, `then`, `inspect`, `host_map`, a kernel's body."""
    for op, here, word in (
        (value(1).map(_stop), line(), ".map"),
        (value(1).then(_stop), line(), ".then"),
        (value(1).inspect(_stop), line(), ".inspect"),
        (value(1).host_map(_stop), line(), "host_map"),
        (value(1).host_map(lambda x: x).map(_stop), line(), ".map"),
    ):
        with pytest.raises(ValueError, match="stop") as caught:
            op.sync()
        notes = caught.value.__notes__
        assert any(f"{__file__}:{here}" in note and word in note for note in notes), notes


def test_an_error_in_a_fluent_method_says_where_it_was_built() -> None:
    """What runs lazily is refused with the line where the user wrote it."""
    for op, here, error in (
        (ones((4,)).partition((3,)), line(), PartitionError),
        (ones((4,)).reshape((3,)), line(), ShapeError),
        (bump(zeros((2,)).partition((2,)), UNTYPED("x")), line(), KernelArgumentError),
        (UNTYPED((1,)).to_host(), line(), ShapeError),
    ):
        with pytest.raises(error) as caught:
            op.sync()
        text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"{__file__}:{here}" in text, text


def test_explain_and_to_dot_show_lines() -> None:
    """A plan's rows and a drawing's nodes say where in the user's file they come from."""
    op, here = ones((2,)).to_host(), line()
    assert f"test_trace.py:{here}" in op.explain()
    assert f"test_trace.py:{here}" in op.to_dot()


@given(st.text(st.sampled_from('a"\\\n\rn;]{}'), min_size=1))
def test_a_label_of_a_dot_graph_holds_any_name(name: str) -> None:
    """The file of an op may be called anything: quotation marks, backslashes and line ends are escaped."""
    found: dict[str, Any] = {"ones": ones}
    exec(compile("op = ones((4,))", f"/tmp/{name}", "exec"), found)
    (label,) = re.findall(r'label="((?:[^"\\\n]|\\.)*)"\];$', found["op"].to_dot(), re.MULTILINE)
    meant = {"n": "\n", "r": "\r"}
    assert re.sub(r"\\(.)", lambda escaped: meant.get(escaped[1], escaped[1]), label) == f"Alloc\n{name}:1"


def test_moves_say_where_made_where_moved_and_the_cure() -> None:
    """`MovedError` of a handle has all three."""
    tensor, made = ones((2,)).sync(), line()
    moved_by, moved = value(tensor), line()
    with pytest.raises(MovedError) as caught:
        tensor.borrow()
    text = str(caught.value)
    assert f"{__file__}:{made}" in text
    assert f"{__file__}:{moved}" in text
    assert ".borrow()" in text
    assert moved_by.to_host().sync().tolist() == [1.0, 1.0]


def test_a_handle_moved_lazily_was_moved_at_the_users_line() -> None:
    """A method of an op moves the handle: the line is the op's, not one of the library's."""
    kept: list[Any] = []
    op, here = ones((2,)).inspect(kept.append).partition((2,)).unpartition().to_host(), line()
    op.sync()
    with pytest.raises(MovedError, match=f"partition.*{__file__}:{here}"):
        kept[0].shape


def test_origins_can_be_turned_off() -> None:
    """Everything works without them; messages then say so."""
    assert record_origins(False) is True
    try:
        op = zip_ops(ones((2,)), value(0).map(_stop))
        assert "an unknown place" in repr(op)
        with pytest.raises(ValueError, match="stop") as caught:
            op.sync()
        assert any("an unknown place" in note for note in caught.value.__notes__)
        assert "Plan" in bumped(zeros((2,))).explain()
        assert bumped(zeros((2,))).to_dot().endswith("}")
        tensor = ones((2,)).sync()
        tensor.share()
        with pytest.raises(MovedError, match="an unknown place"):
            tensor.shape
    finally:
        assert record_origins(True) is False
    assert __file__ in repr(value(1))


def test_an_op_is_neither_true_nor_false() -> None:
    """`if op:` is a mistake, and says so."""
    with pytest.raises(TypeError, match="description"):
        bool(value(1))


def test_what_is_no_op_is_refused_where_an_op_is_wanted() -> None:
    """`zip_ops` of a plain value, and a node of somebody else's making."""
    with pytest.raises(TypeError, match=r"value\(x\)"):
        zip_ops(value(1), 2)  # type: ignore[call-overload]  # reason: that is the mistake

    class Mine(DeviceOp[int]):
        origin = None

    with pytest.raises(TypeError, match="closed"):
        Mine().sync()


def test_unzip_needs_to_know_how_many() -> None:
    """After a closure `unzip()` asks for a number; a wrong one is refused when it is seen."""
    with pytest.raises(ShapeError, match=r"unzip\(2\)"):
        value(1).map(lambda x: (x, x)).unzip()
    with pytest.raises(ShapeError, match="2 components"):
        zip_ops(value(1), value(2)).unzip(3)
    with pytest.raises(ShapeError, match="2 components"):
        value(1).map(lambda x: (x, x)).unzip(3)[0].sync()
    with pytest.raises(ShapeError, match="int"):
        UNTYPED(1).map(lambda x: x).unzip(3)[0].sync()


def test_the_package_says_what_it_exports() -> None:
    """All names of `dagpu.__all__` are there."""
    assert all(hasattr(dagpu, name) for name in dagpu.__all__)
