"""Kernels that are written in Python, for Triton, Numba or cuTile, as kernels of dagpu.

This package imports none of these libraries: whoever passes a kernel of one has imported it.
"""
