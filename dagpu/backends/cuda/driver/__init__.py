"""The CUDA driver: a protocol, and its implementation with PyCUDA and cuda.bindings."""
