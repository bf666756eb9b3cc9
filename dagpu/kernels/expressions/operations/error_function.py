"""The error function, which NumPy does not have, for arrays of f32 and f64.

The approximations are those of FreeBSD's s_erf.c (Sun Microsystems, 1993), with an error below 1 ulp. f32 is computed
in f64 and rounded.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_TINY: Final = (
    (1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03,
     -2.37630166566501626084e-05),
    (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06),
)  # fmt: skip
"""Numerator and denominator for |x| below 0.84375."""
_NEAR: Final = (
    (-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
     -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03),
    (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
)  # fmt: skip
"""For |x| from there to 1.25, about 1."""
_MIDDLE: Final = (
    (-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01, -6.23753324503260060396e+01,
     -1.62396669462573470355e+02, -1.84605092906711035994e+02, -8.12874355063065934246e+01,
     -9.81432934416914548592e+00),
    (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02, 6.57024977031928170135e+00,
     -6.04244152148580987438e-02),
)  # fmt: skip
"""For |x| from there to 1 / 0.35."""
_FAR: Final = (
    (-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01, -1.60636384855821916062e+02,
     -6.37566443368389627722e+02, -1.02509513161107724954e+03, -4.83519191608651397019e+02),
    (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02, -2.24409524465858183362e+01),
)  # fmt: skip
"""For |x| from there to 6."""
_ONE_PART: Final = 8.45062911510467529297e-01
"""erf(1), as a number with few bits."""


def erf(x: Any, out: Any = None) -> Any:
    """Return the error function of each element, with the element type of `x`, in `out` if that is given."""
    given = np.asarray(x)
    found = _erf(np.atleast_1d(given).astype(np.float64)).reshape(given.shape).astype(given.dtype)
    if out is None:
        return found[()]
    np.copyto(out, found)
    return out


def _erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    size = np.abs(x)
    found = np.sign(x)  # NaN stays NaN; from 6 on it is 1
    tiny = size < 0.84375
    part = x[tiny]
    found[tiny] = part + part * _ratio(_TINY, part * part)
    near = ~tiny & (size < 1.25)
    found[near] *= _ONE_PART + _ratio(_NEAR, size[near] - 1.0)
    for table, low, high in ((_MIDDLE, 1.25, 1 / 0.35), (_FAR, 1 / 0.35, 6.0)):
        inside = (size >= low) & (size < high)
        part = size[inside]
        # exp(-x * x) of the exact square: z is x without its lower bits, so that z * z is exact.
        z = (part.view(np.int64) & ~np.int64(0xFFFFFFFF)).view(np.float64)
        tail = np.exp(-z * z - 0.5625) * np.exp((z - part) * (z + part) + _ratio(table, 1.0 / (part * part)))
        found[inside] *= 1.0 - tail / part
    return found


def _ratio(table: "tuple[tuple[float, ...], tuple[float, ...]]", x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quotient of two polynomials; coefficients in rising order."""
    numerator, denominator = (_polynomial(coefficients, x) for coefficients in table)
    found: NDArray[np.float64] = numerator / denominator
    return found


def _polynomial(coefficients: "tuple[float, ...]", x: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found
