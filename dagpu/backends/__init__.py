"""Backends execute plans: one package for each kind of device, and their shared parts in `common`."""
