"""The arguments of an op: the key under which its plan is cached, and the values on which its trace depends."""
