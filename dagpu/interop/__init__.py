"""The exchange of arrays with other libraries, without a copy where that is asked for by name.

`dagpu` exports its functions. It imports none of the other libraries.
"""

from dagpu.common.errors import ExportError, ForeignError, InteropError
from dagpu.handles import EXPORTS
from dagpu.interop.foreign_arrays import ForeignArray, StreamLike, SupportsCudaArray, SupportsCudaStream, SupportsDLPack
from dagpu.interop.foreign_ops.bodies import Body
from dagpu.interop.foreign_ops.foreign_calls import Foreign, ForeignFunction
from dagpu.interop.foreign_ops.foreign_declaration import foreign
from dagpu.interop.foreign_ops.lane_views import BodyLane as Lane
from dagpu.interop.foreign_ops.lane_views import OperandView as View
from dagpu.interop.foreign_ops.lane_views import current_lane
from dagpu.interop.foreign_ops.shape_rules import extent, new, require, reserve
from dagpu.interop.incoming import adopt, from_array, lend, lend_mut, share_array
from dagpu.interop.lent_arrays import Lent, lent_out, unversioned
from dagpu.interop.outgoing import HandleExports
from dagpu.interop.python_kernels.cutile_kernels import cutile_kernel
from dagpu.interop.python_kernels.numba_kernels import numba_kernel
from dagpu.interop.python_kernels.triton_kernels import triton_kernel

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
