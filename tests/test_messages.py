"""What a new user gets wrong first, and what the message says of it: what, where, and the cure."""

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import dagpu
from dagpu import (
    CostModel,
    DeviceOp,
    In,
    KernelArgumentError,
    KernelBoundsError,
    ListSchedule,
    MovedError,
    NotReadyError,
    Out,
    OwnershipError,
    RoundRobin,
    ShapeError,
    SingleStream,
    Tensor,
    Tile,
    arange,
    convert,
    dup,
    empty,
    f32,
    f64,
    fill,
    from_host,
    kernel,
    memcpy,
    ones,
    pipeline,
    trace,
    value,
    zeros,
    zip_ops,
)

HERE = re.escape(__file__) + r":\d+"


@kernel(cuda="__global__ void add(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] += x[i]; }")
def add(y: Out[f32], x: In[f32]) -> None:
    """y += x"""


@add.host
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    y[...] += x[y.at]


@kernel(cuda="__global__ void row(Tile<float, 1> y, View<const float, 2> x, int from, int to) {}")
def row(y: Out[f32], x: In[f32], start: int, stop: int) -> None:
    """y = x[1, start:stop], whatever y's tiles."""


@row.host
def _(y: Tile[f32], x: NDArray[f32], start: int, stop: int) -> None:
    y[...] = x[1, start:stop]


@kernel(cuda="__global__ void look(Tile<float, 1> y, View<const float, 2> x) {}")
def look(y: Out[f32], x: In[f32]) -> None:
    """Reads x in many ways that are right."""


@look.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32]) -> None:
    plain = np.arange(12, dtype=f32).reshape(3, 4)
    keys: list[Any] = [..., 2, (1, slice(0, 4)), (slice(None), slice(1, 4)), (None, slice(0, 3)), slice(-9, None)]
    keys += [(..., slice(0, 4)), slice(None, None, -1), [0, 2], plain > 3, (slice(2, 1), 0), slice(0, np.int64(3))]
    for key in keys:
        assert np.array_equal(x[key], plain[key])
        assert type(x[key]) is np.ndarray
    assert np.array_equal(x.T[0:9], plain.T)
    for made in (x + 1, x @ x.T, np.exp(x), x.sum(axis=0)):
        assert type(made) is np.ndarray
    assert x.sum() == 66
    assert type(x.max()) is np.float32
    assert np.array_equal([list(part) for part in x], plain)
    with pytest.raises(IndexError):
        x[3]
    with pytest.raises(IndexError):
        x[0:3, 0:4, 0:9]
    with pytest.raises(ValueError, match="read-only"):
        x[0, 0] = 1
    y[...] = x[0]


loose_add: Any = add
"""The same to a type checker that shall not see what is wrong with a call."""


