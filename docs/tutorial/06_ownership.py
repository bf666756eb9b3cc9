"""Step 6: who owns a tensor: moved, lent, shared."""

# docs: imports
import numpy as np
from numpy.typing import NDArray
from tutorial_kernels import brighten, overlay

from dagpu import DeviceOp, MovedError, TensorRef, empty, f32, from_host, zeros

SHAPE, TILE = (64, 96), (16, 32)
picture = np.full(SHAPE, 0.25, np.float32)

# docs: moved
tensor = from_host(picture).sync()
# the tensor moves into the op
launch = brighten(empty(SHAPE).partition(TILE), 2.0, tensor)
try:
    brighten(empty(SHAPE).partition(TILE), 3.0, tensor)
except MovedError as error:
    print(error)
# docs: back
partition, _, tensor = launch.sync()  # the kernel returns its arguments
print(tensor)
# docs: lend
for gain in (2.0, 3.0):
    lent: TensorRef[f32] = tensor.borrow()
    result: DeviceOp[NDArray[f32]] = brighten.new(SHAPE, TILE)(gain, lent).to_host()
    print(gain, result.sync().max())
# docs: write
canvas = zeros(SHAPE).sync()
brighten(canvas.borrow_mut().partition(TILE), 4.0, tensor.borrow()).sync()
print(canvas.borrow().to_host().sync().max())
# docs: share
background = canvas.share()
faint = brighten.new(SHAPE, TILE)(0.5, background)
drawn: DeviceOp[NDArray[f32]] = overlay.new(SHAPE, TILE)(background, faint).to_host()
print(drawn.sync().max())
# docs: end

assert np.array_equal(drawn.sync(), np.full(SHAPE, 0.5, np.float32))
