"""The tests of tests/test_structure.py again, on the GPU."""

from tests.test_structure import *  # noqa: F403  # every test and fixture there is
