"""The tests of tests/test_runtime.py again, on the GPU."""

from tests.test_runtime import *  # noqa: F403  # every test and fixture there is
