"""The tests of tests/test_pipeline.py again, on the GPU."""

from tests.test_pipeline import *  # noqa: F403  # every test and fixture there is
