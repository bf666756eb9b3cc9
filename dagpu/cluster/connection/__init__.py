"""Opens and closes a Dask cluster: its event loop, its workers, and who may speak to it."""
