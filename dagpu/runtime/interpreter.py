"""Interpreters, which execute ops, and the choice of the current one."""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, cast, final

import trio
from sniffio import thread_local as async_library

from dagpu.backends.protocol import Run
from dagpu.common.compiled import MISS, teach
from dagpu.common.containers import Composite
from dagpu.common.critical import CURRENT_THREAD, OUTSIDE, Section, ThreadState, begin_section, end_section
from dagpu.common.env_vars import DEVICE, DIRECT, SPIN_US, VERIFY, raw_value, variables
from dagpu.common.errors import NoDeviceError
from dagpu.common.places import Origin, describe, here, leaves_run, start_of_run, without_our_frames
from dagpu.common.wrong_arguments import add_call_place, check_count, check_flag, check_function, wrong_argument
from dagpu.handles import SharedTensor, TensorRef
from dagpu.handles.device_handles import Device, Stream
from dagpu.handles.handle_state import Holders
from dagpu.ops.base import RUNNER, DeviceOp, check_op, check_stream
from dagpu.ops.compose import On, Pure, Then, Value
from dagpu.ops.graph import Captured, CudaGraph, GraphLaunch, Scope
from dagpu.plans.cost_model import CostModel
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.mesh import chosen_mesh
from dagpu.plans.placing import over_mesh, spreads
from dagpu.plans.plan import Plan
from dagpu.plans.policies import SchedulingPolicy
from dagpu.plans.report import explain
from dagpu.runtime import device_lookup, execute, graph_capture
from dagpu.runtime.device_lookup import chosen_device, current_device, find_device
from dagpu.runtime.execute import outside_trio, recording_block, refuse_nested, warn_in_task
from dagpu.runtime.loaded_plan import Settings
from dagpu.runtime.plan_lookup import direct_call, plans
from dagpu.runtime.run_call import settle
from dagpu.runtime.trio_waits import TrioWaits, await_steps, await_user, protected
from dagpu.runtime.waits import BlockingWaits, block_until_done, drive
from dagpu.tracing.results import CompositeOf, FirstUse, LeafMemory, NewTensor, SameValue, TupleOf

_T = TypeVar("_T")
_RUN: Final = "an op was run"
_ABOVE_RUN: Final = 3
"""The frames between `start_of_run` and the caller of `DeviceOp.sync`: the runner, and `sync` itself."""
_blocking: Final = BlockingWaits()
_DEVICE, _DIRECT, _SPIN, _VERIFY = DEVICE.key, DIRECT.key, SPIN_US.key, VERIFY.key


class Interpreter(Protocol):
    """Executes ops. `StreamInterpreter` is the default.

    An interpreter that also has the methods `graph`, `explain`, `plan_of` and `scope` of `StreamInterpreter` makes
    graphs and plans too. While an interpreter without them is in use, these calls raise.
    """

    async def run(self, op: DeviceOp[_T, Any, Any], /) -> _T: ...
    def run_sync(self, op: DeviceOp[_T, Any, Any], /) -> _T: ...


class PlanningInterpreter(Interpreter, Protocol):
    """An interpreter that also plans and captures. With others `graph()`, `explain()`, `plan_of` and `scope` raise."""

    def graph(self, op: DeviceOp[_T, Any, Any], stream: Stream | None, /) -> CudaGraph[_T]: ...
    def explain(self, op: DeviceOp[Any, Any, Any], /) -> str: ...
    def plan_of(self, op: DeviceOp[Any, Any, Any], /) -> Plan: ...
    def scope(self, stream: Stream, /) -> AbstractContextManager[Scope]: ...


