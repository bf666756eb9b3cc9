"""A device that does what no real one will do on request: every order of work that streams and events allow.

`explore:0` executes plans on one thread, in an order chosen by a seed or a list of choices, over memory that is filled
with poison wherever nothing has been written. So a missing order between two steps shows as a wrong result, the same
each time. Kernels run their host bodies. It is the model checker of everything above it: scheduler, memory plan, runs.

A run is done by whoever waits for it, on that thread; under trio that is once the other tasks have had their turn. Runs
of several tasks that are under way at once within one `exploring` take turns, step by step. But no task goes on while a
host function runs, so one that waits for another task waits forever here.

A kernel that is declared `in_place` is held against that: see `dagpu.backends.explore.element_wise`.
"""

from dagpu.backends.explore.backend import ExploreBackend as ExploreBackend
from dagpu.backends.explore.exploration import Exploration as Exploration
from dagpu.backends.explore.exploration import exploring as exploring
from dagpu.backends.explore.search import Search as Search
