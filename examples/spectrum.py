"""The spectrum of a photo: how much power each wavelength of its rows has, and the
photo without its short waves.

    rows --+--> mean --> minus mean, times window --> rfft --> powers --> mean of rows
           `--> rfft2 --> times gain --> irfft2 --> smooth photo

Photos have details of every size: along a row, the power falls about as 1 / frequency.
So a few long waves have most of it, and the rest can be taken away. A spectrum is a
tensor of complex numbers, c64, which expressions compute with: nothing goes to the host
before the end. On a GPU the transforms are calls of cuFFT, which the extra `math`
installs: `pip install '.[math]'`. On the host they are NumPy's.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    Elem,
    SharedTensor,
    Tensor,
    array,
    c64,
    expr,
    f32,
    from_host,
    pipeline,
)

WIDTH: Final = 0.04
"""The frequency, in waves for each pixel, whose amplitude the filter divides by e."""


@expr
def windowed(x: Elem[f32], mean: Elem[f32], window: Elem[f32]) -> Elem[f32]:
    return (x - mean) * window


@expr
def power(z: Elem[c64]) -> Elem[f32]:
    return z.real * z.real + z.imag * z.imag


@expr
def filtered(z: Elem[c64], down: Elem[f32], along: Elem[f32]) -> Elem[c64]:
    return z * array.exp(-(down * down + along * along) / WIDTH**2).to(c64)


@pipeline
def power_spectrum(
    rows: SharedTensor[f32], window: SharedTensor[f32]
) -> DeviceOp[Tensor[f32]]:
    """Return the mean power (m // 2 + 1,) of the frequencies of rows (n, m), which fade
    out at both ends by the window (m,)."""
    faded = windowed(rows, array.mean(rows, axis=1, keepdims=True), window)
    return power.mean(0)(array.rfft(faded))


@pipeline
def smoothed(
    photo: SharedTensor[f32], down: SharedTensor[f32], along: SharedTensor[f32]
) -> DeviceOp[Tensor[f32]]:
    """Return a photo (n, m) without its short waves, of the frequencies down (n, 1) and
    along its rows (m // 2 + 1,)."""
    return array.irfft2(filtered(array.rfft2(photo), down, along), photo.shape)


def main() -> None:
    from sklearn.datasets import load_sample_image

    photo: Any = load_sample_image("china.jpg")
    grey: NDArray[f32] = photo.mean(axis=2, dtype=np.float32)
    count, columns = grey.shape
    window = np.hanning(columns).astype(np.float32)
    down = np.fft.fftfreq(count)[:, None].astype(np.float32)
    along = np.fft.rfftfreq(columns).astype(np.float32)
    rows, *others = [
        from_host(each).sync().share() for each in (grey, window, down, along)
    ]

    found = power_spectrum(rows, others[0]).to_host().sync()
    middle = np.arange(4, columns // 4)
    falls = -np.polyfit(np.log(middle), np.log(found[middle]), 1)[0]
    print(
        f"{count} rows of {columns} columns: the power falls as frequency ** "
        f"-{falls:.2f}"
    )

    smooth = smoothed(rows, *others[1:]).to_host().sync()
    error = np.linalg.norm(smooth - grey) / np.linalg.norm(grey)
    print(f"waves of more than {1 / WIDTH:.0f} pixels show it but for {error:.1%}")

    faded = (grey - grey.mean(axis=1, keepdims=True)) * window
    by_numpy = (np.abs(np.fft.rfft(faded)) ** 2).mean(axis=0)
    assert np.allclose(found, by_numpy, rtol=1e-3, atol=1e-6 * by_numpy.max())
    gain = np.exp(-(down**2 + along**2) / WIDTH**2)
    assert np.allclose(
        smooth, np.fft.irfft2(np.fft.rfft2(grey) * gain, grey.shape), rtol=0, atol=1e-2
    )
    assert 0.8 < falls < 1.2
    assert error < 0.2


if __name__ == "__main__":
    main()
