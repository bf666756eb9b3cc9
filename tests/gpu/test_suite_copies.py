"""The tests of tests/test_copies.py again, on the GPU."""

from tests.test_copies import *  # noqa: F403  # every test and fixture there is
