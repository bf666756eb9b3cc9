"""Derivatives of ops: rules, laws, what is refused, and updates in place."""
