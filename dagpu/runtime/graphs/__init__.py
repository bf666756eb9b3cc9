"""Captured graphs: capture, scopes, and updates between launches."""
