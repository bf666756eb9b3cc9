"""The error codes. Creating one registers it with mypy, for `type: ignore[...]` and for per-module settings.

The codes have no common parent: with one, `mypy --strict` would ask for the narrower code in every ignore of the
parent.
"""

from typing import Final

from mypy.errorcodes import ErrorCode

NOT_READY: Final = ErrorCode("dagpu-not-ready", "A handle or an op is read as if it were an array of the host", "dagpu")
USE_AFTER_MOVE: Final = ErrorCode("dagpu-use-after-move", "A handle is used after it may have been moved", "dagpu")
CONFLICTING_BORROW: Final = ErrorCode("dagpu-conflicting-borrow", "A borrow conflicts with one that is alive", "dagpu")
BORROW_ESCAPE: Final = ErrorCode("dagpu-borrow-escape", "A borrow outlives the tensor it was lent from", "dagpu")
FEED_ESCAPE: Final = ErrorCode("dagpu-feed-escape", "A feed outlives the block in which its flow is open", "dagpu")
OUTPUT_PARTITION: Final = ErrorCode("dagpu-output-partition", "A kernel's output is not a fitting partition", "dagpu")
INPUT_RANK: Final = ErrorCode("dagpu-input-rank", "A kernel's input has another rank than CUDA declares", "dagpu")
UNUSED_OP: Final = ErrorCode("dagpu-unused-op", "An op or a flow is built and never run", "dagpu")
SEES: Final = ErrorCode("dagpu-sees", "What a kernel declares to see does not fit its parameters", "dagpu")
SOURCE_PART: Final = ErrorCode("dagpu-source-part", "A part that is written does not lie in its source", "dagpu")
SOURCE_VALUE: Final = ErrorCode("dagpu-source-value", "A source is to hold a tuple with a handle in it", "dagpu")
GRAPH_NODE: Final = ErrorCode("dagpu-graph-node", "An op that cannot be recorded into a CUDA graph", "dagpu")
