"""The trace: from an op to a `Program`, stage by stage."""