@final
class StreamInterpreter:
    """Traces, schedules and verifies ops, and replays their plans on a backend's streams and events.

    Args:
        device: the device for ops that are placed on none; by default the current device.
        policy: the scheduling policy, which places ops on streams; by default `ListSchedule(4)`.
        verify: true to prove every plan before it runs; by default true unless DAGPU_VERIFY is 0. This costs about as
            much as scheduling.
        graph_from: the run of one plan, counted from 1, from which on it is launched as one CUDA graph; None for never.
            Making a graph costs about as much as launching its kernels twice. Pipelines have their own number.
        on_plan: called with an op and each new plan for it, one for each stage, before that plan is submitted. A run
            that uses the plan of an earlier run makes no new plan.
    """

    @leaves_run
    def __init__(
        self,
        device: Device | str | None = None,
        policy: SchedulingPolicy | None = None,
        *,
        verify: bool | None = None,
        graph_from: int | None = 3,
        on_plan: Callable[[DeviceOp[Any, Any, Any], Plan], None] | None = None,
    ) -> None:
        origin = here()
        if device is not None and not isinstance(device, Device | str):
            cure = 'Write "host:1", or leave it out for the current device'
            raise wrong_argument("StreamInterpreter", origin, "device", device, "a device or its name", cure)
        if policy is not None and (isinstance(policy, type | DeviceOp) or not callable(getattr(policy, "place", None))):
            cure = "Write policy=RoundRobin(4), or leave it out for ListSchedule(4)"
            raise wrong_argument("StreamInterpreter", origin, "policy", policy, "a scheduling policy", cure)
        if verify is not None:
            verify = check_flag(verify, "StreamInterpreter", origin, "verify")
        if graph_from is not None:
            check_count(graph_from, "StreamInterpreter", origin, "graph_from")
        if on_plan is not None:
            check_function(on_plan, "StreamInterpreter", origin, "on_plan")
        self._device = device
        self._origin = origin
        self._graph_from = graph_from
        self._on_plan = on_plan
        self._policy = ListSchedule() if policy is None else policy
        self._verify = verify
        self._last: tuple[object, Settings] | None = None
        """The last settings, after the facts that they depend on."""

    def settings(self) -> Settings:
        """Return the settings of a run that starts now, with the current device if this interpreter has no device."""
        asked = self._device
        facts = (
            chosen_device(), device_lookup.version, raw_value(_DEVICE), raw_value(_SPIN), raw_value(_VERIFY),
            raw_value(_DIRECT), chosen_mesh(),
        )  # fmt: skip
        last = self._last
        if last is not None and last[0] == facts:
            return last[1]
        where = current_device() if asked is None else self._named(asked) if isinstance(asked, str) else asked
        check = VERIFY.get() if self._verify is None else self._verify
        mesh = facts[-1]
        policy = self._policy if mesh is None or asked is not None else over_mesh(self._policy, mesh)
        found = Settings(where, policy, check, self._graph_from, self._on_plan, DIRECT.get(), SPIN_US.get())
        self._last = facts, found
        return found

    def _named(self, name: str) -> Device:
        try:
            return find_device(name)
        except NoDeviceError as error:
            raise add_call_place(f"StreamInterpreter(device={name!r})", self._origin, error) from None

    async def run(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        """Run an op in a trio task. The run is a checkpoint. A cancellation waits for the submitted work."""
        if not isinstance(op, DeviceOp):
            check_op(op, "run")
        return await await_steps(_run_in_task(self, op))

    def run_sync(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        """Run an op, and block until its result is complete."""
        if not isinstance(op, DeviceOp):
            check_op(op, "run_sync")
        return _run_now(self, op, start_of_run())

    def graph(self, op: DeviceOp[_T, Any, Any], stream: Stream | None, /) -> CudaGraph[_T]:
        """Run an op, block until its result is complete, and capture its work as a graph for later launches."""
        check_op(op, "graph")
        refuse_nested(op)
        warn_in_task("graph()", "Capture before trio.run(...), or in a thread.")
        return graph_capture.graph_of(op, stream, self.settings())

    def scope(self, stream: Stream, /) -> AbstractContextManager[Scope]:
        """Record ops into a graph for launches on `stream`. The `with` block has a `Scope`. Nothing is run."""
        origin = here()
        check_stream(stream, "scope", origin)
        return graph_capture.ScopeBlock(stream, replace(self.settings(), device=stream.device), origin)

    def plan_of(self, op: DeviceOp[Any, Any, Any], /) -> Plan:
        """Return the plan of the op's first stage: all its work until a closure needs host data. Nothing is run."""
        check_op(op, "plan_of")
        return self._planned(op, execute.plan_of)

    def _planned(self, op: DeviceOp[Any, Any, Any], make: Callable[[DeviceOp[Any, Any, Any], Settings], _T]) -> _T:
        """Return what `make` makes of an op without a run."""
        refuse_nested(op)
        settings = self.settings()
        with Section("an op was planned"):
            return make(op, settings)

    def explain(self, op: DeviceOp[Any, Any, Any], /) -> str:
        """Describe the plan of an op in words. Times come from the cost model of the policy that places all of it."""
        check_op(op, "explain")
        policy = _policy_of(op, self.settings().policy)
        costs = getattr(policy, "costs", None)
        mesh = (len(policy.mesh), getattr(policy, "streams", 1)) if spreads(policy) else None
        plan, choices, kept = self._planned(op, execute.explained_plan_of)
        model = costs if isinstance(costs, CostModel) else None
        return explain(plan, model, mesh=mesh, choices=choices, kept=kept)


def _run_now(interpreter: StreamInterpreter, op: DeviceOp[_T, Any, Any], origin: Origin) -> _T:
    """Run an op, which `origin` started, and block until its result is complete."""
    thread = CURRENT_THREAD.state
    if thread.where != OUTSIDE or recording_block() is not None:
        refuse_nested(op)
    if async_library.name is not None:
        warn_in_task("sync()", "Use await.")
    settings = interpreter.settings()
    installed = begin_section(thread)
    try:
        result: _T = execute.execute_now(op, settings, origin)
        return result
    finally:
        end_section(thread, installed)


@trio.lowlevel.enable_ki_protection
def _run_in_task(interpreter: StreamInterpreter, op: DeviceOp[_T, Any, Any]) -> Generator[Any, Any, _T]:
    """Run an op in a trio task. An error that leaves this has only the user's frames."""
    result: _T
    given: Any
    arguments: Any = None
    named: Any = None
    try:
        if CURRENT_THREAD.state.where != OUTSIDE or recording_block() is not None:
            refuse_nested(op)
        if async_library.name != "trio" and not trio.lowlevel.in_trio_task():
            raise outside_trio(op)
        settings = interpreter.settings()
        origin = start_of_run()
        call = direct_call(op) if settings.direct else None
        if call is not None:
            loaded, direct, arguments, named, cache = call
            del call
            given = yield from protected(direct.in_task(loaded, arguments, named, settings, origin), _RUN)
            if given is not MISS:
                if cache is not None:
                    cache.hits += 1
                result = given
                return result
        result = yield from protected(execute.execute(op, settings, TrioWaits(), origin), _RUN)
        return result
    except BaseException as error:
        without_our_frames(error)
        del op, arguments, named  # this frame is still running, and the traceback refers to it
        raise


@trio.lowlevel.enable_ki_protection
def _landed(landing: Any) -> Generator[Any, Any, Any]:
    """Wait in a trio task for a run that the compiled reader has launched, and return its result.

    The other tasks have their turn while the device works, as in `DirectCall.in_task`. The compiled reader makes these
    steps itself where the run is over at the first look; it comes here for one that is not, or that fails.
    """
    try:
        yield from trio.lowlevel.cancel_shielded_checkpoint().__await__()  # noqa: ASYNC105  # a generator cannot await
        result = landing.land()
        if result is not MISS:
            return result
        yield from protected(settle(landing.run, TrioWaits(has_yielded=True), 0.0, landing.pace), _RUN)
        return landing.result()
    except BaseException:
        landing.run.cancel()
        block_until_done(landing.run)
        raise
    finally:
        landing.end()


def _policy_of(op: DeviceOp[Any, Any, Any], otherwise: Any) -> Any:
    """Return the policy of the innermost `.schedule(...)` or `.on(policy)` around an op, else `otherwise`."""
    while isinstance(op, On):
        if not isinstance(op.place, Device | Stream | str):
            otherwise = op.place
        op = op.source
    return otherwise


_default: Final = StreamInterpreter()
_current: ContextVar[Interpreter] = ContextVar("dagpu_interpreter", default=_default)


@leaves_run
def use_interpreter(interpreter: Interpreter) -> AbstractContextManager[Interpreter]:
    """Run ops by this interpreter within the `with` block, in this task or thread."""
    runs = [getattr(interpreter, name, None) for name in ("run", "run_sync")]
    if isinstance(interpreter, type) or not all(map(callable, runs)):
        cure = "Write use_interpreter(StreamInterpreter(...)), or pass an object with run(op) and run_sync(op)"
        raise wrong_argument("use_interpreter", here(), "interpreter", interpreter, "an interpreter", cure)
    return _using(interpreter)


@contextmanager
def _using(interpreter: Interpreter) -> Iterator[Interpreter]:
    token = _current.set(interpreter)
    try:
        yield interpreter
    finally:
        _current.reset(token)


@leaves_run
def plan_of(op: DeviceOp[Any, Any, Any]) -> Plan:
    """Return the plan of a run of `op`, until a closure needs host data. Nothing is run, and the op can run afterwards.

    Closures are called, with handles. Raises the errors that a run raises before it submits work.
    """
    return _planner("plan_of").plan_of(op)


def current_settings(call: str) -> Settings:
    """Return the settings of a run that starts now. `call` names the function that needs them, in messages.

    Raises:
        TypeError: the current interpreter is not a `StreamInterpreter`.
    """
    current = _current.get()
    if not isinstance(current, StreamInterpreter):
        raise TypeError(
            f"{call}() at {describe(here())}: the interpreter in use, a {type(current).__name__}, only runs ops, and "
            "makes no plans for updates. Use another interpreter in a with block around the call: "
            "use_interpreter(StreamInterpreter())."
        )
    return current.settings()


def _planner(method: str) -> PlanningInterpreter:
    """Return the current interpreter, for a call of one of the methods that `PlanningInterpreter` adds.

    Raises:
        TypeError: the current interpreter does not have that method.
    """
    current = _current.get()
    if not callable(getattr(current, method, None)):
        raise TypeError(
            f"{method}() at {describe(here())}: the interpreter in use, a {type(current).__name__}, only runs "
            f"ops: it has no method {method}. Add that method, or use another interpreter in a with block around the "
            "call: use_interpreter(StreamInterpreter())."
        )
    return cast(PlanningInterpreter, current)


async def _run_by(interpreter: Interpreter, op: DeviceOp[_T, Any, Any]) -> _T:
    """Run an op by an interpreter of the user's."""
    try:
        return await await_user(interpreter.run(op))
    except BaseException as error:
        without_our_frames(error)
        del op
        raise


@final
class _CurrentInterpreter:
    """The runner of `DeviceOp`: passes each call on to the current interpreter."""

    def run(self, op: DeviceOp[_T, Any, Any], /) -> Generator[Any, Any, _T]:
        current = _current.get()
        if type(current) is StreamInterpreter:
            return _run_in_task(current, op)
        return _run_by(current, op).__await__()

    def run_sync(self, op: DeviceOp[_T, Any, Any], /) -> _T:
        current = _current.get()
        if type(current) is StreamInterpreter:
            return _run_now(current, op, start_of_run(_ABOVE_RUN))
        return current.run_sync(op)

    def graph(self, op: DeviceOp[_T, Any, Any], stream: Stream | None, /) -> CudaGraph[_T]:
        return _planner("graph").graph(op, stream)

    def explain(self, op: DeviceOp[Any, Any, Any], /) -> str:
        return _planner("explain").explain(op)

    def scope(self, stream: Stream, /) -> AbstractContextManager[Scope]:
        return _planner("scope").scope(stream)

    def update(self, captured: Captured, op: DeviceOp[_T, Any, Any], /) -> _T:
        return graph_capture.update(captured, op)


RUNNER.set(_CurrentInterpreter())


def _finish(run: Run) -> None:
    """Wait for a run that the compiled reader has started, in a section of its own, and raise its failures."""
    drive(settle(run, _blocking, 0.0))


def _turn() -> object:
    """Return what trio gets from a task that gives the other tasks their turn."""
    steps: Any = trio.lowlevel.cancel_shielded_checkpoint()  # noqa: ASYNC105  # it is driven by hand
    try:
        return steps.send(None)
    finally:
        steps.close()


if _turn() is _turn():  # else only the coroutine itself can tell
    teach(turn=_turn(), landed=_landed, checkpoint_if_cancelled=trio.lowlevel.checkpoint_if_cancelled)
if isinstance(variables, dict):  # else each look-up is a call
    teach(
        interpreter=_current, interpreter_class=StreamInterpreter, settings=Settings, thread_local_=CURRENT_THREAD,
        outside=OUTSIDE, async_library=async_library, variables=variables, keys=(_DEVICE, _SPIN, _VERIFY, _DIRECT),
        plans=plans, finish=_finish, without_frames=without_our_frames, then=Then,
        value=Value, pure=Pure, graph_launch=GraphLaunch, device_op=DeviceOp, shared_tensor=SharedTensor,
        thread_state=ThreadState, leaf_memory=LeafMemory, new_tensor=NewTensor, same_value=SameValue,
        tuple_of=TupleOf, first_use=FirstUse, composite_of=CompositeOf, composite=Composite, holders=Holders,
        tensor_ref=TensorRef,
    )  # fmt: skip
