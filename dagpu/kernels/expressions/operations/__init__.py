"""The operations of an expression: their element types, their CUDA text and their NumPy functions."""
