"""Runs ops: interpreters, plan cache, waiting, cancellation, pipelines. No other package of dagpu imports trio."""
