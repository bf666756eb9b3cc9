"""A plan that its backend has prepared, and the settings of the run that it is for."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, final

from dagpu.backends.protocol import NoWork, Prepared, Run
from dagpu.common.errors import DeviceError
from dagpu.common.frozen import frozen
from dagpu.common.places import Origin
from dagpu.handles.device_handles import Device
from dagpu.ops.base import DeviceOp
from dagpu.plans.list_schedule import ListSchedule
from dagpu.plans.placed_values import verify_placement
from dagpu.plans.placing import Spread
from dagpu.plans.plan import Plan
from dagpu.plans.policies import Fixed, RoundRobin, SingleStream
from dagpu.plans.program import Program
from dagpu.plans.scheduler import schedule
from dagpu.plans.verifier import verify
from dagpu.runtime.device_lookup import backend
from dagpu.runtime.waits import Pace
from dagpu.tracing.flattened import Flattened
from dagpu.tracing.signature import BoundArguments, Signature
from dagpu.tracing.tracer import Stage
from dagpu.tracing.value_tokens import exact_token


@final
@frozen
class Settings:
    """The options of a run. `dataclasses.replace` makes a changed copy."""

    device: Device
    """The device for ops that are not placed on a device."""
    policy: Any
    """The scheduling policy for ops that are not placed by a policy."""
    verify: bool
    """True to verify each new plan before it runs."""
    graph_from: int | None
    """The run of one plan, counted from 1, from which on it is launched as a CUDA graph; None for never."""
    on_plan: Callable[[DeviceOp[Any, Any, Any], Plan], None] | None
    """A function that is called with an op and each new plan for it, before the plan runs; None for no call."""
    direct: bool
    """True to run a plan by its direct call, where it has one; see dagpu.runtime.direct_call."""
    spin: float | None
    """Seconds for which a run polls for completion before it sleeps; None for the backend's choice."""


# ---- loaded plan
#
# `LoadedPlan`: a plan in the form that its backend prepared, for any number of runs.

_UPDATE_GRAPH_FROM: Final = 2
"""The update by one plan, counted from 1, from which on it is launched as one CUDA graph."""

VALUE_POLICIES: Final = frozenset((SingleStream, RoundRobin, ListSchedule, Spread))
"""The types of policies that compare by value. User-defined policies compare by identity."""


CALL: Final = "call"
"""The direct call of a pipeline's calls, which reads their arguments."""
OP: Final = "op"
"""The direct call of other ops of the same structure, which reads the op."""
LEAVES: Final = "leaves"
"""The direct call of runs whose leaves are known to fit: of the same op, of a captured graph, or of an update."""


def _start_nothing(_memory: list[Any], _spin: float, _graph: bool) -> None:
    """Start no run: the backend launches no graphs."""


def plan_program(program: Program, check: bool) -> Plan:
    """Schedule a program, verify the plan if `check` is set, and return the plan."""
    plan = schedule(program)
    if check:
        verify(plan)
    return plan


def plan_stage(stage: Stage, check: bool) -> Plan:
    """Return the plan of a traced stage. If `check` is set, the plan is verified, and so is what has changed the
    program: its placement on a mesh, or recomputation."""
    if check and stage.traced is not stage.program:
        verify_placement(stage.traced, stage.program, again=any(type(p) is Fixed for p in stage.program.policies))
    return plan_program(stage.program, check)


def device_kind_of(plan: Plan) -> str:
    """Return the kind of the devices of a plan, which is that of the backend that runs it. One of a cluster's is
    returned for devices of the same cluster.

    Raises:
        DeviceError: the plan uses devices of several kinds, or of several clusters.
    """
    first, *others = plan.devices
    kind = first.partition(":")[0]
    for name in others:
        other = name.partition(":")[0]
        if other != kind and not ("/" in kind and "/" in other and backend(other) is backend(kind)):
            raise DeviceError(
                f"an op uses {first} and {name} at once, which have no memory or streams in common. Go from one to the "
                "other through an array: array = await op.to_host(), then from_host(array)."
            )
    return kind


