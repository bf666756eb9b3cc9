"""Flows: descriptions of values that follow each other, and the stages that compute them while a block is open."""
