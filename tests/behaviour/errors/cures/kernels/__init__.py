"""Mistakes in declarations: of kernels, and of expressions."""