@final
class LoadedPlan:
    """A plan that its backend has prepared, with the signature that binds the inputs of later runs.

    A run binds its inputs, by the signature or from the trace that made the plan, and `run_call` runs them.
    """

    __slots__ = (
        "decides", "direct", "fixed", "graph_from", "graph_is_ready", "is_compiled", "pace", "place", "prepared",
        "runs", "settings", "signature", "spin", "start",
    )  # fmt: skip

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.settings = settings
        """The settings of the run that made the plan."""
        driver = backend(device_kind_of(plan)) if plan.devices else None
        self.spin = 0.0 if driver is None else driver.spin()
        """Seconds for which a run polls before it sleeps, unless its settings say otherwise."""
        self.prepared: Prepared = NoWork() if driver is None else driver.prepare(plan)
        self.pace = Pace() if self.prepared.launch_whole is not None else None
        """How long its awaited runs take; None if they need this processor, which a task that polls would take from
        them."""
        self.start: Callable[[list[Any], float, bool], Run | None] = self.prepared.submit
        """Starts a run on this memory, with this `spin`, as a graph or not: see `Prepared`. Returns None, with nothing
        run, for a plan that `decides` what it runs, if no graph can be launched now."""
        self.direct: dict[str, Any] = {}
        """The `DirectCall`s that have been made of the plan, by what they read: `CALL`, `OP` or `LEAVES`. None for one
        that cannot be made: then the general way is needed."""
        self.place: Origin = None
        """The place in the code whose ops the plan serves without a key: that of the launch of a captured graph, or
        where the ops are built that the call by `OP` runs."""
        self.is_compiled = False
        """True once it is known that a run has no slow work to do first."""
        self.graph_is_ready = False
        """True once it is known that a run as a graph has no slow work to do first."""
        self.signature: Signature | None = None
        """The record by which later runs bind their inputs; None if only the traced run can use the plan."""
        self.decides = False
        """True for a plan that decides by conditions what it runs: it runs as one graph or not at all."""
        self.graph_from: float = math.inf
        """The run, counted from 1, from which on the plan is a graph; infinity for never."""
        self.runs = 0
        """The number of runs so far."""
        self.fixed: list[tuple[int, Hashable]] = []
        """The values for which the plan is specialised, each with its index among the leaves."""

    def keep(self, signature: Signature | None, graph_from: int | None) -> None:
        """Make the plan ready for later runs, with the run from which on it is a graph."""
        self.signature = signature
        self.graph_from = math.inf if graph_from is None else graph_from

    def keep_for_updates(self, keeps_memory: bool, *, decides: bool = False) -> None:
        """Make the plan ready for the updates of a feed, of which one ends before the next begins. With `keeps_memory`
        it keeps a little memory between them. One that `decides` what it runs is a graph from its first run on."""
        if decides:
            self.decides, self.start = True, self.prepared.launch_whole or _start_nothing
        self.graph_from = 1 if decides else _UPDATE_GRAPH_FROM
        if keeps_memory:
            self.prepared.keep_memory()

    def specialize(self, inputs: Flattened, reads: set[int], graph_from: int | None) -> None:
        """Record the values of the leaves `reads`, for which alone this plan holds, and the run from which on it is a
        graph."""
        self.graph_from = math.inf if graph_from is None else graph_from
        for index in sorted(reads):
            self.fixed.append((index, exact_token(inputs.leaves[index])))

    def suits(self, settings: Settings, leaves: Sequence[Any] = ()) -> bool:
        """True if these settings and leaves would produce this plan. User-defined policies compare by identity."""
        mine, policy = self.settings, settings.policy
        return (
            mine.device is settings.device
            and (mine.policy is policy or (type(policy) in VALUE_POLICIES and mine.policy == policy))
            and mine.verify is settings.verify
            and (not self.fixed or not leaves or self._has_fixed_values(leaves))
        )

    def _has_fixed_values(self, leaves: Sequence[Any]) -> bool:
        """True if the leaves have the values for which the plan is specialised."""
        return all(exact_token(leaves[index]) == value for index, value in self.fixed)

    def slow_work(self, graph: bool) -> Callable[[], None] | None:
        """Return the slow work to be done before a run, as a graph or not; None if no such work remains."""
        slow = self.prepared.before_graph if graph else self.prepared.before_first
        if slow is None:
            if graph:
                self.graph_is_ready = True
            else:
                self.is_compiled = True
        return slow

    def bind(self, leaves: Sequence[Any]) -> BoundArguments | None:
        """Bind the inputs of a later run; None if it needs a trace. See `Signature.bind`."""
        assert self.signature is not None
        return self.signature.bind(leaves)

    def compile(self) -> None:
        """Compile the kernels at once, unless an earlier run has done so."""
        slow = self.prepared.before_first
        if slow is not None:
            slow()

    def freeze(self, bound: BoundArguments) -> object:
        """Capture the plan as a graph on this memory; see `Prepared.freeze`."""
        return self.prepared.freeze(bound.memory)

    def result(self, bound: BoundArguments) -> Any:
        """Build the result of a later run."""
        assert self.signature is not None
        return self.signature.result(bound.memory, bound.leaves)
