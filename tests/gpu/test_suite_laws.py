"""The tests of tests/test_laws.py again, on the GPU."""

from tests.test_laws import *  # noqa: F403  # every test and fixture there is
