"""Checks of the bodies of kernels and foreign ops, for all backends."""
