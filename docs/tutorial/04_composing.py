"""Step 4: ops out of ops: functions, then, zip_ops, unzip, shared."""

# docs: imports
import numpy as np
from tutorial_kernels import blur, brighten

from dagpu import DeviceOp, In, Tensor, empty, f32, from_host, zip_ops

# docs: functions
SHAPE, TILE = (64, 96), (16, 32)


def brighter(gain: float, x: In[f32]) -> DeviceOp[Tensor[f32]]:
    return brighten.new(SHAPE, TILE)(gain, x)


def blurred(x: In[f32]) -> DeviceOp[Tensor[f32]]:
    return blur.new(SHAPE, TILE)(x)


# docs: chain
rows, columns = np.mgrid[0:64, 0:96]
picture = ((rows // 8 + columns // 8) % 2).astype(np.float32)

soft = blurred(brighter(0.5, from_host(picture))).to_host()
print(soft.sync().max())
# docs: then
shapes: list[tuple[int, ...]] = []


def twice(x: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
    shapes.append(x.shape)
    return blurred(blurred(x))


softer = brighter(0.5, from_host(picture)).then(twice).to_host()
print(softer.sync().shape, shapes)
# docs: zip
light, dark = zip_ops(
    brighter(0.9, from_host(picture)).to_host(),
    brighter(0.1, from_host(picture)).to_host(),
).sync()
print(light.max(), dark.max())
# docs: unzip
partition, _, original = brighten(
    empty(SHAPE).partition(TILE), 0.5, from_host(picture)
).unzip()
before, after = zip_ops(original.to_host(), partition.unpartition().to_host()).sync()
print(before.max(), after.max())
# docs: shared
uploaded = (
    from_host(picture).inspect(lambda tensor: print("uploaded", tensor.shape)).shared()
)
copies = zip_ops(brighter(0.9, uploaded).to_host(), blurred(uploaded).to_host())
light, blurry = copies.sync()
light, blurry = copies.sync()
# docs: end

assert light.max() == np.float32(0.9)
assert np.isclose(blurry.mean(), picture.mean())
assert np.array_equal(before, picture)
