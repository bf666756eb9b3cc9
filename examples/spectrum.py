"""The spectrum of a photo: how much power each wavelength of its rows has, and its rows
from the long waves alone.

    rows --+--> mean --> minus mean, times window --> rfft --> copy out --> power
           `--> rfft --> irfft of the long waves --> an eighth of the columns
                     --> rfft --> irfft --> smooth rows

Photos have details of every size: along a row, the power falls about as 1 / frequency.
So a few long waves have most of it, and an eighth of the columns shows most of the
photo. On a GPU the transforms are calls of cuFFT, which the extra `math` installs: `pip
install '.[math]'`. On the host they are NumPy's.
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

TIMES: Final = 8
"""The number of columns of the photo for each one that is kept."""


@expr
def windowed(x: Elem[f32], mean: Elem[f32], window: Elem[f32]) -> Elem[f32]:
    return (x - mean) * window


@pipeline
def spectra(
    rows: SharedTensor[f32], window: SharedTensor[f32]
) -> DeviceOp[NDArray[c64]]:
    """Return the spectrum (n, m // 2 + 1) of each row (n, m), which fades out at both
    ends by the window (m,)."""
    return array.rfft(
        windowed(rows, array.mean(rows, axis=1, keepdims=True), window)
    ).to_host()


@pipeline
def smoothed(rows: SharedTensor[f32]) -> DeviceOp[Tensor[f32]]:
    """Return rows (n, m) without their short waves: they are cut to `m // TIMES`
    numbers, and these are spread again.

    An inverse transform is divided by its length, so the two factors of the cut and of
    the spread cancel.
    """
    columns = rows.shape[1]
    few = array.irfft(array.rfft(rows), columns // TIMES)
    return array.irfft(array.rfft(few), columns)


def main() -> None:
    from sklearn.datasets import load_sample_image

    photo: Any = load_sample_image("china.jpg")
    grey: NDArray[f32] = photo.mean(axis=2, dtype=np.float32)
    count, columns = grey.shape
    window = np.hanning(columns).astype(np.float32)
    rows = from_host(grey).sync().share()

    spectrum = spectra(rows, from_host(window).sync().share()).sync()
    power = (np.abs(spectrum) ** 2).mean(axis=0)
    middle = np.arange(4, columns // 4)
    falls = -np.polyfit(np.log(middle), np.log(power[middle]), 1)[0]
    print(
        f"{count} rows of {columns} columns: the power falls as frequency ** "
        f"-{falls:.2f}"
    )

    smooth = smoothed(rows).to_host().sync()
    error = np.linalg.norm(smooth - grey) / np.linalg.norm(grey)
    print(f"one of {TIMES} columns shows them with an error of {error:.1%}")

    by_numpy = np.fft.rfft((grey - grey.mean(axis=1, keepdims=True)) * window)
    assert np.allclose(spectrum, by_numpy, rtol=0, atol=1e-5 * np.abs(by_numpy).max())
    few = np.fft.irfft(np.fft.rfft(grey), columns // TIMES)
    assert np.allclose(
        smooth, np.fft.irfft(np.fft.rfft(few), columns), rtol=0, atol=1e-2
    )
    assert 0.8 < falls < 1.2
    assert error < 0.15


if __name__ == "__main__":
    main()
