"""From an op to a plan. Loading any module of this package loads dagpu.lowering.picture, so that plans can be drawn."""

from dagpu.lowering import picture as _picture  # noqa: F401  # reason: it sets dagpu.lowering.plan.DRAWING
