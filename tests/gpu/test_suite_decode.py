"""The tests of tests/test_decode.py again, on the GPU."""

from tests.test_decode import *  # noqa: F403  # every test and fixture there is
