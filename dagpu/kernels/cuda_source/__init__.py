"""What the CUDA text of a kernel declares: its parameters, with their types and ranks."""
