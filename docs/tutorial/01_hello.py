"""Step 1: an op describes, a run does."""

# docs: imports
import numpy as np

from dagpu import Elem, arange, array, expr, f32, from_host, ones

# docs: describe
op = ones((2, 3))
print(op.to_host().sync())


# docs: compute
@expr
def odd(n: Elem[f32]) -> Elem[f32]:
    return 2 * n + 1


numbers = odd(arange(3))
print(numbers.to_host().sync())
total = array.sum(odd(arange(3)))
print(total.to_host().sync())
# docs: handle
tensor = op.sync()
print(tensor)
print(tensor.shape, tensor.dtype, tensor.nbytes)
# docs: array
on_host = tensor.to_host().sync()
print(type(on_host).__name__, on_host.sum())
# docs: picture
rows, columns = np.mgrid[0:64, 0:96]
# a chess board of 8 x 12 fields
picture = ((rows // 8 + columns // 8) % 2).astype(np.float32)

upload = from_host(picture)
round_trip = upload.to_host()
print(np.array_equal(round_trip.sync(), picture))
# docs: again
picture[:] = 0
print(round_trip.sync().max())
# docs: end

assert np.array_equal(on_host, np.ones((2, 3)))
