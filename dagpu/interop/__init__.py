"""The exchange of arrays with other libraries, without a copy where that is asked for by name.

`dagpu` exports its functions. It imports none of the other libraries.
"""

from dagpu.common.errors import ExportError, InteropError
from dagpu.interop.foreign_arrays import ForeignArray, StreamLike, SupportsCudaArray, SupportsCudaStream, SupportsDLPack
from dagpu.interop.incoming import adopt, from_array, lend, lend_mut, share_array
from dagpu.interop.outgoing import Lent, lent_out, unversioned

__all__ = [
    "ExportError",
    "ForeignArray",
    "InteropError",
    "Lent",
    "StreamLike",
    "SupportsCudaArray",
    "SupportsCudaStream",
    "SupportsDLPack",
    "adopt",
    "from_array",
    "lend",
    "lend_mut",
    "lent_out",
    "share_array",
    "unversioned",
]
