"""Kernels as the driver takes them: packed parameters, dagpu's own fill and copy kernels, the CUDA prelude."""
