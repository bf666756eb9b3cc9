"""Comparisons of what a feed has at two instants: values on the host, and updates that decide by tensors."""
