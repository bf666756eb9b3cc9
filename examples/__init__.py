"""Example programs for dagpu. README.md in this folder describes each of them."""
