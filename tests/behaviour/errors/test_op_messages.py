"""Ops taken for values: the message names the cure."""

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
    DeviceOp,
    KernelArgumentError,
    NotReadyError,
    Out,
    ShapeError,
    Tile,
    dup,
    f32,
    from_host,
    kernel,
    ones,
    pipeline,
    value,
    zeros,
    zip_ops,
)
from tests.behaviour.errors.message_kernels import refused

HERE = re.escape(__file__) + r":\d+"


def test_a_map_whose_closure_gives_an_op() -> None:
    """Nobody would run it: the cure is `.then`."""
    text = refused(TypeError, lambda: zeros((4,)).map(lambda t: dup(t)).sync())
    assert re.match(rf"the closure of \.map at {HERE} returned an op, which no run would execute. Use \.then\.", text)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda op: op, "x is <ones((2,)) at"),
        (lambda op: (1, op), "x contains <ones((2,)) at"),
        (lambda op: [[op]], "x contains <ones((2,)) at"),
        (lambda op: {"a": {"b": op}}, "x contains <ones((2,)) at"),
    ],
)
def test_an_op_in_a_value(wrong: Callable[[Any], object], says: str) -> None:
    """An op is no value: it would stay unrun, wherever in the value it is."""
    op = ones((2,))
    text = refused(TypeError, lambda: value(wrong(op)))
    assert re.match(rf"value at {HERE}: {re.escape(says)}", text)
    assert text.endswith("which no run would execute. Use the op itself; zip_ops(a, b) makes one op of several.")
    assert zip_ops(op, value(1)).last().sync() == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda: ones((2,)).map(lambda t: (1, dup(t))),
            "returned a tuple that contains an op, which no run would execute.",
        ),
        (lambda: value(1).map(lambda _: [ones((2,)), ones((2,))]), "returned a list that contains an op, which no run"),
        (
            lambda: value(1).map(lambda _: {"a": ones((2,))}),
            "returned a dict that contains an op, which no run would execute.",
        ),
        (lambda: value(1).host_map(lambda _: ones((2,))), "returned an op, which no run would execute. Use .then."),
        (
            lambda: value(1).host_map(lambda _: (1, ones((2,)))),
            "returned a tuple that contains an op, which no run would",
        ),
    ],
)
def test_an_op_that_a_function_gives(wrong: Callable[[], DeviceOp[Any]], says: str) -> None:
    """An op inside the result of `map`, or in the result of `host_map`, is not run either."""
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
    """If only the call shows that a function is asynchronous, the run is refused.

    Python does not warn of a coroutine that was never awaited.
    """
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
        rf"pipeline at {HERE}: a call of <function (waits|yields) at .*> returns a (coroutine|generator)", text
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
    """A `StopIteration` that a kernel's host body raises is reported as an error of that body."""
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
    assert re.match(
        rf"pipeline <pipeline three at {HERE}>, called at {HERE} returned int, which is not an op\. Return an op", text
    )


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
    assert "array is a masked array, and its mask would be lost. Fill the masked elements first" in text
    for array in (from_host(masked.filled(0)).to_host().sync(), through(masked.filled(0)).sync()):
        assert array.tolist() == [1, 0, 1, 1]


def test_other_kinds_of_arrays(tmp_path: Path) -> None:
    """The elements of a matrix and of a memory-mapped array are taken; what comes back is a plain array."""
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
    attempts: list[Callable[[], object]] = [
        lambda: np.asarray(op),
        lambda: np.asarray([op, op]),
        lambda: np.sum(op),
        lambda: np.allclose(op, 1),
    ]
    for wrong in attempts:
        text = refused(NotReadyError, wrong)
        assert re.match(
            rf"<ones\(\(3,\)\) at {HERE}> is a description and has no contents\. Run it: op\.sync\(\)", text
        )
        assert text.endswith("a tensor's contents come with op.to_host().sync().")


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
        assert re.match(rf"<to_host at {HERE}> was awaited at {HERE}, outside a trio task", text)
        assert "Use op.sync(), or await it in an async function that trio.run(...) runs." in text
    assert trio.run(main).tolist() == [1, 1]
