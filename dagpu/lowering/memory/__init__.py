"""The memory plan: an offset in an arena for every buffer of a plan."""
