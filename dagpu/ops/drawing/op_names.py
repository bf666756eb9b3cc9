"""The names of ops in messages and pictures: the call in the user's code that has built an op."""

from typing import Any, Final

from dagpu.common.dtypes import Shape
from dagpu.common.origin import is_ours, is_ours_at
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Cutoff, HostCall, Map, On, Shared, Then, ToHost, Unzip, Value, Zip, sources_of
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.initializers import Arange, Constant, Eye, Linspace, Normal, Recipe, Uniform
from dagpu.ops.launch import Launch
from dagpu.ops.live.source_op import Source
from dagpu.ops.node_functions import Components, Cut, Inspect, Item, Outputs, Pure, Reshape, Share, Uncut

_NAMES: Final[dict[type[Any], str]] = {
    Cutoff: "cutoff", FromHost: "from_host", GraphLaunch: "graph launch", HostCall: "host_map", On: "on",
    Shared: "shared", Source: "source", ToHost: "to_host", Value: "value", Zip: "zip_ops",
}  # fmt: skip
"""The names of ops that their class alone gives."""
_OPS_OF_CALL: Final = 8
"""The most ops between the result of a call and the launch that it has built."""


def name_of_call(op: DeviceOp[Any, Any, Any]) -> str:
    """Return the name of the call of the user's that has built an op, and maybe others: that of its last launch."""
    return name_of(_work_of(op))


def name_of(op: DeviceOp[Any, Any, Any]) -> str:
    """Return the name of an op: `ones((3,))`, `saxpy`, `first`, `to_host`."""
    match op:
        case Launch(kernel=kernel):
            return f"array.{kernel.label}" if is_ours_at(kernel.origin) else kernel.label
        case Alloc(shape=shape, recipe=recipe):
            return _name_of_creation(shape, recipe)
        case Copy():
            if op.into is not None:
                return "fill" if isinstance(op.source, Constant) else "memcpy"
            return "dup" if op.dtype is None else "convert"
        case Then(f=f):
            return _name_of_then(f)
        case Map(f=f):
            return _name_of_map(f)
        case Source(name=str() as name):
            return f"source {name!r}"
        case Unzip(index=index):
            return f"unzip()[{index}]"
        case _:
            return _NAMES.get(type(op), type(op).__name__)


def _work_of(op: DeviceOp[Any, Any, Any]) -> DeviceOp[Any, Any, Any]:
    """Return the last launch that the call which has built an op has built too; the op itself if there is none.

    A loop may build a long chain by one call, so only the nearest ops are looked at.
    """
    found: DeviceOp[Any, Any, Any] | None = op
    for _ in range(_OPS_OF_CALL):
        if found is None or isinstance(found, Launch):
            break
        found = next((source for source in sources_of(found) if source.origin == op.origin), None)
    return found if isinstance(found, Launch) else op


def _name_of_creation(shape: Shape, recipe: Recipe | None) -> str:
    match recipe:
        case None:
            return f"empty({shape})"
        case Constant(value=value):
            return f"zeros({shape})" if value == 0 else f"ones({shape})" if value == 1 else f"full({shape}, {value})"
        case Arange(start=0, step=1):
            return f"arange({shape[0]})"
        case Arange(start=start, step=step):
            return f"arange({start}, {start + shape[0] * step}, {step})"
        case Linspace(start=start, stop=stop, num=num):
            return f"linspace({start}, {stop}, {num})"
        case Eye():
            return f"eye({shape[0]})"
        case Uniform():
            return f"rand({shape})"
        case Normal():
            return f"randn({shape})"


def _name_of_then(f: Any) -> str:
    if isinstance(f, Pure):
        return f"pipeline {getattr(f.f, '__name__', '')}".rstrip()
    ours = is_ours(getattr(getattr(f, "__code__", None), "co_filename", ""))
    return f.__name__ if ours else "then"  # a function of dagpu chooses a kernel by the results


def _name_of_map(f: Any) -> str:
    match f:
        case Cut(tile=tile):
            return f"partition({tile})"
        case Uncut():
            return "unpartition"
        case Share():
            return "share"
        case Reshape(shape=shape):
            return f"reshape({shape})"
        case Item(index=index):
            return "last" if index else "first"
        case Outputs() | Components():
            return "outputs"
        case Inspect():
            return "inspect"
        case _:
            return "map"
