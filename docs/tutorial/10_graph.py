"""Step 10: a CUDA graph in your own hands: capture, launch, update."""

# docs: imports
import numpy as np
from tutorial_kernels import blur, brighten, edges, overlay

from dagpu import (
    Borrowed,
    DeviceOp,
    SharedTensor,
    Tensor,
    TensorRef,
    f32,
    from_host,
    memcpy,
    zeros,
)

SHAPE, TILE = (64, 96), (16, 96)


def cartoon(x: SharedTensor[f32] | TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """Draw the cartoon of step 5 from a picture that is shared or lent, because it is
    read twice."""
    soft = blur.new(SHAPE, TILE)(x)
    found = edges.new(SHAPE, TILE)(x)
    lines = brighten.new(SHAPE, TILE)(3.0, found)
    return overlay.new(SHAPE, TILE)(soft, lines)


# docs: capture
picture = np.zeros(SHAPE, np.float32)
graph = from_host(picture).share().then(cartoon).graph()
output = graph.take_output()
print(output)
# docs: launch
for level in (0.25, 0.5, 0.75):
    picture[...] = level
    graph.launch().sync()
    print(level, output.borrow().to_host().sync().max())
# docs: compose
again = graph.launch().then(lambda _: output.borrow().to_host())
print(again.sync().max())
# docs: update
screen = zeros(SHAPE).sync()
on_device = cartoon(screen.borrow()).graph()
shown = on_device.take_output()

# in practice, the result of an earlier op
frame = from_host(np.full(SHAPE, 0.5, np.float32)).sync()
on_device.update(memcpy(screen.borrow_mut(), frame.borrow()))
on_device.launch().sync()
print(shown.borrow().to_host().sync().max())
# docs: end

assert again.sync().max() == np.float32(0.75)
