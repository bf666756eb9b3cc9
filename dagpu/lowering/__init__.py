"""From an op to a plan.

Loading any module of this package loads the drawings of dagpu.lowering.report, so that plans can be drawn.
"""

from dagpu.plans import drawing as _lanes  # noqa: F401  # reason: the same
from dagpu.plans import drawing as _memory  # noqa: F401  # reason: it sets a slot of dagpu.plans.plan
