"""The tests of tests/test_ops_memory.py again, on the GPU."""

from tests.test_ops_memory import *  # noqa: F403  # every test and fixture there is
