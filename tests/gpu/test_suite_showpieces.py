"""The tests of tests/test_showpieces.py again, on the GPU."""

from tests.test_showpieces import *  # noqa: F403  # every test and fixture there is
