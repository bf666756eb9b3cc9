"""Step 3: a kernel, in CUDA C++ and in NumPy."""

# docs: imports
import numpy as np
from numpy.typing import NDArray

from dagpu import DeviceOp, In, Out, Tile, empty, f32, from_host, kernel


# docs: kernel
@kernel(
    cuda="""
__global__ void brighten(Tile<float, 2> y, float gain, View<const float, 2> x) {
    for (auto i : y) y[i] = fminf(gain * x[i], 1.0f);
}
"""
)
def brighten(y: Out[f32], gain: float, x: In[f32]) -> None:
    """y = gain * x, at most white."""


# docs: host
@brighten.host
def _(y: Tile[f32], gain: float, x: NDArray[f32]) -> None:
    y[...] = np.minimum(f32(gain) * x[y.at], 1)


# docs: call
picture = np.full((64, 96), 0.4, np.float32)
output = empty((64, 96)).partition((16, 32))
launch = brighten(output, 2.0, from_host(picture))
# docs: parts
partition, gain, unchanged = launch.sync()
print(partition)
print(partition.grid, gain, unchanged)
# docs: pipeline
pipeline: DeviceOp[NDArray[f32]] = brighten.new((64, 96), (16, 32))(
    2.0, from_host(picture)
).to_host()
bright = pipeline.sync()
print(bright.shape, bright.min(), bright.max())
# docs: end

assert np.array_equal(bright, np.full((64, 96), 0.8, np.float32))
