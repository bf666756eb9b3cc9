"""Random DAGs over several GPUs for some minutes, by several threads at once, each compared with the host.

python -m tests.gpu.long.mesh_storm MINUTES cuda:0 cuda:1 ...
"""

import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dagpu import Mesh, Spread, StreamInterpreter, use_interpreter
from tests.gpu.support.several import several_gpus
from tests.programs.expressions import bits
from tests.programs.meshes import EAGER, Scatter
from tests.programs.trials import random_dag

THREADS = 3


def storm(number: int, names: Sequence[str], end: float) -> int:
    """Run random DAGs until this time. Return how many."""
    draw, count = random.Random(number), 0
    while time.monotonic() < end or not count:
        seed, places = draw.randrange(1 << 16), draw.sample(list(names), draw.randint(2, len(names)))
        wanted = list(map(bits, random_dag(seed).on("host").sync()))
        there = Mesh(places)
        policy: Any = draw.choice([Scatter(there, seed), Spread(there, costs=EAGER)])
        with use_interpreter(StreamInterpreter(policy=policy, graph_from=draw.choice([1, 2, None]))):
            for _ in range(4):
                assert list(map(bits, random_dag(seed).sync())) == wanted, (seed, places, policy)
                count += 1
    return count


def main() -> None:
    minutes, names = float(sys.argv[1]), sys.argv[2:]
    end = time.monotonic() + 60 * minutes
    with several_gpus(len(names)), ThreadPoolExecutor(THREADS) as pool:
        counts = list(pool.map(lambda number: storm(number, names, end), range(THREADS)))
    print(f"{sum(counts):,} runs on {', '.join(names)}, all with the bits of the host")


if __name__ == "__main__":
    main()
