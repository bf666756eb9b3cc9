"""From an op to a plan.

Loading any module of this package loads dagpu.lowering.report.plan_drawing, so that plans can be drawn.
"""

from dagpu.lowering.report import plan_drawing as _picture  # noqa: F401  # reason: it sets dagpu.lowering.plan.DRAWING
