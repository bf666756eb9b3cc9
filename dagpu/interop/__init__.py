"""The exchange of arrays with other libraries, without a copy where that is asked for by name.

`dagpu` exports its functions. It imports none of the other libraries.
"""

from dagpu.common.errors import ExportError, ForeignError, InteropError
from dagpu.handles import EXPORTS
from dagpu.interop.array_libraries import BodyLane as Lane
from dagpu.interop.array_libraries import OperandView as View
from dagpu.interop.array_libraries import current_lane
from dagpu.interop.arrays import ForeignArray, StreamLike, SupportsCudaArray, SupportsCudaStream, SupportsDLPack
from dagpu.interop.cutile_kernels import cutile_kernel
from dagpu.interop.foreign_bodies import Body
from dagpu.interop.foreign_ops import Foreign, ForeignFunction, extent, foreign, new, require, reserve
from dagpu.interop.incoming import Lent, adopt, from_array, lend, lend_mut, lent_out, share_array, unversioned
from dagpu.interop.numba_kernels import numba_kernel
from dagpu.interop.outgoing import HandleExports
from dagpu.interop.triton_kernels import triton_kernel

__all__ = [
    "Body",
    "ExportError",
    "Foreign",
    "ForeignArray",
    "ForeignError",
    "ForeignFunction",
    "InteropError",
    "Lane",
    "Lent",
    "StreamLike",
    "SupportsCudaArray",
    "SupportsCudaStream",
    "SupportsDLPack",
    "View",
    "adopt",
    "current_lane",
    "cutile_kernel",
    "extent",
    "foreign",
    "from_array",
    "lend",
    "lend_mut",
    "lent_out",
    "new",
    "numba_kernel",
    "require",
    "reserve",
    "share_array",
    "triton_kernel",
    "unversioned",
]

EXPORTS.set(HandleExports())
