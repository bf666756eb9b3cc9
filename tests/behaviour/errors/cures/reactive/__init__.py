"""Mistakes in the reactive layer."""
