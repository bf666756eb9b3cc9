"""Calls: who is called, what it does to the receiver and the arguments, and what its result holds."""
