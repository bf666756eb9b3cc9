"""Declarations of kernels, their signatures in Python and CUDA, and the check of the arguments of a call."""
