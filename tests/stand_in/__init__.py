"""A stand-in for libcuda that only records its calls.

With it, tests check without a GPU and without a driver that PyCUDA and cuda.bindings pass on the right arguments.
"""
