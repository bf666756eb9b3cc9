"""Overlap of kernels of which nothing is known: each behind its own upload, and over the devices of a mesh.

    python -m benchmarks.overlap                             on the host, where a kernel sleeps; keeps results/overlap.*
    python -m benchmarks.overlap --devices cuda:0            on a GPU; keeps results/overlap_gpu.*
    python -m benchmarks.overlap --devices cuda:0 cuda:1     on a mesh too
    python -m benchmarks.overlap --quick                     few repeats; keeps nothing

The default policy gets no word of a kernel's cost, then the measured ones. An H200 uploads an array in less time than
such a kernel takes, but in more time than its bytes would take: a schedule that believes the bytes has the kernels wait
for each other.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import dagpu
from benchmarks.support.gpu import medians, rounds
from benchmarks.support.table import Table, load_average, machine, measure, save, show
from dagpu import (
    CostModel,
    DeviceOp,
    In,
    ListSchedule,
    Mesh,
    Out,
    RoundRobin,
    SchedulingPolicy,
    SingleStream,
    Spread,
    Tensor,
    Tile,
    empty,
    expr,
    f32,
    from_host,
    kernel,
    use_device,
    value,
    zip_ops,
)

WAITING, DRAWING = 8, 16
"""Kernels behind uploads, and kernels without inputs."""
WAIT_US, DRAW_US = 2_500.0, 10_000.0
"""Microseconds of each."""
UPLOAD: Final = 4 << 20
"""Elements of an upload."""
WIDTH: Final = 1024
"""Elements of a result, in four tiles: so a GPU runs many of the kernels at once."""

KERNELS_CU = """
__device__ void spin(float microseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < static_cast<unsigned long long>(microseconds * 1000.0f));
}
__global__ void after(Tile<float, 1> y, View<const float, 1> x, float microseconds) {
    spin(microseconds);
    for (auto i : y) y[i] = x[0] + 1.0f;
}
__global__ void drawn(Tile<float, 1> y, float number, float microseconds) {
    spin(microseconds);
    for (auto i : y) y[i] = number;
}
"""


@kernel(cuda=KERNELS_CU)
def after(y: Out[f32], x: In[f32], microseconds: float) -> None:
    """y = x[0] + 1, after `microseconds`."""


@kernel(cuda=KERNELS_CU)
def drawn(y: Out[f32], number: float, microseconds: float) -> None:
    """y = number, after `microseconds`."""


@after.host(whole=True)
def _(y: Tile[f32], x: NDArray[f32], microseconds: float) -> None:
    time.sleep(microseconds * 1e-6)
    y[...] = x[0] + np.float32(1)


@drawn.host(whole=True)
def _(y: Tile[f32], number: float, microseconds: float) -> None:
    time.sleep(microseconds * 1e-6)
    y[...] = np.float32(number)


def behind_uploads(arrays: list[NDArray[f32]]) -> DeviceOp[Any]:
    """Return an op of one kernel for each array, behind its upload."""
    out = [empty((WIDTH,)).partition((WIDTH // 4,)) for _ in arrays]
    launches = [after(y, from_host(x), WAIT_US) for y, x in zip(out, arrays, strict=True)]
    return zip_ops(*[launch.first().unpartition() for launch in launches])


def draws() -> DeviceOp[Tensor[f32]]:
    """Return the sum of what kernels without inputs have made."""
    launches = [drawn(empty((WIDTH,)).partition((WIDTH // 4,)), float(n), DRAW_US) for n in range(DRAWING)]
    made = [launch.first().unpartition() for launch in launches]
    return zip_ops(*made).then(_total)


_add = expr(f32, f32)(lambda x, y: x + y)


def _total(parts: tuple[Tensor[f32], ...]) -> DeviceOp[Tensor[f32]]:
    op: DeviceOp[Tensor[f32]] = value(parts[0])
    for part in parts[1:]:
        op = op.then(partial(_add, part))
    return op


def compared(title: str, make: Callable[[], DeviceOp[Any]], policies: dict[str, Any], repeats: int, base: str) -> Table:
    """Return the times of an op under some policies. Each has a learnt one too if it takes costs."""
    with dagpu.trace() as probe:
        make().schedule(SingleStream()).sync()
    learnt = CostModel().learn(probe.kernel_times())
    ops: dict[str, DeviceOp[Any]] = {}
    for name, policy in policies.items():
        ops[name] = make().schedule(policy)
        if isinstance(policy, ListSchedule):
            ops[f"{name}, costs learnt"] = make().schedule(ListSchedule(costs=learnt))
        elif isinstance(policy, Spread):
            ops[f"{name}, costs learnt"] = make().schedule(Spread(policy.mesh, costs=learnt))
    contenders = [partial(rounds, name, op.sync, 3 if repeats < 3 else 10) for name, op in ops.items()]
    samples = measure(contenders, repeats)
    table = Table(title, "ms", ratio_to=base)
    for name, spans in samples.items():
        table.add(name, spans, 1e3, base=samples[base])
    print({name: round(medians(spans).wall * 1e3, 2) for name, spans in samples.items()}, flush=True)
    return table


def main() -> None:
    """Measure, print the results, and save them."""
    parser = argparse.ArgumentParser(description="Do kernels of which nothing is known overlap?")
    parser.add_argument("--devices", nargs="+", default=["host:0"], help="one device, or several for a mesh too")
    parser.add_argument("--quick", action="store_true", help="few repeats; nothing is kept")
    options = parser.parse_args()
    names: list[str] = options.devices
    repeats = 2 if options.quick else 7
    about = machine(("numpy", "pycuda"))
    arrays = [np.full(UPLOAD, number, np.float32) for number in range(WAITING)]
    default, turns, one = "default", "RoundRobin(4)", "SingleStream()"
    streams: dict[str, SchedulingPolicy] = {default: ListSchedule(), turns: RoundRobin(4), one: SingleStream()}
    with use_device(names[0]):
        title = f"{WAITING} kernels of {WAIT_US / 1e3:g} ms, each behind its own upload of {UPLOAD * 4 >> 20} MiB"
        tables = [compared(title, lambda: behind_uploads(arrays), streams, repeats, turns)]
        if len(names) > 1:
            spread = f"spread over {len(names)} devices"
            policies = {spread: Spread(Mesh(names)), "one device": ListSchedule(), "one stream": SingleStream()}
            title = f"{DRAWING} kernels of {DRAW_US / 1e3:g} ms without inputs, and the sum of their results"
            tables.append(compared(title, draws, policies, repeats, spread))
    about["devices"] = ", ".join(names)
    about["load average after"] = load_average()
    print(show(tables, about))
    if not options.quick:
        name = "overlap" if names[0].startswith("host") else "overlap_gpu"
        for path in save(name, "Overlap of kernels of unknown cost", tables, about):
            print(f"kept {path}")


if __name__ == "__main__":
    main()