def said(error: BaseException) -> str:
    """All that the user reads below the traceback."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def tensor(n: int = 4) -> Tensor[f32]:
    return zeros((n,)).sync()


def refused(kind: type[BaseException], wrong: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        wrong()
    assert type(caught.value) is kind
    return said(caught.value)


# ---- slices of an input in a host body


def test_an_input_shorter_than_the_output() -> None:
    """NumPy would shorten the slice and broadcast it: here it names kernel, input, slice, launch and cure."""
    text = refused(KernelBoundsError, lambda: add(ones((4,)).partition((2,)), ones((3,))).sync())
    assert "kernel 'add', input 'x' of shape (3,): the slice 2:4 along axis 0 goes beyond its 3 elements." in text
    assert "Give the kernel an input that covers the output" in text
    assert "min(4, x.shape[0])" in text
    assert re.search(rf"launched at {HERE}", text)


def test_an_input_of_one_element_is_not_broadcast() -> None:
    """The worst case: a wrong result of the right shape."""
    assert "the slice 0:2 along axis 0" in refused(
        KernelBoundsError, lambda: add(ones((4,)).partition((2,)), ones((1,))).sync()
    )


def test_a_slice_beside_an_index() -> None:
    """An axis is counted past an index, and a slice that lacks its start is read as from 0."""
    x = arange(12).reshape((3, 4)).shared()
    result = row(empty((4,)).partition((4,)), x, 0, 4).first().unpartition().to_host().sync()
    assert result.tolist() == [4, 5, 6, 7]
    text = refused(KernelBoundsError, lambda: row(empty((4,)).partition((4,)), x, 1, 5).sync())
    assert "shape (3, 4): the slice 1:5 along axis 1 goes beyond its 4 elements" in text


def test_what_lies_inside_is_numpys() -> None:
    """Every other way of reading an input gives what NumPy gives, as a plain array or scalar."""
    look(empty((4,)).partition((4,)), arange(12).reshape((3, 4))).sync()


# ---- moved handles


def test_a_tensor_that_was_cut_and_used_again() -> None:
    """The cure is the borrow that writes, for a partition is for writing."""
    t = tensor()
    t.partition((2,))
    text = refused(MovedError, lambda: t.shape)
    assert re.search(rf"made at {HERE} was moved by partition\(\) at {HERE} and used again", text)
    assert "lend it for writing: .borrow_mut().partition(tile)" in text
    assert ".share()" not in text


def test_a_mutable_borrow_that_was_cut_and_used_again() -> None:
    """It is lent anew; a borrow has no .borrow()."""
    lent = tensor().borrow_mut()
    lent.partition((2,))
    text = refused(MovedError, lambda: lent.partition((2,)))
    assert "use what the move gave back, or lend the tensor anew with .borrow_mut()" in text
    assert ".borrow()," not in text


def test_a_tensor_that_a_kernel_took() -> None:
    """Reading twice is cured by lending or sharing."""
    x = tensor()
    add(ones((4,)).partition((2,)), x)
    text = refused(MovedError, lambda: x.to_host())
    assert re.search(rf"was moved by being passed to a kernel at {HERE}", text)
    assert "lend it with .borrow(), or share it with .share()" in text


def test_a_shared_tensor_that_was_unwrapped() -> None:
    """Its cure is its own: it has neither .borrow() nor .share()."""
    shared = tensor().share()
    kept = shared.try_unwrap()
    text = refused(MovedError, lambda: shared.shape)
    assert "moved by try_unwrap()" in text
    assert "use what the move gave back, or share that anew with .share()" in text
    assert kept.shape == (4,)


# ---- partition, unpartition and share of something else


def wrong_op(op: DeviceOp[Any, Any, Any]) -> Any:
    return op


TUPLE = (
    "of a value of type tuple. A kernel call gives a tuple of all its arguments: pick one with .first() or .unzip()."
)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: add(ones((4,)).partition((2,)), ones((4,))), TUPLE),
        (lambda: zip_ops(zeros((4,)).partition((2,))), TUPLE),
        (lambda: value(tensor()), "type Tensor. It is whole already. Leave that out, or pick the output"),
        (lambda: value(tensor().share()), "type SharedTensor. It is whole already."),
        (lambda: add(ones((4,)).partition((2,)), ones((4,))).last(), "type Tensor. It is whole already."),
        (lambda: value(None), "type NoneType. Only tensors on a device have that"),
    ],
)
def test_unpartition_of_what_is_no_partition(wrong: Callable[[], DeviceOp[Any, Any, Any]], says: str) -> None:
    """A forgotten `.first()` above all."""
    text = refused(OwnershipError, lambda: wrong_op(wrong()).unpartition().sync())
    assert re.match(rf"unpartition\(\) at {HERE} of a value of type ", text)
    assert says in text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: add(ones((4,)).partition((2,)), ones((4,))), TUPLE),
        (
            lambda: add(ones((4,)).partition((2,)), ones((4,))).first(),
            "Partition. It is cut already. To cut it otherwise, put it together: .unpartition().partition(tile)",
        ),
        (lambda: zeros((4,)).share(), "SharedTensor. It is immutable: write to a copy, dup(t)"),
        (lambda: value(np.ones(4)), "type ndarray. Only tensors on a device have that; from_host(array) makes one."),
    ],
)
def test_partition_of_what_cannot_be_cut(wrong: Callable[[], DeviceOp[Any, Any, Any]], says: str) -> None:
    """The value's kind, where the method was called, and what that kind needs."""
    text = refused(OwnershipError, lambda: wrong_op(wrong()).partition((2,)).sync())
    assert re.match(rf"partition\(\) at {HERE} of a value of type ", text)
    assert says in text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: zip_ops(zeros((4,))), TUPLE),
        (lambda: zeros((4,)).partition((2,)), "Partition. Put it together first: .unpartition()"),
        (lambda: zeros((4,)).share(), "SharedTensor. It is shared already: .clone() makes one more handle"),
        (lambda: value(tensor().borrow()), "TensorRef. It is only lent: share the tensor that it was lent from"),
    ],
)
def test_share_of_what_is_no_owned_tensor(wrong: Callable[[], DeviceOp[Any, Any, Any]], says: str) -> None:
    """A shared tensor, a borrow, a partition and a tuple each have a cure of their own."""
    text = refused(OwnershipError, lambda: wrong_op(wrong()).share().sync())
    assert re.match(rf"share\(\) at {HERE} of a value of type ", text)
    assert says in text


