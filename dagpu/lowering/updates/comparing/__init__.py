"""Comparisons of what a feed has at two instants: values on the host, and tensors by instructions of the device."""
