"""Law of redoing: whatever an engine does to the tasks of a run, the result has the same bits."""

import io
import pickle
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpu import (
    BorrowError,
    CaptureError,
    ClusterError,
    ClusterSecurityError,
    CostModel,
    DeviceError,
    MovedError,
    NoDeviceError,
    Tensor,
    bf16,
    checkpoint,
    device,
    from_host,
    full,
    i32,
    plan_of,
    value,
    zeros,
    zip_ops,
)
from dagpu.backends.kernel_text.launch_params import pack
from dagpu.cluster import tasks as lineage
from dagpu.cluster import tasks as task_lists
from dagpu.cluster.backend import ClusterBackend, ClusterRun, RemoteDriver
from dagpu.cluster.blobs import Decoder, Encoder, WriteCheckpoint
from dagpu.cluster.tasks import RemoteMemory
from dagpu.cluster.worker import PartRunner, PartValue, Pickled, StoredArray, load_cell
from dagpu.handles.device_handles import LibraryBody
from dagpu.plans.policies import SingleStream
from dagpu.runtime.device_lookup import add_nodes, find_device, remove_nodes
from dagpu.testing import HOST, Buffer, Cell, Form, HostCall, Launch, Program, Role, live_state
from dagpu.tracing.tracer import Tracer
from tests.conftest import DEEP
from tests.programs.meshes import Scatter
from tests.programs.named_kernels import affine, step
from tests.programs.trials import random_dag
from tests.simulated.gpu import LIMITS
from tests.unit.cluster.adversary import Adversary, every_choice
from tests.unit.cluster.adversary_cluster import WORKERS, cluster, interpreter, sent


@settings(max_examples=40)
@given(st.integers(0, 999), st.integers(0, 99), st.sampled_from([1e-9, 1e-5, 1.0]))
def test_any_engine_gives_the_same_bits(dag: int, seed: int, seconds: float) -> None:
    """Random DAGs in parts of any size, on workers that die, with tasks that are moved, delayed and redone: three
    times, so that workers find plans that they have."""
    wanted = random_dag(dag, 12).sync()
    with cluster(random.Random(seed).randrange, seconds) as (backend, engine), interpreter(backend, seed):
        for _ in range(3):
            engine.kills, engine.redone = 2, 2
            got = random_dag(dag, 12).sync()
            assert [*map(bytes, got)] == [*map(bytes, wanted)]


@pytest.mark.deep
@pytest.mark.parametrize(("kills", "redone"), [(1, 0), (0, 1)])
def test_every_order_of_a_small_graph_gives_the_same_bits(kills: int, redone: int) -> None:
    """Orders and places of a run of six parts, one after the other, with one worker that dies at any point, or one part
    that is run again at any."""
    most, seen = 300 if DEEP else 50, 0
    with cluster(lambda n: 0, 1e-9) as (backend, _):
        tasks, memory = _small_run(backend)
    runner = PartRunner()
    for choose in every_choice(most):
        engine = Adversary(WORKERS, choose, sent, kills, redone, runner)
        run = ClusterRun("run", tasks, list(memory), engine)
        engine.start(run)
        assert not run.failures()
        found = [x for x in run.memory if isinstance(x, np.ndarray)]
        assert [x.tolist() for x in found if x.dtype == np.int32][-2:] == [[4, 7, 10, 13], [13, 22, 31, 40]]
        seen += 1
    assert seen == most


def _small_run(backend: ClusterBackend) -> tuple[Any, list[Any]]:
    """The tasks of an op that changes a tensor twice on two workers, and its memory before."""
    x = from_host(np.arange(1, 5, dtype=np.int32))
    first = step(x.partition((4,)), 3, 1).first().unpartition().on("w0/host:0").shared()
    second = affine(zeros((4,), np.int32).partition((4,)), first, 3, 1).first().unpartition().on("w1/host:0")
    op = zip_ops(first.to_host(), second.to_host())
    tracer = Tracer(op, backend.mesh.devices[0], Scatter(backend.mesh, 1), find_device)
    stage = tracer.stage()
    memory: list[Any] = [None] * len(stage.program.buffers)
    for buffer, held in stage.inputs.items():
        memory[buffer] = held
    tracer.abandon("it was only traced")
    return backend.tasks_of(stage.program), memory


