"""Random DAGs against NumPy, as a script: for a tool that looks over the GPU's shoulder, such as compute-sanitizer.

python -m tests.gpu.support.dags [examples]
"""

import os
import sys

from hypothesis import HealthCheck, given, settings

from dagpu import SchedulingPolicy, current_device
from tests.programs.dag_results import expected, run
from tests.programs.expressions import Expr
from tests.programs.strategies import descriptions, policies


def main(examples: int) -> None:
    """Run `examples` random DAGs, the same ones each time."""
    os.environ.setdefault("DAGPU_DEVICE", "cuda:0")
    count = 0

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(descriptions, policies)
    def check(e: Expr, policy: SchedulingPolicy) -> None:
        nonlocal count
        count += 1
        assert run(e, policy) == expected(e)

    check()
    print(f"{count} random DAGs on {current_device().name}: each gives what NumPy gives, to the bit")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
