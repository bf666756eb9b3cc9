"""What lets later runs skip a trace: the binding of their inputs, and the building of their results."""
