"""`import dagpu.array`, for programs that import the functions of arrays as a module: it is `dagpu.arrays`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagpu.arrays import *  # noqa: F403  # reason: its __all__ says which
    from dagpu.arrays import __all__ as __all__
else:
    import sys

    import dagpu

    sys.modules[__name__] = dagpu.array
