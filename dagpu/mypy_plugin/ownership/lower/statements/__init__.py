"""Statements: assignments, branches, loops, `with`, `try` and `match`."""
