"""What the backends that run the CUDA text of kernels share: its unit, its packed parameters, a cache on disk."""
