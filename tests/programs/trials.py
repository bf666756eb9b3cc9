"""Plans to explore without an interpreter: the first stage of an op with its inputs. Also, random DAGs of ops."""

import random
from typing import Any

import numpy as np

from dagpu import DeviceOp, SchedulingPolicy, arange, dup, empty, from_host, full, i32, value, zip_ops
from dagpu.backends.explore.search import Trial
from dagpu.runtime.device_lookup import device
from dagpu.runtime.loaded_plan import plan_program
from dagpu.testing import Plan
from dagpu.tracing.tracer import Tracer
from tests.programs.named_dags import Op
from tests.programs.named_kernels import affine, gather, step, step_by, twist


def planned(op: DeviceOp[Any, Any, Any], policy: SchedulingPolicy) -> tuple[Plan, dict[int, object]]:
    """Return the verified plan of the op's first stage on `explore:0`, and the bindings of its input buffers.

    The op is used up.
    """
    tracer = Tracer(op, device("explore:0"), policy, device)
    try:
        stage = tracer.stage()
        return plan_program(stage.program, True), dict(stage.inputs)
    finally:
        tracer.abandon("it was only planned")


def trial(op: DeviceOp[Any, Any, Any], policy: SchedulingPolicy) -> Trial:
    """Return a trial of the op's first stage, which can execute it in any order. The op is used up."""
    return Trial(*planned(op, policy))


def random_dag(seed: int, most: int = 24) -> Op:
    """Return a DAG of up to `most` kernels on small vectors: forks, joins, updates in place, two outputs.

    A seed determines it. Its result is the array of every vector that remains at the end.
    """
    draw = random.Random(seed)
    size = draw.choice((2, 8, 200))
    shared: list[Op] = [_leaf(draw, size).shared() for _ in range(draw.randint(1, 3))]
    owned: list[Op] = [_leaf(draw, size)]

    def take() -> Op:
        return owned.pop(draw.randrange(len(owned))) if owned else _leaf(draw, size)

    def read() -> Op:
        if owned and draw.random() < 0.3:
            return take()
        return draw.choice(shared)

    for _ in range(draw.randint(3, most)):
        match draw.randrange(5):
            case 0:
                owned.append(_of(affine(empty((size,), i32).partition((size,)), read(), draw.randint(2, 9), 1)))
            case 1:
                owned.append(_of(step(take().partition((size,)), draw.randint(2, 9), draw.randint(0, 9))))
            case 2:
                owned.append(_of(gather(take().partition((size,)), read())))
            case 3:
                x, y, _root = twist(take().partition((size,)), take().partition((size,)), draw.randint(2, 9)).unzip()
                owned += [x.unpartition(), y.unpartition()]
            case _:
                shared.append(take().shared())
    return zip_ops(*[op.to_host() for op in (*owned, *shared)])


def _leaf(draw: random.Random, size: int) -> Op:
    match draw.randrange(3):
        case 0:
            return full((size,), draw.randint(1, 99), i32)
        case 1:
            return arange(size, i32)
        case _:
            return from_host(np.arange(size, dtype=i32) * i32(draw.randint(2, 9)))


def _of(launch: Op) -> Op:
    return launch.first().unpartition()


def numbered_dag(seed: int, count: int, devices: int = 0) -> Op:
    """Return a DAG of `count` steps on small vectors that also passes numbers through the host: functions of the host
    read vectors and other numbers, and kernels get what they return. It names one of `devices` devices for some of its
    vectors, which kernels then read and write together with others.

    A seed determines it. Its result is the array of every vector that remains at the end, and every number.
    """
    draw, size = random.Random(seed), 8
    shared: list[Op] = [_leaf(draw, size).shared() for _ in range(3)]
    owned: list[Op] = [_leaf(draw, size)]
    numbers: list[Op] = [value(3)]

    def take() -> Op:
        return owned.pop(draw.randrange(len(owned))) if owned else _leaf(draw, size)

    def read() -> Op:
        return take() if owned and draw.random() < 0.3 else draw.choice(shared)

    for _ in range(count):
        match draw.randrange(8):
            case 0:
                owned.append(_of(affine(empty((size,), i32).partition((size,)), read(), draw.randint(2, 9), 1)))
            case 1 | 2:
                owned.append(_of(step_by(take().partition((size,)), draw.choice(numbers), draw.choice(numbers))))
            case 3:
                owned.append(_of(gather(take().partition((size,)), read())))
            case 4:
                x, y, _root = twist(take().partition((size,)), take().partition((size,)), draw.randint(2, 9)).unzip()
                owned += [x.unpartition(), y.unpartition()]
            case 5:
                owned.append(take().then(dup))
                number = draw.randrange(8)
                if number < devices:
                    owned[-1] = owned[-1].on(f"host:{number}")
            case 6:
                shared.append(take().shared())
                numbers.append(read().to_host().host_map(_digit).shared())
            case _:
                numbers.append(zip_ops(draw.choice(numbers), draw.choice(numbers)).host_map(_digit).shared())
    return zip_ops(*[op.to_host() for op in (*owned, *shared)], *numbers)


def _digit(found: Any) -> int:
    return int(np.sum(found)) % 7 + 2
