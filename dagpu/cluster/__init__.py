"""Runs ops on the workers of a Dask cluster.

A cluster is a backend: its devices, `node3/cuda:1`, are on other machines, its memory is a key of the cluster, and a
plan for them is cut into parts, of which each worker runs some. Dask does what it is good at: it sends values from
worker to worker, and redoes the parts whose values are lost with a worker.

`opening` opens and closes a cluster, `cutting` cuts programs, `part_checks` proves the cut, `part_batches` says which
parts are sent together, `engine` has Dask run them, and `worker` is what runs on the other machines.
"""
