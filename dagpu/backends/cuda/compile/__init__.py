"""Compilation of kernels: NVRTC and nvcc, the disk cache of cubins, diagnostics."""
