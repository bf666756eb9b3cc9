"""The launch of a captured graph, as a node."""

from typing import TYPE_CHECKING, final

from dagpu.frozen import frozen
from dagpu.ops.base import Borrowed, DeviceOp, NoAlloc
from dagpu.origin import Origin

if TYPE_CHECKING:
    from dagpu.ops.captured import Captured


@final
@frozen
class GraphLaunch(DeviceOp[None, Borrowed, NoAlloc]):
    """Everything that was captured, once more, on the memory that it was captured with."""

    captured: "Captured"
    origin: Origin
