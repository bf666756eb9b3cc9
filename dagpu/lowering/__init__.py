"""From an op to a plan.

Loading any module of this package loads the drawings of dagpu.lowering.report, so that plans can be drawn.
"""

from dagpu.lowering.report import memory_drawing as _memory  # noqa: F401  # reason: it sets a slot of dagpu.lowering.plan
from dagpu.lowering.report import plan_drawing as _lanes  # noqa: F401  # reason: the same
