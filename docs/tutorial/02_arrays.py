"""Step 2: arrays without CUDA: an expression, and reductions."""

# docs: imports
import numpy as np

from dagpu import Elem, array, expr, f32, from_host


# docs: expression
@expr
def scaled(x: Elem[f32], size: Elem[f32]) -> Elem[f32]:
    return array.where(size > 0, x / size, x)


# docs: run
numbers = np.array([[3.0, 0.0, 12.0], [4.0, 0.0, -5.0]], np.float32)

norms = array.norm(from_host(numbers), axis=0)
normalised = scaled(from_host(numbers), norms).to_host()
print(normalised.sync())
# docs: largest
largest = array.argmax(from_host(numbers), axis=1).to_host()
print(largest.sync())
# docs: text
print(scaled.cuda)
# docs: bits
again = [normalised.sync().tobytes() for _ in range(3)]
print(len(set(again)))
# docs: end

assert len(set(again)) == 1
assert np.allclose(normalised.sync()[:, 0], [0.6, 0.8])
