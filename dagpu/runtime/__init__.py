"""Runs of ops: interpreter, plan cache, waiting, cancellation, pipelines. The only package that imports trio."""
