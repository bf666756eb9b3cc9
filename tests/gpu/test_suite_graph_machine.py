"""The tests of tests/test_graph_machine.py again, on the GPU."""

from tests.test_graph_machine import *  # noqa: F403  # every test and fixture there is
