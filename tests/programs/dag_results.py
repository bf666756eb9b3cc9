"""Results of random DAGs, run by dagpu and evaluated by NumPy."""

from typing import Any

import trio

from dagpu import SchedulingPolicy, StreamInterpreter, use_interpreter
from tests.programs.expressions import Building, Evaluation, Expr, bits, build, evaluate


def run(e: Expr, policy: SchedulingPolicy, *, under_trio: bool = False) -> list[Any]:
    """Run a DAG. Return the bits of the result, and of every outside tensor that it writes."""
    b = Building()
    with use_interpreter(StreamInterpreter(policy=policy)):
        op = build(e, b).to_host()
        result = trio.run(_await, op) if under_trio else op.sync()
        return [bits(result), *[bits(tensor.to_host().sync()) for tensor in b.written]]


async def _await(op: Any) -> Any:
    return await op


def expected(e: Expr) -> list[Any]:
    """Return the same results as `run`, computed by NumPy."""
    v = Evaluation()
    return [bits(evaluate(e, v)), *map(bits, v.written)]
