"""The tests of tests/test_errors.py again, on the GPU."""

from tests.test_errors import *  # noqa: F403  # every test and fixture there is
