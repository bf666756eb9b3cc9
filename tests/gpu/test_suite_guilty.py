"""The tests of tests/test_guilty.py again, on the GPU."""

from tests.test_guilty import *  # noqa: F403  # every test and fixture there is
