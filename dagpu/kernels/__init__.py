"""Declarations of kernels, their signatures in Python and CUDA, and the checks of the arguments of calls."""