@pytest.mark.parametrize(
    ("handle", "says"),
    [
        (lambda: tensor().borrow(), "TensorRef. It is lent for reading: lend the tensor for writing, .borrow_mut()"),
        (lambda: tensor().view((2, 2)), "TensorRef. It is lent for reading"),
        (lambda: tensor().share(), "SharedTensor. It is immutable: write to a copy, dup(t)"),
    ],
)
def test_the_method_of_a_handle_that_cannot_be_cut(handle: Callable[[], Any], says: str) -> None:
    """`partition` on a handle for reading is no AttributeError: it says what to do."""
    text = refused(OwnershipError, lambda: handle().partition((2,)))
    assert re.match(rf"partition\(\) at {HERE} of a value of type ", text)
    assert says in text


# ---- arguments of ops


@pytest.mark.parametrize(
    ("shape", "cure"),
    [
        (3, "Write it as (3,), or with all extents in one tuple: (3, ...)."),
        (2.5, "Write it as (rows, columns), or (n,) for one axis."),
        ("3", "(n,) for one axis"),
    ],
)
def test_a_shape_that_is_no_tuple(shape: Any, cure: str) -> None:
    """The cure for a bare number is that number as a shape."""
    text = refused(ShapeError, lambda: zeros(shape))
    assert f"shape {shape!r} is no tuple of whole numbers." in text
    assert cure in text


@pytest.mark.parametrize(
    ("call", "name", "cure"),
    [
        (lambda op: dup(op), "dup", "op.then(lambda t: dup(t))."),
        (lambda op: convert(op, f64), "convert", "op.then(lambda t: convert(t, dtype))."),
        (lambda op: memcpy(tensor().borrow_mut(), op), "memcpy", "op.then(lambda t: memcpy(dst, t))."),
    ],
)
def test_an_op_where_a_handle_is_wanted(call: Callable[[Any], object], name: str, cure: str) -> None:
    """The cure is the closure to write, with the tensor where it belongs in the call."""
    text = refused(ShapeError, lambda: call(ones((4,))))
    assert re.match(rf"{name} at {HERE}: an op is nothing to copy from. Run it before, t = op.sync\(\)", text)
    assert text.endswith(cure)


def test_fill_of_an_op() -> None:
    """Likewise, for what is written in place; and the cure works."""
    op: Any = zeros((2,))
    text = refused(ShapeError, lambda: fill(op, 1))
    assert re.match(rf"fill at {HERE}: an op cannot be written.", text)
    assert text.endswith("op.then(lambda t: fill(t, fill_value)).")
    assert op.then(lambda t: fill(t, 3)).to_host().sync().tolist() == [3, 3]


