"""Calls: prepared plans with the inputs of one run, and the one way to run them."""
