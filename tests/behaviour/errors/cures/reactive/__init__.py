"""Mistakes with sources, feeds and flows, and their cures."""