@pytest.mark.parametrize("lazy", [False, True])
def test_an_element_type_that_the_kernel_does_not_take(lazy: bool) -> None:
    """For a handle at the call, for an op when it is traced; the cure has a form for each, and they work."""
    made = ones((4,), f64)
    out = ones((4,)).partition((2,))
    text = refused(KernelArgumentError, lambda: loose_add(out, made if lazy else made.sync()).sync())
    assert "kernel 'add', argument 'x': got a Tensor of float64, shape (4,), but elements of float32 are wanted" in text
    assert re.search(rf"Called at {HERE}; the kernel is declared at {HERE}\.", text)
    assert "Convert it: convert(t, f32), or for an op .then(lambda t: convert(t, f32))." in text
    cured = made.then(lambda t: convert(t, f32)) if lazy else convert(made.sync(), f32)
    assert add(out, cured).first().unpartition().to_host().sync().tolist() == [2, 2, 2, 2]


# ---- ops taken for values


def test_a_map_whose_closure_gives_an_op() -> None:
    """Nobody would run it: the cure is `.then`."""
    text = refused(TypeError, lambda: zeros((4,)).map(lambda t: dup(t)).sync())
    assert re.match(rf"the closure of \.map at {HERE} gave an op, which nobody would run. Use \.then\.", text)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda op: op, "x is <Alloc built at"),
        (lambda op: (1, op), "in x there is <Alloc built at"),
        (lambda op: [[op]], "in x there is <Alloc built at"),
        (lambda op: {"a": {"b": op}}, "in x there is <Alloc built at"),
    ],
)
def test_an_op_in_a_value(wrong: Callable[[Any], object], says: str) -> None:
    """An op is no value: it would stay unrun, wherever in the value it is."""
    op = ones((2,))
    text = refused(TypeError, lambda: value(wrong(op)))
    assert re.match(rf"value at {HERE}: {says}", text)
    assert text.endswith("which nobody would run. Use the op itself; zip_ops(a, b) makes one op of several.")
    assert zip_ops(op, value(1)).last().sync() == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: ones((2,)).map(lambda t: (1, dup(t))), "gave a tuple with an op in it, which nobody would run."),
        (lambda: value(1).map(lambda _: [ones((2,)), ones((2,))]), "gave a list with an op in it, which nobody"),
        (lambda: value(1).map(lambda _: {"a": ones((2,))}), "gave a dict with an op in it, which nobody would run."),
        (lambda: value(1).host_map(lambda _: ones((2,))), "gave an op, which nobody would run. Use .then."),
        (lambda: value(1).host_map(lambda _: (1, ones((2,)))), "gave a tuple with an op in it, which nobody would"),
    ],
)
def test_an_op_that_a_function_gives(wrong: Callable[[], DeviceOp[Any]], says: str) -> None:
    """Nor does anybody run one that is inside the result of `map`, or the result of `host_map`."""
    text = refused(TypeError, lambda: wrong().sync())
    assert re.match(rf"the (closure of \.map|function of the host_map) at {HERE} ", text)
    assert says in text


async def waits(x: object) -> object:
    return x


def yields(x: object) -> Iterator[object]:
    yield x


async def waits_and_yields(x: object) -> AsyncIterator[object]:
    yield x


class Waiting:
    """An object that is called, and a method, which wait."""

    async def __call__(self, x: object) -> object:
        return x

    async def method(self, x: object) -> object:
        return x


