"""`LoadedPlan`: a plan in the form that its backend prepared, for any number of runs."""

from collections.abc import Hashable, Sequence
from typing import Any, Final, final

from dagpu.backends.protocol import Bindings, Replay
from dagpu.common.errors import DeviceError
from dagpu.lowering.arguments.cache_key import Flattened, exact_token
from dagpu.lowering.plan import Plan
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.list_schedule import ListSchedule
from dagpu.lowering.schedule.policies import RoundRobin, SingleStream
from dagpu.lowering.schedule.scheduler import schedule
from dagpu.lowering.tracing.signature import BoundArguments, Signature
from dagpu.lowering.verify.verifier import verify
from dagpu.runtime.calls.settings import Settings
from dagpu.runtime.device_lookup import backend

VALUE_POLICIES: Final = frozenset((SingleStream, RoundRobin, ListSchedule))
"""The types of policies that compare by value. User-defined policies compare by identity."""


def plan_program(program: Program, check: bool) -> Plan:
    """Schedule a program, verify the plan if `check` is set, and return the plan."""
    plan = schedule(program)
    if check:
        verify(plan)
    return plan


def device_kind_of(plan: Plan) -> str:
    """Return the kind of the devices of a plan, which is that of the backend that runs it.

    Raises:
        DeviceError: the plan uses devices of several kinds.
    """
    first, *others = plan.devices
    kind = first.partition(":")[0]
    for name in others:
        if name.partition(":")[0] != kind:
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
        "_driver", "_fixed", "_graph_from", "_runs", "_signature", "device", "policy", "prepared", "verify",
    )  # fmt: skip

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.device = settings.device
        self.policy = settings.policy
        self.verify = settings.verify
        self._driver = backend(device_kind_of(plan))
        self.prepared = self._driver.prepare(plan)
        self._signature: Signature | None = None
        """The record by which later runs bind their inputs; None if only the traced run can use the plan."""
        self._graph_from: int | None = None
        """The run from which on the plan is a graph; None for never."""
        self._runs = 0
        self._fixed: list[tuple[int, Hashable]] = []
        """The values for which the plan is specialised, each with its index among the leaves."""

    def keep(self, signature: Signature | None, graph_from: int | None) -> None:
        """Make the plan ready for later runs, with the run from which on it is a graph."""
        self._signature = signature
        self._graph_from = graph_from

    def specialize(self, inputs: Flattened, reads: set[int], graph_from: int | None) -> None:
        """Record the values of the leaves `reads`, for which alone this plan holds, and the run from which on it is a
        graph."""
        self._graph_from = graph_from
        self._fixed = [(index, exact_token(inputs.leaves[index])) for index in sorted(reads)]

    def suits(self, settings: Settings, leaves: Sequence[Any] = ()) -> bool:
        """True if these settings and leaves would produce this plan. User-defined policies compare by identity."""
        policy = settings.policy
        return (
            self.device is settings.device
            and (self.policy is policy or (type(policy) in VALUE_POLICIES and self.policy == policy))
            and self.verify is settings.verify
            and (not self._fixed or not leaves or self._has_fixed_values(leaves))
        )

    def _has_fixed_values(self, leaves: Sequence[Any]) -> bool:
        """True if the leaves have the values for which the plan is specialised."""
        return all(exact_token(leaves[index]) == value for index, value in self._fixed)

    def wants_graph(self) -> bool:
        """Count one more run. Returns true if this run is to be launched as a graph."""
        self._runs += 1
        return self._graph_from is not None and self._runs >= self._graph_from

    def spin_seconds(self, settings: Settings) -> float:
        """Return the seconds for which a run polls before it sleeps."""
        return self._driver.spin() if settings.spin is None else settings.spin

    def bind(self, leaves: Sequence[Any]) -> BoundArguments | None:
        """Bind the inputs of a later run; None if it needs a trace."""
        assert self._signature is not None
        return self._signature.bind(leaves)

    def submit(self, bound: BoundArguments, spin: float = 0.0, *, graph: bool = False) -> Replay:
        """Start a replay with these inputs, and poll it for at most `spin` seconds. From now on the handles among the
        inputs cannot be put back."""
        replay = self.prepared.submit(Bindings(memory=bound.memory), spin, graph=graph)
        bound.discard_undo_log()
        return replay

    def compile(self) -> None:
        """Compile the kernels at once, unless an earlier run has done so."""
        slow = self.prepared.before_first
        if slow is not None:
            slow()

    def freeze(self, bound: BoundArguments) -> object:
        """Capture the plan as a graph on this memory; see `Prepared.freeze`."""
        return self.prepared.freeze(Bindings(memory=bound.memory))

    def result(self, bound: BoundArguments) -> Any:
        """Build the result of a later run."""
        assert self._signature is not None
        return self._signature.result(bound.memory, bound.leaves)
