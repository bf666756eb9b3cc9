"""Kernel launches for the driver: packed parameters, dagpu's own fill and copy kernels, the CUDA prelude."""
