"""Ops: immutable descriptions of device work. Importing any module of this package imports dagpu.ops.nodes, which
the fluent methods need."""

from dagpu.ops import nodes as _nodes  # noqa: F401  # reason: it sets dagpu.ops.base.NODES