@pytest.mark.parametrize("call", ["then", "map", "host_map", "inspect"])
@pytest.mark.parametrize(
    ("f", "gives", "cure"),
    [
        (waits, "a coroutine", "await f(await op)."),
        (Waiting(), "a coroutine", "await f(await op)."),
        (Waiting().method, "a coroutine", "await f(await op)."),
        (partial(waits), "a coroutine", "await f(await op)."),
        (yields, "a generator", None),
        (waits_and_yields, "an async generator", "async for x in f(await op)."),
    ],
)
def test_a_function_whose_call_runs_nothing(call: str, f: Any, gives: str, cure: str | None) -> None:
    """An async or a generator function is refused where the op is built, however it is wrapped."""
    text = refused(TypeError, lambda: getattr(value(1), call)(f))
    assert re.match(rf"{call} at {HERE}: f is ", text)
    assert f"whose call gives {gives} and runs nothing." in text
    wanted = cure or ("with return, not yield." if call == "then" else f".{call}(lambda x: list(f(x))).")
    assert text.endswith(wanted)


@pytest.mark.parametrize("call", ["then", "map", "host_map", "inspect"])
@pytest.mark.parametrize(
    ("f", "gives"),
    [(waits, "a coroutine"), (yields, "a generator"), (waits_and_yields, "an async generator")],
)
def test_a_function_that_hides_what_it_gives(call: str, f: Any, gives: str) -> None:
    """Where only the call shows it, the run is refused; Python does not warn of a coroutine that was not awaited."""
    hidden: Any = lambda x: f(x)  # noqa: E731  # reason: that is what hides it
    text = refused(TypeError, lambda: getattr(value(1), call)(hidden).sync())
    whose = "the function of the host_map" if call == "host_map" else rf"the closure of \.{call}"
    assert re.match(rf"{whose} at {HERE} gave {gives}, of which nothing has run\. ", text)


def test_the_cures_of_such_functions() -> None:
    """They work as they are written."""

    async def main() -> None:
        op = value(3)
        assert await waits(await op) == 3
        assert [x async for x in waits_and_yields(await op)] == [3]
        assert await op.map(lambda x: list(yields(x))) == [3]

    trio.run(main)


@pytest.mark.parametrize("f", [waits, yields])
def test_a_pipeline_of_such_a_function(f: Any) -> None:
    """It is refused where it is declared."""
    text = refused(TypeError, lambda: pipeline(f))
    assert re.match(
        rf"pipeline at {HERE}: a call of <function (waits|yields) at .*> gives a (coroutine|generator)", text
    )


def test_a_host_body_of_such_a_function() -> None:
    """A generator would never write the output: it is refused where it is set."""

    def wrong() -> None:
        @kernel(cuda="__global__ void none(Tile<float, 1> y) {}")
        def none(y: Out[f32]) -> None: ...

        @none.host
        def _(y: Tile[f32]) -> Any:
            yield y

    text = refused(KernelArgumentError, wrong)
    assert "gives a generator and runs nothing. Write a plain function: def, with no await and no yield." in text


@pytest.mark.parametrize("call", ["then", "map", "host_map", "inspect"])
def test_stop_iteration_of_a_function(call: str) -> None:
    """It cannot leave a coroutine: what arrives says whose function raised it, and has it for its cause."""
    empty: Iterator[Any] = iter(())
    op: Any = getattr(value(1), call)(lambda _: next(empty))
    with pytest.raises(RuntimeError) as caught:
        op.sync()
    assert re.match(
        rf"the (closure of \.{call}|function of the host_map) at {HERE} raised StopIteration", str(caught.value)
    )
    assert isinstance(caught.value.__cause__, StopIteration)
    assert value(1).map(lambda _: next(empty, None)).sync() is None


def test_stop_iteration_of_a_host_body() -> None:
    """The same in a kernel's host body."""
    empty: Iterator[Any] = iter(())

    @kernel(cuda="__global__ void first(Tile<float, 1> y) {}")
    def first(y: Out[f32]) -> None: ...

    @first.host
    def _(y: Tile[f32]) -> None:
        y[...] = next(empty)

    with pytest.raises(RuntimeError) as caught:
        first(zeros((4,)).partition((4,))).sync()
    assert re.match(rf"the host body of kernel first, launched at {HERE} raised StopIteration", str(caught.value))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_a_pipeline_that_gives_no_op() -> None:
    """The message names the pipeline, where it was declared and where it was called."""

    def three(x: int) -> int:
        return x

    wrong: Any = three
    text = refused(TypeError, lambda: pipeline(wrong)(3).sync())
    assert re.match(rf"pipeline <pipeline three at {HERE}>, called at {HERE} gave int, no op\. Return an op", text)