@pytest.mark.parametrize("seed", range(4))
def test_a_lent_tensor_is_changed_once_however_often_parts_are_run(seed: int) -> None:
    """A kernel that is not idempotent writes a lent tensor on a worker. Parts are redone and workers die, and after
    each run the tensor has been changed once more."""
    with cluster(random.Random(seed).randrange, 1e-9) as (backend, engine), interpreter(backend, seed):
        t = from_host(np.zeros(4, np.int32)).on("w1/host:0").sync()
        expected = 0
        for _ in range(4):
            engine.kills, engine.redone = 1, 2
            step(t.borrow_mut().partition((4,)), 2, 1).sync()
            expected = expected * 2 + 1
            assert t.borrow().to_host().sync().tolist() == [expected] * 4


def test_a_shared_tensor_of_a_worker_gets_its_owner_back() -> None:
    """No library of this process has been given its memory, so nothing is to wait for."""
    with cluster(lambda n: 0, 1e-9) as (backend, _), interpreter(backend, 0):
        owned = from_host(np.zeros(4, np.int32)).on("w1/host:0").sync().share().try_unwrap()
        step(owned.borrow_mut().partition((4,)), 2, 1).sync()
        assert owned.borrow().to_host().sync().tolist() == [1] * 4


def test_runs_take_the_locks_of_this_process() -> None:
    """A tensor that is lent for writing is not read by the same run, an op is not used twice, and one that is shared
    runs once in a run and not again in the next: on a cluster as on a device of this process."""

    def errors_at(place: str) -> list[str]:
        t: Any = from_host(np.zeros(4, np.int32)).on(place).sync()
        written: Any = step(t.borrow_mut().partition((4,)), 2, 1).first()
        twice: Any = from_host(np.zeros(4, np.int32)).on(place)
        found = []
        for op in (zip_ops(written, t.borrow().to_host()), zip_ops(twice, twice)):
            with pytest.raises((BorrowError, MovedError)) as raised:
                op.sync()
            found.append(type(raised.value).__name__)
        assert t.borrow().to_host().sync().tolist() == [0] * 4
        return found

    with cluster(lambda n: 0, 1e-9) as (backend, engine):
        here = errors_at("host:0")
        with interpreter(backend, 0):
            assert errors_at("w1/host:0") == here
            shared = step(from_host(np.zeros(4, np.int32)).partition((4,)), 2, 1).first().unpartition().shared()
            engine.executed = 0
            both = [x.tolist() for x in zip_ops(shared.to_host(), shared.to_host()).sync()]
            once = engine.executed
            assert both == [[1] * 4] * 2
            shared.to_host().sync()
            assert engine.executed == once + 1


def test_a_failed_run_leaves_lent_tensors_as_they_were() -> None:
    """The kernel wrote its copy, a function behind it raises: nothing has changed, and the tensor is usable."""

    def fail(_: object) -> None:
        raise ValueError("no such luck")

    with cluster(lambda n: 0, 1e-9) as (backend, _), interpreter(backend, 0):
        t = from_host(np.zeros(4, np.int32)).on("w1/host:0").sync()
        written = step(t.borrow_mut().partition((4,)), 2, 1).first()
        with pytest.raises(ValueError, match="no such luck") as raised:
            zip_ops(written, value(1).host_map(fail)).sync()
        assert any("test_any_engine.py" in note for note in raised.value.__notes__)
        assert t.borrow().to_host().sync().tolist() == [0] * 4


