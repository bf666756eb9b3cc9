"""A step in a third of its bytes: its way back reads what each layer has made, and the
plan makes again what there is no room to keep.

The step computes how the result of forty layers depends on their input, by the chain
rule. So it reads the layers' values in the opposite order, and holds all of them when
it turns. No order of its instructions fits within the limit, so the op is refused. With
`recompute=True` some values end early and are made again, by the same kernels. The
result has the same bits.
"""

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Elem,
    ListSchedule,
    PlanError,
    SharedTensor,
    Tensor,
    expr,
    f32,
    from_host,
    ones,
    plan_of,
)

SIZE, LAYERS = 1 << 18, 40  # 1 MiB for each value
LIMIT = 16 << 20


@expr
def layer(x: Elem[f32]) -> Elem[f32]:
    return x - 0.1 * x * x * x


@expr
def back(slope: Elem[f32], x: Elem[f32]) -> Elem[f32]:
    return slope * (1.0 - 0.3 * x * x)


def slopes(values: tuple[SharedTensor[f32], ...]) -> DeviceOp[Tensor[f32]]:
    """Go through the layers that are left, and back through all of them."""
    if len(values) < LAYERS:
        made = layer(values[-1]).share()
        return made.then(lambda value: slopes((*values, value)))
    slope = back(ones((SIZE,)), values[-1])
    for value in reversed(values[:-1]):
        slope = back(slope, value)
    return slope


def main() -> None:
    start: NDArray[f32] = np.linspace(-1, 1, SIZE, dtype=f32)
    step = from_host(start).share().then(lambda x: slopes((x,))).to_host()
    roomy = step.schedule(ListSchedule(1))
    whole = plan_of(roomy).peak_bytes

    refused = False
    try:
        step.schedule(ListSchedule(memory_limit=LIMIT)).sync()
    except PlanError as error:
        refused = True
        print(f"without recomputation: {str(error).partition(':')[0]}")

    fits = step.schedule(ListSchedule(1, memory_limit=LIMIT, recompute=True))
    print(f"{whole >> 20} MiB; with it {plan_of(fits).peak_bytes >> 20} MiB")
    report = fits.explain()
    print(report[report.index("Memory limit") : report.index("\nMemory beyond")])

    expected, value = np.ones(SIZE, f32), start
    for _ in range(LAYERS):
        expected *= 1 - 0.3 * value * value
        value = value - f32(0.1) * value * value * value
    found = fits.sync()
    assert refused
    assert plan_of(fits).peak_bytes <= LIMIT < whole
    assert found.tobytes() == roomy.sync().tobytes()
    assert np.allclose(found, expected, rtol=1e-4)


if __name__ == "__main__":
    main()
