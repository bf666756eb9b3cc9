"""The CUDA driver: its protocol, and the implementation with PyCUDA and cuda.bindings."""
