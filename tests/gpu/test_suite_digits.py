"""The tests of tests/test_digits.py again, on the GPU."""

from tests.test_digits import *  # noqa: F403  # every test and fixture there is
