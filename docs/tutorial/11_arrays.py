"""Step 11: arrays without CUDA: an expression, and reductions."""

# docs: imports
import numpy as np

from dagpu import (
    DeviceOp,
    SharedTensor,
    Tensor,
    array,
    expr,
    f32,
    from_host,
    i64,
    pipeline,
)

# docs: expression
scaled = expr(f32, f32)(lambda x, size: array.where(size > 0, x / size, x))
print(scaled.cuda)


# docs: program
@pipeline
def normalised(x: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    """Divide each column by its norm."""
    return scaled(x, array.norm(x, axis=0))


# docs: run
numbers = np.array([[3.0, 0.0, 1.0], [4.0, 0.0, -1.0]], np.float32)
x = from_host(numbers).sync().share()
print(normalised(x).to_host().sync())
largest: DeviceOp[Tensor[i64]] = array.argmax(x, axis=1)
print(largest.to_host().sync())
# docs: bits
again = [normalised(x).to_host().sync().tobytes() for _ in range(3)]
print(len(set(again)))
# docs: end

assert len(set(again)) == 1
assert np.allclose(normalised(x).to_host().sync()[:, 0], [0.6, 0.8])
