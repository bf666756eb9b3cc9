"""The tests of tests/test_reuse.py again, on the GPU."""

from tests.test_reuse import *  # noqa: F403  # every test and fixture there is
