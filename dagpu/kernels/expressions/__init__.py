"""Element-wise expressions: a typed Python function of elements becomes one CUDA kernel and its NumPy twin."""
