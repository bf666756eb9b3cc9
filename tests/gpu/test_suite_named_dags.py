"""The tests of tests/test_named_dags.py again, on the GPU."""

from tests.test_named_dags import *  # noqa: F403  # every test and fixture there is
