"""Functions that move, gather or scan the elements of tensors along their axes, each with its own kernels."""
