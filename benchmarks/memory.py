"""The memory that plans take, compared with the least possible.

    python -m benchmarks.memory            keeps results/memory.json and memory.md

The DAGs are the named ones, with tensors of some hundred KiB, and random ones with tensors of many sizes. For each DAG
and policy, a table has `peak_bytes` (the arena and the results); the most bytes that some execution of the plan holds
at once, which is an exact lower bound for plans of that order (by a minimum cut); and their ratio. It also has the
bytes that every execution of the plan holds at once. The difference is the price of overlap, which a `memory_limit`
avoids. No plan is executed, so a GPU is not needed. The values that `shared()` keeps are results: nearly all tiles of
Cholesky and LU.

If PyTorch with CUDA is installed, the same DAG runs eagerly on its caching allocator, in program order on one stream.
Each tensor is allocated when it is first written, and dropped after its last use. This is the optimum for eager code,
whose variables usually keep tensors for longer.
"""

import argparse
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from benchmarks.support.table import Grid, load_average, machine, save, show
from dagpu import ListSchedule, RoundRobin, SingleStream, StreamInterpreter, plan_of, use_interpreter
from dagpu.plans.plan import Execute, Plan
from dagpu.plans.prediction import least_bytes
from dagpu.plans.program import HOST, Role
from dagpu.plans.scheduler import schedule
from tests.programs.alive import most_alive
from tests.programs.named_dags import NAMED
from tests.programs.plain_programs import layers, scattered, sized

SIZES: dict[str, dict[str, int]] = {
    "fork_join": {"branches": 8, "depth": 6, "size": 1 << 18},
    "butterfly": {"stages": 5, "size": 1 << 17},
    "cholesky": {"tiles": 8, "edge": 256},
    "lu": {"tiles": 6, "edge": 256},
    "transformer_block": {"tokens": 256, "width": 256, "heads": 4},
    "reduction_tree": {"leaves": 64, "size": 1 << 17},
    "mlp_step": {"shards": 8, "rows": 128, "width": 256, "hidden": 512},
}

POLICIES: dict[str, Callable[[], Any]] = {
    "one stream": SingleStream,
    "round robin, 4": lambda: RoundRobin(4),
    "list schedule, 4": lambda: ListSchedule(4),
}

MIB = 1 << 20


def planned(name: str, policy: Any) -> Plan:
    """Return the plan of a named DAG."""
    with use_interpreter(StreamInterpreter(policy=policy)):
        return plan_of(NAMED[name](**SIZES[name]))


def plans(policy: Any) -> Iterator[tuple[str, Plan]]:
    """Iterate over all plans that are compared."""
    for name in NAMED:
        yield name, planned(name, policy)
    for seed in range(3):
        yield f"random, {seed}", schedule(sized(scattered(300, seed, policy), seed))
    for seed in range(3):
        yield f"layers, {seed}", schedule(sized(layers(8, 30, policy), seed))


def has_torch() -> bool:
    """Return True if PyTorch is installed and finds a GPU."""
    return find_spec("torch") is not None and bool(import_module("torch").cuda.is_available())


def eager_peak(plan: Plan) -> int:
    """Return the peak of PyTorch's caching allocator in bytes, for the plan's instructions in order on one stream."""
    torch: Any = import_module("torch")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = int(torch.cuda.memory_allocated())
    instructions = [step.instruction for step in plan.steps if isinstance(step, Execute)]
    last = {b: at for at, each in enumerate(instructions) for b in (*each.reads, *each.writes)}
    held: dict[int, Any] = {}
    for at, each in enumerate(instructions):
        for buffer in each.writes:
            about = plan.buffers[buffer]
            if buffer not in held and about.device != HOST and about.role is not Role.INPUT:
                held[buffer] = torch.zeros(about.nbytes, dtype=torch.uint8, device="cuda")
        for buffer in (*each.reads, *each.writes):
            if last[buffer] == at and plan.buffers[buffer].role is Role.TEMPORARY:
                held.pop(buffer, None)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before


def compare(torch_is_there: bool) -> list[Grid]:
    """Return a table for each policy."""
    grids = []
    for title, policy in POLICIES.items():
        columns = ["temporaries", "results", "peak, MiB", "alive at once, MiB", "ratio", "in every order, MiB"]
        grid = Grid(f"Memory of plans: {title}", [*columns, *(["PyTorch eager, MiB"] if torch_is_there else [])])
        for name, plan in plans(policy()):
            results = [buffer.nbytes for buffer in plan.buffers if buffer.role is Role.OUTPUT and buffer.device != HOST]
            least = most_alive(plan) + sum(results)
            row = [float(sum(offset >= 0 for offset in plan.offsets)), float(len(results))]
            row += [plan.peak_bytes / MIB, least / MIB, plan.peak_bytes / least, least_bytes(plan) / MIB]
            grid.rows[name] = [*row, eager_peak(plan) / MIB] if torch_is_there else row
        worst = max(row[4] for row in grid.rows.values())
        grid.note = f"The largest ratio is {worst:.3f}; the target is at most 1.15."
        grids.append(grid)
    return grids


def main() -> None:
    """Plan, print the results, and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="keep nothing")
    dry = parser.parse_args().dry
    about = machine(("numpy", "torch"))
    there = has_torch()
    grids = compare(there)
    about["PyTorch"] = "compared" if there else "left out: there is none with CUDA here"
    about["load average after"] = load_average()
    print(show(grids, about))
    if not dry:
        save("memory", "Memory", grids, about)


if __name__ == "__main__":
    main()
