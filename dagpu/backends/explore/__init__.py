"""A simulated device that executes plans in any order that streams and events allow, chosen by the user.

`explore:0` executes plans on one thread, in an order chosen by a seed or a list of choices, over memory that is filled
with poison wherever nothing has been written. So a missing order between two steps shows as a wrong result, the same
each time. Kernels run their host bodies. It is the model checker of everything above it: scheduler, memory plan, runs.

The caller that waits for a run executes it, on its own thread; under trio, after the other tasks have had their turn.
Runs of several tasks that are in progress at once within one `exploring` take turns, step by step. But no task goes on
while a host function runs, so a host function that waits for another task waits forever here.

The declaration `in_place` of a kernel is checked: see `dagpu.backends.explore.store`.
"""

from dagpu.backends.explore.backend import ExploreBackend as ExploreBackend
from dagpu.backends.explore.exploration import Exploration as Exploration
from dagpu.backends.explore.exploration import exploring as exploring
from dagpu.backends.explore.search import Search as Search
