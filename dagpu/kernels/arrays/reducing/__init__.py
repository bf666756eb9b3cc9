"""Reductions over axes: their order, their kernels and the public functions."""
