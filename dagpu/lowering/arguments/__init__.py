"""The inputs of an op: the key under which its plan is cached, and the values that a trace depends on."""
