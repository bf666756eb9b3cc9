"""The tests of tests/test_seeds.py again, on the GPU."""

from tests.test_seeds import *  # noqa: F403  # every test and fixture there is