def test_a_checkpoint_is_read_where_it_is_needed(tmp_path: Any) -> None:
    """The result of a checkpoint depends on the file alone: all that was made before may be lost, and even be unable to
    run again. Its contents do not come to this process."""
    path = tmp_path / "weights.npy"
    with cluster(lambda n: 0, 1.0) as (backend, engine), interpreter(backend, 1):
        saved = checkpoint(from_host(np.arange(6, dtype=np.int32)), path).sync()
        needed = engine.lineage_of(saved)
        assert len(needed) == 1
        engine.lose_all()
        assert saved.to_host().sync().tolist() == [*range(6)]
    assert np.load(path).tolist() == [*range(6)]
    again: Tensor[np.int32] = checkpoint(from_host(np.arange(3, dtype=np.int32)), path).sync()
    assert again.to_host().sync().tolist() == [0, 1, 2]


_KEPT: dict[str, Any] = {
    "C order": np.arange(6, dtype=np.float32).reshape(2, 3),
    "Fortran order": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "every second": np.arange(12, dtype=np.int64).reshape(2, 6)[:, ::2],
    "backwards": np.arange(6, dtype=np.int16)[::-1],
    "without axes": np.array(3.0),
    "without elements": np.zeros((0, 3), np.uint8),
    "bool": np.array([True, False, True]),
    "complex": np.array([1 + 2j], np.complex64),
    "f16": np.arange(3, dtype=np.float16),
    "bf16": np.arange(3).astype(bf16),
}


