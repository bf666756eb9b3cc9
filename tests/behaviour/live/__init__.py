"""Ops over sources: plain runs, and updates that run what has changed."""
