"""Four tensors made in parallel: `zip_ops` declares that its branches do not depend on
one another.

So the scheduler may put each on a separate stream, and all of them are one run, with
one wait.
"""

import numpy as np
import trio

from dagpu import arange, ones, randn, zeros, zip_ops


async def create() -> None:
    four = zip_ops(
        ones((100, 100)).share(),
        zeros((100, 100)).share(),
        randn((100, 100), mean=0.0, std=1.0, seed=7).share(),
        arange(10_000).share(),
    )
    a, b, c, d = await four
    for name, tensor in zip("abcd", (a, b, c, d), strict=True):
        print(
            f"{name}: shape {tensor.shape}, {tensor.dtype}, {tensor.nbytes} bytes "
            f"on {tensor.device.name}"
        )

    # Reading is an op too, and the four copies to the host overlap in the same way.
    ones_, zeros_, noise, ramp = await zip_ops(
        a.to_host(), b.to_host(), c.to_host(), d.to_host()
    )
    assert (ones_ == 1).all()
    assert (zeros_ == 0).all()
    assert np.array_equal(ramp, np.arange(10_000))

    # With 10,000 draws the standard error of the mean is 0.01 and of the deviation
    # 0.007; the bounds are 5 of each.
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.035


def main() -> None:
    trio.run(create)


if __name__ == "__main__":
    main()
