"""Functions of tensors that NVIDIA's libraries compute on a GPU, and NumPy on the host."""
