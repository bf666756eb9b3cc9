"""Nobody gets a second owner, or a second writer, by a way of Python's: copies, threads, one array in several hands."""

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import trio

from dagpu import (
    CudaGraph,
    DeviceOp,
    Mesh,
    MovedError,
    OwnershipError,
    SharedTensor,
    Tensor,
    batching,
    current_device,
    cutoff,
    dup,
    each,
    expr,
    f32,
    fill,
    flow,
    from_host,
    full,
    ones,
    pipeline,
    shard,
    source,
    spawn,
    value,
    zeros,
    zip_ops,
)
from dagpu.common import critical
from dagpu.common.critical import BOOKKEEPING
from dagpu.ops.base import DeviceOp as Base
from dagpu.testing import storage_of
from tests.programs.arithmetic import scale

Op = DeviceOp[Any, Any, Any]
S = (2, 2)
PATIENCE = 30.0
"""Seconds after which a test calls it a hang."""

# ---- copies

HANDLES: dict[str, Callable[[], Any]] = {
    "Tensor": lambda: ones(S).sync(),
    "SharedTensor": lambda: ones(S).share().sync(),
    "TensorRef": lambda: ones(S).sync().borrow(),
    "TensorMut": lambda: ones(S).sync().borrow_mut(),
    "Partition": lambda: ones(S).sync().partition((1, 2)),
    "a Partition of a loan": lambda: ones(S).sync().borrow_mut().partition((1, 2)),
}
OPS: dict[str, Callable[[], Op]] = {
    "Value": lambda: value(ones(S).sync()),
    "Then": lambda: ones(S).then(dup),
    "Map": lambda: ones(S).map(lambda t: t),
    "Zip": lambda: zip_ops(ones(S)),
    "Unzip": lambda: zip_ops(ones(S), ones(S)).unzip()[0],
    "Shared": lambda: ones(S).shared(),
    "ToHost": lambda: ones(S).to_host(),
    "HostCall": lambda: value(1).host_map(float),
    "On": lambda: ones(S).on("host"),
    "Alloc": lambda: ones(S),
    "FromHost": lambda: from_host(np.ones(S, np.float32)),
    "Copy": lambda: dup(ones(S).share().sync()),
    "Launch": lambda: scale(ones(S).partition(S), 1.0, ones(S)),
    "GraphLaunch": lambda: ones(S).graph().launch(),
    "Source": lambda: source(1),
    "Cutoff": lambda: cutoff(value(1)),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a list": lambda x: copy.deepcopy([x]),
    "pickle": pickle.dumps,
    "an old pickle": lambda x: pickle.dumps(x, protocol=0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", HANDLES)
def test_a_handle_is_not_copied(kind: str, way: str) -> None:
    """Each kind is refused in every way, with where it was made, where that was, and a cure; it is as it was."""
    handle = HANDLES[kind]()
    with pytest.raises(OwnershipError) as caught:
        WAYS[way](handle)
    said = str(caught.value)
    assert said.count(f"{__file__}:") == 2
    assert "was to be copied or pickled at" in said
    assert handle.shape == S


@pytest.mark.host_only("it names the devices of its mesh")
@pytest.mark.parametrize("way", WAYS)
def test_a_value_on_several_devices_is_not_copied(way: str) -> None:
    """A copy of shards, or of the results of `each`, would be a second owner of the tensors."""
    mesh = Mesh(["host:0", "host:1"])
    shards = shard(ones(S), mesh).sync()
    results = each(lambda part, _: dup(part), shard(ones(S), mesh)).sync()
    for spread in (shards, results):
        with pytest.raises(OwnershipError, match=rf"was to be copied or pickled at {__file__}:\d+\. A copy would"):
            WAYS[way](spread)
    assert shards.to_host().sync().tolist() == np.ones(S).tolist()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", OPS)
def test_an_op_is_not_copied(kind: str, way: str) -> None:
    """An op of any kind refuses to be copied: it may own handles, and it keeps results."""
    op = OPS[kind]()
    assert type(op).__name__ == kind
    with pytest.raises(OwnershipError, match=r"was to be copied or pickled at .*Use the op itself") as caught:
        WAYS[way](op)
    assert f"pickled at {__file__}:" in str(caught.value)
    op.sync()


@pytest.mark.parametrize("kind", OPS)
def test_an_op_is_not_changed(kind: str) -> None:
    """An assignment to an attribute of an op of any kind is refused with its place, and so is its deletion, whether the
    op has that attribute or not."""
    op: Any = OPS[kind]()
    for name in ("origin", "anything"):
        for change in (partial(setattr, op, name, 1), partial(delattr, op, name)):
            with pytest.raises(AttributeError, match=rf"'{name}' of <.+ at {__file__}:\d+, .*Build a new object"):
                change()
    op.sync()


def scope() -> Any:
    tensor: Any = ones(S).sync()
    with CudaGraph.scope(current_device().stream()) as found:
        found.record(fill(tensor.borrow_mut(), 1.0))
    return found


OWNERS: dict[str, Callable[[], Any]] = {"CudaGraph": lambda: ones(S).graph(), "Scope": scope}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", OWNERS)
def test_what_captures_is_not_copied(kind: str, way: str) -> None:
    """A graph refuses to be copied, because its output would have two owners, and so does a scope. Both stay usable."""
    owner = OWNERS[kind]()
    assert type(owner).__name__ == kind
    with pytest.raises(OwnershipError, match=rf"was to be copied or pickled at {__file__}:\d+\. A copy would .*itself"):
        WAYS[way](owner)
    if kind == "CudaGraph":
        owner.launch().sync()
        assert (owner.take_output().to_host().sync() == 1).all()
    else:
        owner.graph.launch().sync()


def answered(items: tuple[int, ...]) -> DeviceOp[list[int], Any]:
    """Each request is its own answer."""
    return value(list(items))


@pytest.mark.parametrize("way", WAYS)
def test_a_feed_is_not_copied(way: str) -> None:
    """An open feed refuses to be copied, and so does what asks a service: a copy would take the other's values."""

    async def main() -> None:
        async with flow([1, 2]) as feed, batching(answered, most=1, within=0.0) as ask:
            for it, cure in ((feed, "open the flow once more"), (ask, "Pass the Ask itself")):
                with pytest.raises(OwnershipError, match=rf"at {__file__}:\d+.* pickled at {__file__}:\d+\. .*{cure}"):
                    WAYS[way](it)
            assert [number async for number in feed] == [1, 2]
            assert await ask(3) == 3

    trio.run(main)


@pytest.mark.parametrize("way", WAYS)
def test_a_pending_is_not_copied(way: str) -> None:
    """The `Pending` that `spawn` returns refuses to be copied: its result may own handles."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, ones(S))
            with pytest.raises(OwnershipError, match=rf"pickled at {__file__}:\d+\. .*Await the Pending itself"):
                WAYS[way](pending)
            assert (await pending).shape == S

    trio.run(main)


def loosely(x: Any) -> Any:
    return x


@pipeline
def found_by_name(x: Any) -> Op:
    """A pipeline of a module."""
    return dup(x)


loose: Any = expr(f32, f32)(lambda x, a: x * a)
NAMED: dict[str, Any] = {
    "a pipeline": found_by_name,
    "a kernel": scale,
    "a kernel with settings": (with_a_block := scale.block(32)),
    "an expression": loose,
    "a reduced expression": (total := loose.sum()),
    "an output of a kernel": (into_new := loosely(scale).new(S, S)),
    "a flow": (doubled := flow([1, 2]).map(lambda x: 2 * x)),
}
"""Descriptions that this module has under a name. All the same, some of them were declared without one."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", NAMED)
def test_a_description_is_copied_as_a_function_is(kind: str, way: str) -> None:
    """Its copies are itself, with its plans, and its pickle is its name in a module."""
    made = WAYS[way](NAMED[kind])
    if isinstance(made, list):
        (made,) = made
    assert (pickle.loads(made) if isinstance(made, bytes) else made) is NAMED[kind]


@pytest.mark.parametrize("kind", ["a pipeline", "a kernel", "an expression", "a flow"])
def test_a_description_that_no_module_has_is_not_pickled(kind: str) -> None:
    """The error says which one, where, and the cure; its copy is itself. cloudpickle sends a kernel by value."""
    made: dict[str, Callable[[], Any]] = {
        "a pipeline": lambda: pipeline(lambda x: dup(x)),
        "a kernel": lambda: scale.block(64),
        "an expression": lambda: expr(f32)(lambda x: x),
        "a flow": lambda: flow([1]),
    }
    local = made[kind]()
    assert copy.deepcopy(local) is local
    with pytest.raises(pickle.PicklingError, match=rf"pickled at {__file__}:\d+, .* Assign it to a name") as caught:
        pickle.dumps(local)
    assert repr(local) in str(caught.value)


def test_cloudpickle_sends_by_value_what_it_is_told_to() -> None:
    """Or what no module has: as it does with functions, for processes that cannot import the module."""
    cloudpickle = pytest.importorskip("cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(scale)) is scale
    for local in (scale.block(64), expr(f32)(lambda x: x)):
        sent = cloudpickle.loads(cloudpickle.dumps(local))
        assert sent is not local
        assert type(sent) is type(local)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        assert cloudpickle.loads(cloudpickle.dumps(loose)) is not loose
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_every_kind_of_op_is_tried() -> None:
    """The list above is that of all classes of ops."""
    found: set[str] = set()
    todo: list[type[Any]] = [Base]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if kind.__module__.startswith("dagpu.") and not kind.__subclasses__():
            found.add(kind.__name__)
    assert found == set(OPS)


def test_the_cures_work() -> None:
    """Each message says what to do instead, and that can be done."""
    tensor, shared = ones(S).sync(), ones(S).share().sync()
    assert dup(tensor.borrow()).sync() is not tensor
    assert storage_of(shared.clone()) is storage_of(shared)
    for handle in (shared, tensor.borrow(), tensor):
        array = handle.to_host().sync()
        assert pickle.loads(pickle.dumps(array)).tolist() == copy.copy(array).tolist() == [[1, 1], [1, 1]]
    tensor = ones(S).sync()
    tensor.borrow_mut().partition(S).unpartition()
    tensor.borrow_mut()
    whole = tensor.partition(S).unpartition()
    assert dup(whole.borrow()).sync().shape == S


# ---- the last holder of a shared tensor


class Watched:
    """A lock that tells when somebody comes to it."""

    def __init__(self, lock: Any, told: Callable[[], None]) -> None:
        self.lock = lock
        self.told = told

    def acquire(self) -> None:
        self.told()
        self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OwnershipError as error:
        return error


@pytest.mark.parametrize("more", [lambda s: s.clone(), lambda s: s.reshape((4,))], ids=["clone", "reshape"])
def test_an_owner_has_no_sharer_beside_it(more: Callable[[Any], Any]) -> None:
    """While one thread is about to make one more handle, another asks for the tensor back: it waits, and is refused."""
    shared: Any = ones(S).share().sync()
    found_alive, go_on, moved = threading.Event(), threading.Event(), threading.Event()
    held = SharedTensor._unmoved_state  # noqa: SLF001  # the test stops a thread there

    def slowly(handle: Any) -> Any:
        state = held(handle)
        if threading.current_thread().name.startswith("cloning") and not found_alive.is_set():
            found_alive.set()
            assert go_on.wait(PATIENCE)
        return state

    def told() -> None:
        if found_alive.is_set():
            moved.set()

    with (
        patch.object(critical, "BOOKKEEPING", Watched(BOOKKEEPING, told)),
        patch.object(SharedTensor, "_unmoved_state", slowly),
        ThreadPoolExecutor(1, "cloning") as cloning,
        ThreadPoolExecutor(1, "unwrapping") as unwrapping,
    ):
        clone = cloning.submit(outcome, lambda: more(shared))
        assert found_alive.wait(PATIENCE)
        owner = unwrapping.submit(outcome, shared.try_unwrap)
        owner.add_done_callback(lambda _: moved.set())
        assert moved.wait(PATIENCE)  # it is at the gate, or through: then it is too late for the other
        go_on.set()
        one, other = clone.result(PATIENCE), owner.result(PATIENCE)
    assert isinstance(one, SharedTensor) != isinstance(other, Tensor)


def test_a_sharer_comes_too_late_for_an_owner() -> None:
    """A thread that asks for one more handle while the last one is taken back waits, and gets a `MovedError`."""
    shared: Any = ones(S).share().sync()
    at_the_gate = threading.Event()
    watched = Watched(BOOKKEEPING, at_the_gate.set)
    with patch.object(critical, "BOOKKEEPING", watched), ThreadPoolExecutor(1) as pool:
        with BOOKKEEPING:
            clone = pool.submit(outcome, shared.clone)
            assert at_the_gate.wait(PATIENCE)
            tensor = shared.try_unwrap()
        assert isinstance(clone.result(PATIENCE), MovedError)
    assert fill(tensor, 3).to_host().sync()[0, 0] == 3


def test_owners_and_sharers_in_many_threads() -> None:
    """However threads come to it, there is one owner and nobody else, or nobody owns."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(200):
            shared: Any = full(S, 1).share().sync()
            both = threading.Barrier(2)

            def meet(f: Callable[[], Any], both: threading.Barrier = both) -> Any:
                both.wait(PATIENCE)
                return outcome(f)

            clone, owner = pool.submit(meet, shared.clone), pool.submit(meet, shared.try_unwrap)
            one, other = clone.result(PATIENCE), owner.result(PATIENCE)
            assert isinstance(one, SharedTensor) != isinstance(other, Tensor)


# ---- arrays that several have


def is_read_only(array: Any) -> bool:
    """Return True if the array is read-only and its copy is writable."""
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 9
    written = array.copy()
    written[...] = 9
    return bool((written == 9).all())


SHARED: dict[str, Callable[[], Op]] = {
    "to_host": lambda: ones(S).to_host(),
    "host_map": lambda: value(1).host_map(lambda _: np.ones(S)),
    "map": lambda: value(1).map(lambda _: np.ones(S)),
    "in a tuple": lambda: zip_ops(ones(S).to_host(), value(1)),
    "in a dict": lambda: ones(S).to_host().map(lambda a: {"a": [a]}),
}


def arrays_in(found: Any) -> Any:
    while not isinstance(found, np.ndarray):
        found = next(iter(found.values())) if isinstance(found, dict) else found[0]
    return found


@pytest.mark.parametrize("name", SHARED)
def test_what_shared_remembers_is_read_only(name: str) -> None:
    """For whoever comes, in the run that makes it and in later ones; what one consumer does changes nothing for
    others."""
    seen: list[Any] = []
    op = SHARED[name]().shared()
    zip_ops(op, op.map(seen.append), op.host_map(seen.append)).sync()
    seen += [op.sync(), op.sync()]
    assert len(seen) == 4
    for found in seen:
        assert is_read_only(arrays_in(found))
        assert (arrays_in(found) == 1).all()


def make(_: int) -> Any:
    """Lists and dicts."""
    return [1, {"a": [2]}]


@pytest.mark.parametrize("later", [False, True])
def test_handles_that_shared_remembers_are_each_takers_own(later: bool) -> None:
    """Each use in one run gets a handle of its own, in whatever stage its value comes: one that is moved leaves the
    others alone."""
    op: Op = (ones(S).to_host().then(from_host) if later else ones(S)).shared()
    takers: list[Any] = [*zip_ops(op, op, op.map(lambda x: x)).sync(), op.sync()]
    assert len({id(taker) for taker in takers}) == 4
    del op
    while takers:
        last = takers.pop()
        if takers:
            with pytest.raises(OwnershipError, match="more handle"):
                last.try_unwrap()
        else:
            assert fill(last.try_unwrap(), 3).sync().shape == S
        del last


@pytest.mark.parametrize("later", [False, True])
def test_lists_that_shared_remembers_are_each_takers_own(later: bool) -> None:
    """A taker who adds to his adds to nobody else's."""
    op: Op = (value(1).host_map(make) if later else value(1).map(make)).shared()
    takers: list[Any] = [*zip_ops(op, op, op.map(lambda x: x)).sync(), op.sync(), op.sync()]
    for taker in takers:
        taker.append(3)
        taker[1]["a"].append(4)
    assert takers == [[1, {"a": [2, 4]}, 3]] * 5
    assert op.sync() == [1, {"a": [2]}]


def test_a_sole_taker_may_write() -> None:
    """Whoever runs the op himself: by sync, by await, one component each of an unzip."""

    async def awaited() -> Any:
        return await ones(S).to_host()

    left, right = zip_ops(ones(S).to_host(), zeros(S).to_host()).unzip()
    for array in (ones(S).to_host().sync(), trio.run(awaited), left.sync(), right.sync()):
        array[...] = 9
        assert (array == 9).all()


def test_what_a_pending_gives_is_read_only() -> None:
    """Each who awaits it gets the same, and none can write it, however often it is awaited."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            pending = spawn(nursery, zip_ops(ones(S).to_host(), value(1)).map(list))
            first, second = await pending, await pending
        assert is_read_only(first[0])
        assert is_read_only(second[0])
        first.append(1)
        assert len(second) == 2

    trio.run(main)


def test_the_sole_taker_of_a_pending_may_write() -> None:
    """A result that owns handles goes to one alone, arrays and all."""

    async def main() -> Any:
        async with trio.open_nursery() as nursery:
            return await spawn(nursery, zip_ops(ones(S).to_host(), ones(S)))

    array, tensor = trio.run(main)
    array[...] = 9
    assert tensor.shape == S


def test_an_array_of_the_users_stays_as_it_was() -> None:
    """The kept value is a view, so the user can still write his own array."""
    mine = np.ones(S)
    op = value(mine).shared()
    assert is_read_only(op.sync())
    mine[...] = 5
    assert mine.flags.writeable
    assert (op.sync() == 5).all()