@pytest.mark.parametrize("kind", _KEPT)
@pytest.mark.parametrize("computed", [False, True], ids=["from a tensor", "from a function"])
def test_a_checkpoint_keeps_any_array(kind: str, computed: bool, tmp_path: Path) -> None:
    """Of any order, strides, rank and element type, also on a cluster that takes no code, and when its value is lost:
    the file is read as it was written, on a worker and on a device of this process."""
    array, path = _KEPT[kind], tmp_path / "x.npy"

    def op() -> Any:
        source: Any = from_host(array)
        return checkpoint(source.to_host().then(from_host) if computed else source, path)

    with cluster(lambda n: 0, 1.0, code=False) as (backend, engine), interpreter(backend, 1):
        saved = op().sync()
        assert len(engine.lineage_of(saved)) == 1
        engine.lose_all()
        found = [saved.to_host().sync()]
    found.append(op().sync().to_host().sync())
    element = WriteCheckpoint(str(path))(array)
    stored = np.load(path, mmap_mode="r")
    found.append(StoredArray(str(path), stored.offset, element, array.shape).open())
    for each in found:
        assert (each.dtype, each.shape, each.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("kind", _KEPT)
def test_an_array_in_a_part_needs_no_pickle_of_numpy(kind: str) -> None:
    """Arrays and numbers in a blob come back as they were, by the bytes of their elements: the pickles of NumPy's
    versions and protocols name different functions."""
    array: Any = _KEPT[kind]
    encoder = Encoder(on_host=True, code=False)
    for content in (array, array.reshape(-1)[0] if array.size else array.dtype.type(1)):
        call = HostCall(WriteCheckpoint("x.npy"), content, Cell(0), (), (0,), 0, None)
        blob = encoder.encode(Program(("host:0",), (Buffer(0, HOST, Role.OUTPUT),), (call,), (SingleStream(),), (0,)))
        assert b"numpy" not in blob.content
        (read,) = Decoder().decode(blob.content, {}).instructions
        found: Any = cast(HostCall, read).argument
        assert type(found) is type(content)
        assert (found.dtype, found.shape, found.tobytes()) == (content.dtype, content.shape, content.tobytes())


def test_a_long_history_warns_once_for_each_place(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that lead to a tensor are counted from run to run, as the engine would redo them. From the next one
    after `MOST_PARTS` on the line that uses the tensor is named; a checkpoint is silent, and cuts the history."""
    monkeypatch.setattr(task_lists, "MOST_PARTS", 6)
    monkeypatch.setattr(lineage, "MOST_PARTS", 6)
    with cluster(lambda n: 0, 1e-9) as (backend, engine), interpreter(backend, 0):
        t = from_host(np.zeros(4, np.int32)).on("w1/host:0").sync()
        for _ in range(5):
            step(t.borrow_mut().partition((4,)), 2, 1).sync()
        assert _history(t) == len(engine.lineage_of(t)) == 6
        seen = [_used(t), _used(t)]
        assert seen == [[], []]
        step(t.borrow_mut().partition((4,)), 2, 1).sync()
        (warning,), again = _used(t), _used(t)
        assert "more than 6 parts" in str(warning.message)
        assert Path(warning.filename).name == "test_any_engine.py"
        assert not again
        t = checkpoint(t, tmp_path / "t.npy").sync()
        assert _history(t) == len(engine.lineage_of(t)) == 1


def _history(t: Any) -> int:
    return cast(RemoteMemory, live_state(t).storage.memory).lineage


def _used(t: Any) -> list[warnings.WarningMessage]:
    """Use a tensor, and return the warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        t.borrow().to_host().sync()
    return found


def test_what_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without code: functions of host_map, host bodies and libraries, before anything is sent. Always: handles as
    arguments of functions, functions that cannot be pickled, memory of this process, captured graphs, streams."""
    lock = __import__("threading").Lock()

    def locked(x: object) -> object:
        with lock:
            return x

    with cluster(lambda n: 0, 1.0, code=False) as (backend, _), interpreter(backend, 1):
        assert zeros((2,)).to_host().sync().tolist() == [0, 0]
        started = list[ClusterRun]()
        monkeypatch.setattr(backend.engine, "start", started.append)
        for op in (value(1).host_map(str), step(zeros((4,), np.int32).partition((4,)), 1, 1).first()):
            with pytest.raises(ClusterSecurityError, match=r"test_any_engine|named_kernels.*code=False"):
                op.sync()
        assert not started
        driver = RemoteDriver(backend.engine, "w0", "cuda:0", code=False)
        with pytest.raises(ClusterSecurityError, match=r"a library's kernel on w0/cuda:0.*code=False"):
            driver.scratch_bytes(cast(LibraryBody, object()), ())
    with cluster(lambda n: 0, 1.0) as (backend, _), interpreter(backend, 1):
        with pytest.raises(ClusterError, match=r"to_host\(\)\.host_map"):
            zeros((2,)).host_map(lambda t: t).sync()
        with pytest.raises(ClusterError, match="cannot be sent to a cluster"):
            value(1).host_map(locked).sync()
        with pytest.raises(DeviceError, match="Go from one to the other through an array"):
            zip_ops(zeros((2,)).on(device("host:1")).to_host(), zeros((2,)).to_host()).sync()
        with pytest.raises(ClusterError, match="chooses the streams"):
            device("w0/host:0").stream()
        with pytest.raises((CaptureError, ClusterError), match=r"not captured|chooses the streams"):
            zeros((2,)).graph()
        with pytest.raises(NoDeviceError, match="has no device w0/host:7"):
            device("w0/host:7")
    with pytest.raises(NoDeviceError, match="no open cluster"):
        device("w0/host:0")


def test_values_run_no_code_until_they_are_used() -> None:
    """Arrays, numbers and texts travel as they are. Any other value is a pickle, which is loaded where it is used, and
    never by a client that takes no code."""
    exact = PartValue({}, {(0, 1): np.arange(3), (1, 1): "text", (2, 1): 7, (3, 1): None, (4, 1): 1 << 80, (5, 1): {1}})
    found = sent(sent(exact)).cells
    assert found[0, 1].tolist() == [0, 1, 2]
    assert [found[at, 1] for at in (1, 2, 3)] == ["text", 7, None]
    assert [type(found[at, 1]) for at in (4, 5)] == [Pickled, Pickled]
    assert [load_cell(found[at, 1]) for at in (4, 5)] == [1 << 80, {1}]
    with cluster(lambda n: 0, 1.0) as (backend, _), interpreter(backend, 1):
        assert value(1).host_map(lambda x: {x}).sync() == {1}
    with cluster(lambda n: 0, 1.0, code=False) as (backend, _), interpreter(backend, 1):
        tasks = backend.tasks_of(plan_of(zeros((2,)).to_host()).program)
        (group,) = tasks.fetched()
        values = {group: PartValue({}, dict.fromkeys(tasks.tasks[group[0]].exports, Pickled(b"never loaded")))}
        with pytest.raises(ClusterSecurityError, match=r"a result of the op, which a worker has sent.*code=False"):
            tasks.settle([None] * len(tasks.program.buffers), {}, values)


@pytest.mark.parametrize("seed", range(3))
def test_parts_for_gpus_launch_what_the_op_launches(seed: int) -> None:
    """A worker with a GPU packs the parameters of each kernel, scalars among them, as this process would."""
    engine = Adversary(WORKERS, lambda n: 0, sent, 0, 0)
    backend = ClusterBackend({each: ["cuda:0"] for each in WORKERS}, engine, CostModel(), 1e-9)
    add_nodes(backend.nodes, backend)
    try:
        with interpreter(backend, seed):
            program = plan_of(random_dag(seed, 12)).program
        tasks = backend.tasks_of(program).tasks
        decoder = Decoder()
        parts = [decoder.decode(task.blob.content, task.blob.codes.content) for task in tasks]
    finally:
        remove_nodes(backend.nodes)

    def forms(instructions: Sequence[Any]) -> list[str]:
        launches = [pack(each, LIMITS) for each in instructions if type(each) is Launch]
        return sorted(
            [repr((each.parameters, each.form.grid, each.form.block)) for each in launches if each is not None]
        )

    assert forms([each for part in parts for each in part.instructions]) == forms(program.instructions)


def test_a_part_names_no_class_but_those_of_plans() -> None:
    """A blob that names anything else, or whose code is not what it names, is refused before it is loaded."""
    with pytest.raises(ClusterSecurityError, match=r"names posix\.system|names os\.system|no plan data"):
        Decoder().decode(pickle.dumps(__import__("os").system), {})
    with cluster(lambda n: 0, 1.0) as (backend, _):
        op = value(1).host_map(str)
        with interpreter(backend, 1):
            (task,) = backend.tasks_of(plan_of(op).program).tasks
        with pytest.raises(ClusterSecurityError, match="not what the part names"):
            Decoder().decode(task.blob.content, dict.fromkeys(task.blob.codes.content, b"other"))
        with pytest.raises(ClusterError, match="has format 0"):
            Decoder().decode(pickle.dumps((0, (), (), [])), {})


def test_members_of_enumerations_are_written_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is read on a worker with any release of Python: before 3.11.4 pickle names `getattr` for a member."""
    for kind in (Role, Form):
        monkeypatch.setattr(kind, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    with cluster(lambda n: 0, 1.0) as (backend, _), interpreter(backend, 1):
        program = plan_of(affine.new((4,), (4,))(full((4,), 2, i32), 1, 2)).program
        tasks = backend.tasks_of(program).tasks
        parts = [Decoder().decode(task.blob.content, task.blob.codes.content) for task in tasks]
    launched = [each for part in parts for each in part.instructions if type(each) is Launch]
    assert [[param.form for param in each.kernel.params] for each in launched] == [[p.form for p in affine.spec.params]]
    assert {type(buffer.role) for part in parts for buffer in part.buffers} == {Role}


@pytest.mark.parametrize(("kind", "name"), [("Launch", "args"), ("Role", "OTHER"), ("Nothing", "X")])
def test_a_member_that_does_not_exist_is_refused(kind: str, name: str) -> None:
    """As any other reference that no plan has."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    marker = object()
    pickler.persistent_id = lambda each: ("member", "dagpu.plans.program", kind, name) if each is marker else None  # type: ignore[method-assign]  # an instance may have its own
    pickler.dump(marker)
    with pytest.raises(ClusterSecurityError, match="unknown reference"):
        Decoder().decode(file.getvalue(), {})
