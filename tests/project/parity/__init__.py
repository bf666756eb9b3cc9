"""The constructs that the Rust originals' documentation shows: theirs, ours, and a program that runs ours.

The rows are cuda-async's (readme, older documentation, the source of its CUDA graphs), cutile's introduction to async
execution with its three exercises, and async-cuda-core's. docs/parity.md is made of them, and
tests/project/test_parity.py runs each.
"""

from typing import Final

from tests.project.parity import operations, runs, tutorials
from tests.project.parity.rows import Row

__all__ = ["ROWS", "Row"]

ROWS: Final[list[Row]] = [row for module in (operations, runs, tutorials) for row in module.TABLE.rows]
