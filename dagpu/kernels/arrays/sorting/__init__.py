"""Sorting along the last axis, and what follows from it: by kernels of our own, with the same bits on every device."""
