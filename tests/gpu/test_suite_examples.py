"""The tests of tests/test_examples.py again, on the GPU."""

from tests.test_examples import *  # noqa: F403  # every test and fixture there is
