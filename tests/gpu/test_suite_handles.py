"""The tests of tests/test_handles.py again, on the GPU."""

from tests.test_handles import *  # noqa: F403  # every test and fixture there is
