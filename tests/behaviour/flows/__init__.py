"""Flows: what is handed out, in which order, how much is in flight, and what a cancellation leaves."""
