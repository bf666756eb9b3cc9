"""Runs the tasks of runs by Dask: what is submitted when, how a run ends, and what is done when workers die."""
