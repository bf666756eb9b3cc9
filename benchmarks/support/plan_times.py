"""The times of a plan in a cost model, by a simulation of its steps; benchmarks and tests compare schedules with it.

`dagpu.plans.prediction` reports the same times, with the dependences of each instruction.
"""

from dataclasses import dataclass
from typing import final

from dagpu.plans.cost_model import COMPUTE, CostModel, EngineTimes, engine_of, engines_of, peer_of, without_engines
from dagpu.plans.plan import Execute, Plan, Record, Wait


@final
@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """Simulated times of a plan, in seconds from its start."""

    starts: tuple[float, ...]
    """Start of each step. Only `Execute` steps take time."""
    ends: tuple[float, ...]
    """End of each step."""
    makespan: float
    """End of the last step."""


def simulate(plan: Plan, costs: CostModel) -> PredictedTimes:
    """Simulate a plan: lanes run concurrently, waits block on events, each copy engine runs one copy at a time (a port
    of a link, for copies between devices).

    Copies of one direction run in the order of the steps.
    """
    lane_free = [0.0] * len(plan.lanes)
    engines, without = EngineTimes(costs.links.peer.ports), without_engines(plan.devices)
    happened = [0.0] * plan.events
    starts: list[float] = []
    ends: list[float] = []
    for step in plan.steps:
        lane = step.lane
        start = end = lane_free[lane]
        if isinstance(step, Execute):
            instruction = step.instruction
            seconds, engine = costs.seconds(instruction, plan), engine_of(instruction, plan.buffers, without)
            if engine != COMPUTE:
                places = engines_of(instruction.device, engine, peer_of(instruction, plan.buffers))
                start = engines.claim(start, seconds, places)
            end = start + seconds
        elif isinstance(step, Wait):
            start = end = max(start, happened[step.event])
        elif isinstance(step, Record):
            happened[step.event] = end
        lane_free[lane] = end
        starts.append(start)
        ends.append(end)
    return PredictedTimes(tuple(starts), tuple(ends), max(ends, default=0.0))