def test_a_chain_of_closures_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that calls closures without end stops at a limit, and names the closure; with a larger limit it goes on."""
    monkeypatch.setenv("DAGPU_MAX_CLOSURES", "50")

    def forever(x: int) -> DeviceOp[int]:
        return value(x + 1).then(forever)

    text = refused(dagpu.DagpuError, lambda: value(0).then(forever).sync())
    assert re.match(rf"the closure of \.then at {HERE} would be closure number 51 of one run", text)
    assert text.endswith("set DAGPU_MAX_CLOSURES=500.")

    def to_hundred(x: int) -> DeviceOp[int]:
        return value(x) if x == 100 else value(x + 1).then(to_hundred)

    refused(dagpu.DagpuError, lambda: value(0).then(to_hundred).sync())
    monkeypatch.setenv("DAGPU_MAX_CLOSURES", "500")
    assert value(0).then(to_hundred).sync() == 100


def test_closures_over_several_stages_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that waits for the host in each round is as endless as one that does not."""
    monkeypatch.setenv("DAGPU_MAX_CLOSURES", "20")

    def forever(x: int) -> DeviceOp[int]:
        return value(x + 1).host_map(int).then(forever)

    refused(dagpu.DagpuError, lambda: value(0).then(forever).sync())


def test_a_masked_array() -> None:
    """Its mask would be lost: it is refused as an argument of `from_host`, and inside a pipeline."""
    masked = np.ma.masked_array(np.ones(4, f32), [False, True, False, False])
    text = refused(ShapeError, lambda: from_host(masked))
    assert re.match(rf"from_host at {HERE}: array is a masked array, and its mask would be lost\.", text)
    through = pipeline(lambda x: from_host(x).to_host())
    with pytest.warns(RuntimeWarning, match="got a value of type MaskedArray"):
        text = refused(ShapeError, lambda: through(masked).sync())
    assert "array is a masked array, and its mask would be lost. Say what stands in the masked places" in text
    for array in (from_host(masked.filled(0)).to_host().sync(), through(masked.filled(0)).sync()):
        assert array.tolist() == [1, 0, 1, 1]


