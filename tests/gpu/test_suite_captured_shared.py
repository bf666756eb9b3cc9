"""The tests of tests/test_captured_shared.py again, on the GPU; their marks are in page-locked memory."""

from tests.gpu.test_suite_once import marks_of_the_gpu as marks_of_the_gpu
from tests.test_captured_shared import *  # noqa: F403  # every test and fixture there is
