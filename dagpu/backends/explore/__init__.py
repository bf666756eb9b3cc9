"""A device that does what no real one will do on request: every order of work that streams and events allow.

`explore:0` executes plans on one thread, in an order chosen by a seed or a list of choices, over memory that is filled
with poison wherever nothing has been written. So a missing order between two steps shows as a wrong result, the same
each time. Kernels run their host bodies. It is the model checker of everything above it: scheduler, memory plan, runs.

A run is done by whoever waits for it, on that thread: under trio no other task goes on meanwhile. So a host function
that waits for another task waits forever here.
"""

from dagpu.backends.explore.backend import ExploreBackend as ExploreBackend
from dagpu.backends.explore.exploration import Exploration as Exploration
from dagpu.backends.explore.exploration import exploring as exploring
from dagpu.backends.explore.search import Search as Search
