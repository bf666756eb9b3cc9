"""Mistakes with devices, meshes, and values that lie on several of them."""
