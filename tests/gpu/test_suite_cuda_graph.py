"""The tests of tests/test_cuda_graph.py again, on the GPU."""

from tests.test_cuda_graph import *  # noqa: F403  # every test and fixture there is
