"""Dirty tiles: which tiles of a program's launches a change of a part of a source concerns, and launches of these."""
