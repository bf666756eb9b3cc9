"""Step 5: two branches from one picture, which overlap and join again."""

# docs: imports
import numpy as np
from numpy.typing import NDArray
from tutorial_kernels import blur, brighten, edges, overlay

from dagpu import (
    DeviceOp,
    In,
    SharedTensor,
    Tensor,
    empty,
    f32,
    from_host,
    plan_of,
    value,
)

SHAPE, TILE = (1024, 1536), (64, 512)


# docs: pieces
def new() -> DeviceOp[Tensor[f32]]:
    """Return memory for one picture, which a kernel writes whole."""
    return empty(SHAPE)


def blurred(x: In[f32]) -> DeviceOp[Tensor[f32]]:
    return blur(new().partition(TILE), x).first().unpartition()


def lines_of(x: In[f32]) -> DeviceOp[Tensor[f32]]:
    found = edges(new().partition(TILE), x).first().unpartition()
    return brighten(new().partition(TILE), 3.0, found).first().unpartition()


# docs: branches
def cartoon(x: DeviceOp[SharedTensor[f32]]) -> DeviceOp[Tensor[f32]]:
    """Draw flat colours with black outlines: blur the picture twice and draw its
    edges on the result."""
    colours = blurred(blurred(x))
    outlines = lines_of(x)
    return overlay(new().partition(TILE), colours, outlines).first().unpartition()


# docs: run
rows, columns = np.mgrid[0 : SHAPE[0], 0 : SHAPE[1]]
waves = np.sin(rows / 40) * np.cos(columns / 60)
picture = (np.round(2 + 2 * waves) / 4).astype(np.float32)  # five shades of grey

pipeline: DeviceOp[NDArray[f32]] = cartoon(from_host(picture).shared()).to_host()
drawn = pipeline.sync()
print(drawn.shape, drawn.dtype)
# docs: explain
fresh = cartoon(from_host(picture).shared()).to_host()
print(fresh.explain())
# docs: picture
fresh.save_svg("cartoon-dag.svg")
on_device = from_host(picture).share().sync()
plan = plan_of(cartoon(value(on_device)))
plan.save_svg("cartoon-lanes.svg")
print(len(plan.lanes), "lanes,", plan.peak_bytes, "bytes beyond the picture")
# docs: end

assert drawn.shape == SHAPE
assert 0 <= drawn.min() <= drawn.max() <= 1
