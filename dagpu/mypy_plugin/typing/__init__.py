"""The rules on types: exact types for kernel calls, ops and long tuples."""
