"""Captures graphs from ops and scopes, and updates their memory between launches."""
