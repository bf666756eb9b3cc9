"""`Slot`: a holder for a value that a lower module uses and a higher module sets when it is loaded.

Imports have one direction, so the lower module cannot import the value (dependency inversion). The first read of a
value that is not set loads the module that sets it. All slots:

| slot | used by | set by |
| --- | --- | --- |
| `dagpu.handles.TO_HOST` | `to_host()` of a handle | dagpu.ops.creation |
| `dagpu.handles.EXPORTS` | `__dlpack__()` of a handle | dagpu.interop |
| `dagpu.ops.base.NODES` | the fluent methods of an op | dagpu.ops.nodes |
| `dagpu.ops.base.RUNNER` | `sync()`, `await`, `graph()`, `explain()` of an op | dagpu.runtime.interpreter |
| `dagpu.ops.live.source_op.PUT_PART` | `write()` of a source of a tensor | dagpu.reactive.put_part |
| `dagpu.ops.live.open_batches.FIND_TASK` | `batch()` | dagpu.runtime.waiting.trio_waits |
| `dagpu.lowering.plan.DRAWING` | `to_svg()` of a plan | dagpu.lowering.report.plan_drawing |
| `dagpu.lowering.plan.MEMORY_DRAWING` | `memory_to_svg()` of a plan | dagpu.lowering.report.memory_drawing |
| `dagpu.kernels.expressions.reduced_expression.FUSED` | `f.sum()` | dagpu.kernels.arrays.reducing.fused_reductions |
| `dagpu.handles.device_handles.FIND_DEVICE` | `Mesh` of names, copies of a device | dagpu.runtime.device_lookup |
| `dagpu.sharding.spread_values.TO_ARRAY` | `to_host()` of a value of a mesh | dagpu.sharding.laying_out |
| `dagpu.kernels.compiling.COMPILER` | `compile()` of a kernel | dagpu.backends.cuda.backend |
| `dagpu.kernels.compiling.ARCH_COMPILER` | `compile(arch=)` of a kernel | dagpu.runtime.device_lookup |
"""

from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar, final

_T = TypeVar("_T")


@final
class Slot(Generic[_T]):
    """A value that another module sets. Read it as `slot.value`, which is as fast as any attribute."""

    __slots__ = ("_setter", "value")

    value: _T

    def __init__(self, setter: str) -> None:
        self._setter = setter
        """The name of the module that sets the value."""

    def set(self, value: _T) -> None:
        """Set the value, and replace an earlier one."""
        self.value = value

    if not TYPE_CHECKING:  # hidden from type checkers, which must report unknown attributes themselves

        def __getattr__(self, name: str) -> object:
            if name != "value":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            import_module(self._setter)  # the program has imported a part of dagpu alone, `dagpu.interop` say
            return object.__getattribute__(self, "value")