def test_other_kinds_of_arrays(tmp_path: Path) -> None:
    """Of a matrix and of a memory-mapped array the elements are taken; what comes back is a plain array."""
    mapped = np.memmap(tmp_path / "numbers", f32, "w+", shape=(4,))
    mapped[:] = range(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # of np.matrix itself
        matrix = np.matrix([[1, 2], [3, 4]], f32)
    for array in (mapped, matrix, mapped[::2]):
        back = from_host(array).to_host().sync()
        assert type(back) is np.ndarray
        assert np.array_equal(back, np.asarray(array))


def test_an_op_given_to_numpy() -> None:
    """An array of one object would be no help: NotReadyError says how to get the contents."""
    op: Any = ones((3,))
    array: Any = np.ones(3)
    attempts: list[Callable[[], object]] = [
        lambda: np.asarray(op),
        lambda: np.asarray([op, op]),
        lambda: np.sum(op),
        lambda: np.allclose(op, 1),
        lambda: array + op,
        lambda: op * array,
        lambda: np.float32(2) * op,
    ]
    for wrong in attempts:
        text = refused(NotReadyError, wrong)
        assert re.match(rf"<Alloc built at {HERE}> is a description and has no contents\. Run it: op\.sync\(\)", text)
        assert text.endswith("a tensor's contents come with op.to_host().")


def test_await_outside_trio() -> None:
    """asyncio's loop, or a coroutine driven by hand: what is wanted, and the two ways out. The op is left whole."""
    op = ones((2,)).to_host()

    async def main() -> NDArray[f32]:
        return await op

    def by_hand() -> None:
        main().send(None)

    attempts: list[Callable[[], object]] = [lambda: asyncio.run(main()), by_hand]
    for wrong in attempts:
        text = refused(RuntimeError, wrong)
        assert re.match(rf"<ToHost built at {HERE}> was awaited at {HERE}, outside a trio task", text)
        assert "Use op.sync(), or await it in an async function that trio.run(...) runs." in text
    assert trio.run(main).tolist() == [1, 1]


# ---- declaring a kernel


def test_kernel_without_parentheses() -> None:
    """The def's name, its place, and what to write."""
    bare: Any = kernel

    def wrong() -> None:
        def scale(y: Out[f32], by: float) -> None: ...

        bare(scale)  # what `@kernel` above the def does

    text = refused(KernelArgumentError, wrong)
    assert re.match(rf"kernel 'scale', declared at {HERE}: @kernel has no CUDA source\. ", text)
    assert text.endswith("Write @kernel(cuda=...), with CUDA C++ source or the path of a .cu file.")


@pytest.mark.parametrize("source", ["__global__ void f(Tile<float, 1> y) {}", Path("f.cu")])
def test_kernel_with_its_source_by_position(source: object) -> None:
    """The source has a name to be given by."""
    bare: Any = kernel
    text = refused(KernelArgumentError, lambda: bare(source))
    assert re.match(rf"@kernel at {HERE} takes its arguments by name\. Write @kernel\(cuda=\.\.\.\)", text)


def test_kernel_with_empty_parentheses() -> None:
    """Python's own words are clear: they name the argument."""
    bare: Any = kernel
    assert "missing 1 required keyword-only argument: 'cuda'" in refused(TypeError, lambda: bare())


def test_unzip_into_the_wrong_number_of_names() -> None:
    """Python's own words are clear, and it is raised on the user's line."""
    op: Any = add(ones((4,)).partition((2,)), ones((4,)))

    def wrong() -> object:
        y, x, z = op.unzip()
        return y, x, z

    assert refused(ValueError, wrong) == "not enough values to unpack (expected 3, got 2)"
    assert issubclass(dagpu.KernelArgumentError, TypeError)


# ---- policies and pictures of them ----------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", [ListSchedule, RoundRobin])
@pytest.mark.parametrize("limit", ["3M", -1, 1.5])
def test_a_memory_limit_is_a_number_of_bytes(policy: Any, limit: object) -> None:
    """Refused where the policy is made, with an example."""
    with pytest.raises(
        ValueError, match=r"memory_limit is .* but a number of bytes is wanted. Write memory_limit=8 << 20"
    ):
        policy(memory_limit=limit)


def test_a_policy_is_an_object() -> None:
    """The class itself is a slip of the pen."""
    with pytest.raises(TypeError, match=r"policy is the class SingleStream.*Make one of the class: SingleStream\(\)"):
        zeros((4,)).schedule(SingleStream)  # type: ignore[arg-type]  # reason: that is the mistake


def test_explain_takes_the_costs_of_the_ops_own_policy() -> None:
    """What was declared for a kernel is what the makespan is made of."""
    slow = ListSchedule(costs=CostModel().declare({"add": 5e-3}))
    op = add(zeros((4,)).partition((2,)), ones((4,)))
    assert "Makespan, predicted: 5.0" in op.schedule(slow).explain()
    assert "Makespan, predicted: 5.0" not in op.explain()


def test_overlap_of_nothing_is_said_to_be_that() -> None:
    """A trace in which nothing ran, and a plan that allows no overlap."""
    with trace() as nothing:
        pass
    with pytest.raises(AssertionError, match="no run ended within the trace"):
        nothing.assert_overlap(0.5)
    with trace() as chain:
        zeros((4,)).sync()
    with pytest.raises(AssertionError, match=r"the plans allow no more than 0%.*op.explain\(\) says why"):
        chain.assert_overlap(0.5)
