"""One value of each sort that users mix up, and the rows of a table of public calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from dagpu import (
    Blocks,
    CostModel,
    Cyclic,
    DeviceOp,
    Link,
    Links,
    Mesh,
    Rank,
    Sharded,
    SingleStream,
    Spread,
    Tensor,
    all_gather,
    all_reduce,
    as_partials,
    as_shards,
    broadcast,
    current_device,
    device,
    each,
    f32,
    gather,
    halo,
    ones,
    reduce_scatter,
    reshard,
    shard,
    shard_host,
    sharded_empty,
    use_mesh,
    value,
)
from tests.behaviour.arrays.array_places import ARRAY_CALLS


class Holder:
    """Takes anything, and is no op."""

    def __init__(self, *_: object) -> None: ...


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "number": lambda: 3,
    "negative": lambda: -1,
    "fraction": lambda: 2.5,
    "nan": lambda: float("nan"),
    "complex": lambda: 1j,
    "true": lambda: True,
    "text": lambda: "x",
    "bytes": lambda: b"x",
    "object": object,
    "list": lambda: [object()],
    "tuple": lambda: (object(), 2),
    "dict": lambda: {"x": object()},
    "function": lambda: lambda *_: object(),
    "class": lambda: Holder,
    "array": lambda: np.ones(4, f32),
    "op": lambda: ones((4,)),
    "tensor": lambda: tensor(),
    "lent": lambda: tensor().borrow(),
    "partition": lambda: tensor().partition((2,)),
    "device": current_device,
    "stream": lambda: current_device().stream(),
    "policy": SingleStream,
}
"""One value of each sort that users mix up."""

FINITE = ("number", "negative", "fraction")
NUMBERS = (*FINITE, "nan")
SEED = ("number", "negative")
WHOLE = ("number",)
CALLABLE = ("function", "class")
HELD = tuple(WRONG.keys() - {"list", "dict", "op", "lent", "partition"})
"""What a source can hold: what nobody can change in place, and what it copies or takes over."""


@final
@dataclass(frozen=True)
class Public:
    """A public call: `of(**arguments)` makes it, `right` has right arguments for it, made anew for each test."""

    of: Callable[..., object]
    right: Callable[[], dict[str, Any]]
    fine: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By parameter: the sorts of values that are right for it, or that no check can tell from one."""
    untried: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Likewise: what is right or wrong for other reasons than its type."""
    says: str = ""
    """What messages call it; its own name unless given."""


def tensor() -> Tensor[f32]:
    return ones((4,)).sync()


ELSEWHERE = {
    "Pipeline.__call__": "its arguments are those of the user's function",
    **ARRAY_CALLS,
    **dict.fromkeys(
        ("adopt", "share_array", "from_array", "lend", "lend_mut", "lent_out", "unversioned", "stream_of"),
        "tests/behaviour/errors/cures/interop.py has each refusal",
    ),
    **dict.fromkeys(
        ("foreign", "Foreign.__call__", "ForeignFunction.__call__", "triton_kernel", "numba_kernel", "cutile_kernel"),
        "tests/behaviour/errors/cures/ has each refusal",
    ),
    **dict.fromkeys(("Plan.to_svg", "Plan.save_svg", "Plan.save_memory_svg"), "cures/running.py has each refusal"),
    "Kernel.check": "it takes the arguments of a call: tests/behaviour/cuda_text",
    "Kernel.compile": "it needs a compiler: tests/unit/backends/cuda/compile",
    "Kernel.new": "tests/unit/kernels/test_new_outputs.py",
    "in_trio": "tests/behaviour/flows/test_asyncio_guest.py",
    "KernelOp": "kernels make them",
    "SharedTensor.partition": "refused whatever it is given: tests/behaviour/errors/test_messages.py",
    "TensorRef.partition": "refused whatever it is given: tests/behaviour/errors/test_messages.py",
    "Trace.begin": "backends call it",
    **dict.fromkeys(("Spread.assign", "Spread.place", "Spread.limit_on"), "the planning of a run calls it"),
    "Link.seconds": "the cost model calls it",
    **dict.fromkeys(("Blocks.boxes", "Cyclic.boxes"), "ops over a mesh call it"),
    **dict.fromkeys(("each", "unzip_each"), "tests/behaviour/errors/cures/places/sharding.py has each refusal"),
    **dict.fromkeys(("DevicePolicy", "DevicePolicy.assign", "Layout", "Layout.boxes", "PerDevice"), "a protocol"),
    **dict.fromkeys(
        ("Each", "Haloed", "Partials", "Rank", "Replicated", "Sharded", "ShardedRef"), "ops over a mesh make them"
    ),
    **dict.fromkeys(("Trace.track", "Flow.begin", "Ask.close"), "open flows call it"),
    **dict.fromkeys(
        (
            "Cluster.connect",
            "Cluster.local",
            "Cluster.run",
            "Cluster.run_sync",
            "Cluster.explain",
            "Cluster.plan_of",
            "Cluster.graph",
            "Cluster.scope",
            "checkpoint",
        ),
        "it needs a cluster: tests/unit/cluster, and cures for what needs none",
    ),
    **dict.fromkeys(("Progress", "WorkerInfo"), "clusters make them"),
    "Part": "cut() makes them",
    **dict.fromkeys(
        ("place", "verify_placement", "peak_bytes_on", "cut", "verify_parts"),
        "policies and their tests call it with what planning has made",
    ),
    "Tls": "tests/unit/cluster/test_cluster_security.py",
    **dict.fromkeys(("Stats.hand_over", "Stats.count_call"), "feeds call it"),
    "Ask.__call__": "its argument is that of the user's function",
    "Trace.save": "the path is checked like that of `trace`, and tests/unit/runtime/test_timeline.py writes it",
    **dict.fromkeys(
        (
            "CostModel.bases",
            "CostModel.basis",
            "CostModel.estimates",
            "CostModel.guesses",
            "CostModel.machine",
            "CostModel.nbytes",
            "CostModel.seconds",
            "CostModel.size",
            "CostModel.times",
        ),
        "policies call it with their program",
    ),
    **dict.fromkeys(("SingleStream.place", "RoundRobin.place", "ListSchedule.place"), "runs call it"),
    **dict.fromkeys(
        ("Interpreter.run", "Interpreter.run_sync", "Module.forward", "SchedulingPolicy.place"), "a protocol"
    ),
}
"""Public calls with arguments that the table leaves out, and why."""


def enter(manager: Any) -> object:
    with manager as inside:
        return inside


class Settable:
    """Takes the values of a flow."""

    def set(self, x: object) -> None: ...


POSITIVE = ("number", "fraction")
MESH = Mesh(["host:0", "host:1"])
MESH_CALLS: dict[str, Public] = {
    "Spread": Public(
        Spread,
        lambda: {
            "mesh": MESH,
            "streams": 2,
            "costs": CostModel(),
            "shun_moves": 0.3,
            "memory_limit": None,
            "runs": 10,
        },
        {"streams": ("number",), "shun_moves": POSITIVE, "memory_limit": ("None", "number"), "runs": POSITIVE},
    ),
    "Mesh": Public(
        Mesh,
        lambda: {"devices": ["host:0", "host:1"], "shape": (2,), "axes": ("devices",)},
        {"shape": ("None",)},
    ),
    "Mesh.along": Public(MESH.along, lambda: {"axis": "devices"}),
    "use_mesh": Public(use_mesh, lambda: {"mesh": MESH}),
    "Link": Public(
        Link,
        lambda: {"latency": 1e-6, "bandwidth": 1e9, "ports": 1},
        {"latency": POSITIVE, "bandwidth": POSITIVE, "ports": ("number",)},
    ),
    "Links": Public(Links, lambda: {"peer": Link(1e-6, 1e9)}),
    "Links.between": Public(
        Links().between,
        lambda: {"one": device("host:1"), "other": device("host:2")},
        {"one": ("device",), "other": ("device",)},
    ),
    "Links.measured": Public(Links.measured, lambda: {"mesh": Mesh(["host:0"])}),
    "CostModel": Public(
        CostModel,
        lambda: {"launch": 1e-6, "bandwidth": 1e9, "host_bandwidth": 1e9, "host_call": 1e-6},
        dict.fromkeys(("launch", "bandwidth", "host_bandwidth", "host_call"), POSITIVE),
    ),
    "CostModel.declare": Public(CostModel().declare, lambda: {"kernels": {"copy": 1e-6}}),
    "CostModel.count": Public(CostModel().count, lambda: {"kernels": {"copy": 4096}}),
    "CostModel.learn": Public(CostModel().learn, lambda: {"measured": [("copy", 4, 1e-6)]}),
}
"""The calls that are about meshes and costs."""


def shards() -> DeviceOp[Sharded[f32]]:
    return shard(ones((4, 4)), MESH)


def given_back(part: Tensor[f32], rank: Rank) -> DeviceOp[Tensor[f32]]:
    return value(part)


WHOLE_TENSOR = ("op", "tensor", "lent")
MESH_OPS: dict[str, Public] = {
    "Blocks": Public(
        Blocks, lambda: {"axes": 0, "partial": False}, {"axes": ("number",), "partial": ("true",)}, {"axes": ("dict",)}
    ),
    "Cyclic": Public(Cyclic, lambda: {"tile": (2, 2)}),
    "Rank.coordinate": Public(Rank(MESH, 0).coordinate, lambda: {"axis": "devices"}),
    "shard": Public(shard, lambda: {"t": ones((4, 4)), "mesh": MESH, "layout": Blocks(0)}, {"t": WHOLE_TENSOR}),
    "shard_host": Public(
        shard_host,
        lambda: {"array": np.ones((4, 4), f32), "mesh": MESH, "layout": Blocks(0)},
        {"array": ("array",)},
    ),
    "sharded_empty": Public(
        sharded_empty,
        lambda: {"shape": (4, 4), "dtype": f32, "mesh": MESH, "layout": Blocks(0)},
        untried={"dtype": ("class",)},
    ),
    "reshard": Public(reshard, lambda: {"s": shards(), "layout": Blocks(1), "mesh": MESH}, {"mesh": ("None",)}),
    "gather": Public(gather, lambda: {"s": shards(), "on": "host:1"}, {"on": ("None", "device")}),
    "broadcast": Public(broadcast, lambda: {"t": ones((4,)), "mesh": MESH}, {"t": WHOLE_TENSOR}),
    "all_gather": Public(all_gather, lambda: {"s": shards(), "axis": "devices"}, {"axis": ("None",)}),
    "all_reduce": Public(
        all_reduce,
        lambda: {"p": as_partials(each(given_back, shards())), "how": "max", "axis": None, "engine": "direct"},
        {"axis": ("None",)},
    ),
    "reduce_scatter": Public(
        reduce_scatter, lambda: {"p": as_partials(each(given_back, shards())), "layout": Blocks(0), "how": "sum"}
    ),
    "halo": Public(halo, lambda: {"s": shards(), "width": 1, "wrap": False}, {"width": ("number",), "wrap": ("true",)}),
    "as_shards": Public(as_shards, lambda: {"e": each(given_back, shards()), "shape": (4, 4), "layout": Blocks(0)}),
    "as_partials": Public(as_partials, lambda: {"e": each(given_back, shards())}),
}
"""The calls that are about values on several devices."""
