"""`Settings`, the options of a run, which its interpreter chooses."""

from collections.abc import Callable
from typing import Any, final

from dagpu.common.frozen import frozen
from dagpu.handles.device_handles import Device
from dagpu.ops.base import DeviceOp
from dagpu.plans.plan import Plan


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
    """True to run a plan by its direct call, where it has one; see dagpu.runtime.calls.direct_call."""
    spin: float | None
    """Seconds for which a run polls for completion before it sleeps; None for the backend's choice."""
