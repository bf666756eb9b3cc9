"""Immutable dataclasses, and holders for what a higher module sets.

`dataclass(frozen=True, slots=True)` sets each field through `object.__setattr__`, which looks the name up: 0.86 us for
three fields. The `__init__` that this module generates calls the descriptors of the slots: 0.33 us (CPython 3.11). A
chain of launches has four such nodes for each launch.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast, dataclass_transform, final

from dagpu.common.places import describe, here

_C = TypeVar("_C", bound=type[Any])


@dataclass_transform(frozen_default=True, eq_default=False)
def frozen(cls: _C) -> _C:
    """Decorate a class as an immutable, slotted dataclass that compares by identity, as shared nodes of a DAG must.

    The class inherits its repr: a generated repr would descend through a whole DAG.
    """
    return cast(_C, _finished(dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)))


@dataclass_transform(frozen_default=True, eq_default=True)
def plain(cls: _C) -> _C:
    """Decorate a class as an immutable, slotted dataclass that compares by value, as programs and plans do."""
    return cast(_C, _finished(dataclass(frozen=True, slots=True)(cls)))


def _finished(cls: type[Any]) -> type[Any]:
    """Add a fast `__init__` to the class, and methods that refuse changes.

    The methods that dataclass generates mistake a class with slots for another class, and fail for names that are not
    fields.
    """
    for change in ("__setattr__", "__delattr__"):
        setattr(cls, change, _refuse_change)
    return _with_fast_init(cls)


def _refuse_change(self: object, name: str, _value: object = None) -> NoReturn:
    """Refuse to set or delete an attribute.

    Raises:
        FrozenInstanceError: always; it is an `AttributeError`.
    """
    raise FrozenInstanceError(
        f"attribute {name!r} of {self!r} was set or deleted at {describe(here())}, but it is immutable. Build a new "
        "object with the value that you want."
    )


def _with_fast_init(cls: type[Any]) -> type[Any]:
    """Generate an `__init__` that sets each field through the descriptor of its slot, and the slots that the class
    names in `_empty_slots` to None."""
    scope: dict[str, Any] = {}
    formals: list[str] = []
    body: list[str] = []
    for field in fields(cls):
        scope[f"_set_{field.name}"] = getattr(cls, field.name).__set__
        if field.default is not MISSING:
            scope[f"_default_{field.name}"] = field.default
            formals.append(f"{field.name}=_default_{field.name}")
        else:
            formals.append(field.name)
        body.append(f" _set_{field.name}(self, {field.name})")
    for name in getattr(cls, "_empty_slots", ()):
        scope[f"_empty_{name}"] = getattr(cls, name).__set__
        body.append(f" _empty_{name}(self, None)")
    source = f"def __init__(self, {', '.join(formals)}):\n" + ("\n".join(body) or " pass")
    exec(source, scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = init
    return cls


# ---- slot
#
# `Slot`: a holder for a value that a lower module uses and a higher module sets when it is loaded.
#
# Imports have one direction, so the lower module cannot import the value (dependency inversion). The first read of a
# value that is not set loads the module that sets it. All slots:
#
# | slot | used by | set by |
# | --- | --- | --- |
# | `dagpu.handles.TO_HOST` | `to_host()` of a handle | dagpu.ops.creation |
# | `dagpu.handles.operators.OPERATE` | the operators of handles and ops | dagpu.kernels.operators |
# | `dagpu.kernels.operators.MATMUL` | `x @ w` | dagpu.arrays |
# | `dagpu.handles.EXPORTS` | `__dlpack__()` of a handle | dagpu.interop |
# | `dagpu.ops.base.NODES` | the fluent methods of an op | dagpu.ops.nodes |
# | `dagpu.ops.base.RUNNER` | `sync()`, `await`, `graph()`, `explain()` of an op | dagpu.runtime.interpreter |
# | `dagpu.ops.source_op.PUT_PART` | `write()` of a source of a tensor | dagpu.reactive.put_part |
# | `dagpu.ops.versions.FIND_TASK` | `batch()` | dagpu.runtime.trio_waits |
# | `dagpu.plans.plan.DRAWING` | `to_svg()` of a plan | dagpu.plans.drawing |
# | `dagpu.plans.plan.MEMORY_DRAWING` | `memory_to_svg()` of a plan | dagpu.plans.drawing |
# | `dagpu.kernels.expression.FUSED` | `f.sum()` | dagpu.arrays.fused_reductions |
# | `dagpu.handles.device_handles.FIND_DEVICE` | `Mesh` of names, copies of a device | dagpu.runtime.device_lookup |
# | `dagpu.meshes.values.TO_ARRAY` | `to_host()` of a value of a mesh | dagpu.meshes.moving |
# | `dagpu.kernels.declaration.COMPILER` | `compile()` of a kernel | dagpu.backends.cuda.backend |
# | `dagpu.kernels.declaration.ARCH_COMPILER` | `compile(arch=)` of a kernel | dagpu.runtime.device_lookup |
# | `dagpu.kernels.declaration.CHECKER` | `check()` of a kernel | dagpu.runtime.kernel_checks |

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
