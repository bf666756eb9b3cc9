"""The resources of a CUDA device: memory pools, streams, events, watchdog."""
