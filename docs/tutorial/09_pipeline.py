"""Step 9: a function of your own as a pipeline, traced once for each shape."""

# docs: imports
import numpy as np
from numpy.typing import NDArray
from tutorial_kernels import blur, brighten, edges, overlay

from dagpu import DeviceOp, Tensor, empty, f32, from_host, pipeline

# docs: pipeline
calls: list[tuple[int, ...]] = []


@pipeline
def cartoon(picture: NDArray[f32], strength: float) -> DeviceOp[NDArray[f32]]:
    """Draw flat colours with black outlines."""
    calls.append(picture.shape)
    rows, columns = picture.shape
    tile = (rows // 4, columns)

    def new() -> DeviceOp[Tensor[f32]]:
        return empty((rows, columns))

    x = from_host(picture).shared()
    soft = blur(new().partition(tile), x).first().unpartition()
    found = edges(new().partition(tile), x).first().unpartition()
    lines = brighten(new().partition(tile), strength, found).first().unpartition()
    return overlay(new().partition(tile), soft, lines).first().unpartition().to_host()


# docs: call
small = [np.full((64, 96), level, np.float32) for level in (0.25, 0.5, 0.75)]
print([float(cartoon(picture, 3.0).sync().max()) for picture in small])
print(calls)
# docs: number
for strength in (1.0, 2.0, 4.0):
    cartoon(small[0], strength).sync()
print(len(calls))
# docs: shape
large = np.full((128, 96), 0.5, np.float32)
print(cartoon(large, 3.0).sync().shape)
print(calls)
print(cartoon.cache_info())
# docs: end

assert len(calls) == 2
