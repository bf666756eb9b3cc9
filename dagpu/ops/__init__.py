"""Ops, as descriptions. Loading any module of this package loads dagpu.ops.nodes, so that fluent methods work."""

from dagpu.ops import nodes as _nodes  # noqa: F401  # reason: it sets dagpu.ops.base.NODES
