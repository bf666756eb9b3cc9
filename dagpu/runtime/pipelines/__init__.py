"""Pipelines, and the check of their calls, which feeds share."""
