"""The tests of tests/test_spawn.py again, on the GPU."""

from tests.test_spawn import *  # noqa: F403  # every test and fixture there is
