"""The CUDA text of kernels on the host: what is found in wrong ones, and that right ones run."""
