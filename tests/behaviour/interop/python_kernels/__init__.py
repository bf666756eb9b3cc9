"""Kernels of Triton, Numba and cuTile as kernels of dagpu, with the libraries or with what they once gave."""
