"""The trace, which lowers an op to a `Program`, stage by stage."""
