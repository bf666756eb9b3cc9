"""A low-pass filter with CuPy's Fourier transforms inside of a pipeline: one op of the
plan, and nothing is copied.

On a GPU with CuPy the transforms run on dagpu's memory and stream, and their
temporaries come from its pool. Without CuPy, and on the host, the NumPy body does the
same work.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    In,
    Tensor,
    array,
    current_device,
    f32,
    foreign,
    from_host,
    pipeline,
    use_device,
)
from dagpu.interop import extent, new, require

SIGNALS, SAMPLES, WAVES = 16, 1024, 8


@foreign
def low_pass(x: In[f32], waves: int) -> Tensor[f32]:
    """Each row of x (signals, samples) without its waves of more than `waves` periods:
    (signals, samples)."""
    require(0 <= waves <= extent(x, 1) // 2, "there are no such waves")
    return new(x)


@low_pass.on("cupy")
def _(x: Any, waves: int, out: Any) -> None:
    import cupy

    spectrum = cupy.fft.rfft(x, axis=1)
    spectrum[:, waves + 1 :] = 0
    out[...] = cupy.fft.irfft(spectrum, n=x.shape[1], axis=1)


@low_pass.host
def _(x: NDArray[f32], waves: int, out: NDArray[f32]) -> None:
    spectrum = np.fft.rfft(x, axis=1)
    spectrum[:, waves + 1 :] = 0
    out[...] = np.fft.irfft(spectrum, n=x.shape[1], axis=1)


@pipeline(graph_from=2)
def smooth(x: In[f32]) -> DeviceOp[Tensor[f32], Any]:
    """The means of groups of signals, after the filter."""
    return array.mean(low_pass(x, WAVES), axis=0)


def main() -> None:
    rng = np.random.default_rng(1)
    on_gpu = current_device().kind == "cuda"
    without = on_gpu and find_spec("cupy") is None
    if without:
        print("CuPy is not installed, so the example runs on the host")
    at = np.arange(SAMPLES) / SAMPLES
    wave = np.sin(2 * np.pi * 3 * at)
    with use_device("host" if without else current_device()):
        for number in range(4):
            noise = np.sin(2 * np.pi * (100 + number) * at) * rng.standard_normal(
                (SIGNALS, 1)
            )
            found = (
                smooth(from_host((wave + noise).astype(f32)).sync().share())
                .to_host()
                .sync()
            )
            assert np.allclose(found, wave, atol=1e-5), number
    print(
        f"{SIGNALS} signals filtered 4 times in a pipeline on "
        f"{current_device().name}: the slow wave alone is left"
    )


if __name__ == "__main__":
    main()
