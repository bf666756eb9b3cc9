"""The tests of tests/test_unzip_stages.py again, on the GPU, whose kernels leave their marks in page-locked memory."""

from tests.gpu.test_suite_once import marks_of_the_gpu as marks_of_the_gpu
from tests.test_unzip_stages import *  # noqa: F403  # every test and fixture there is
