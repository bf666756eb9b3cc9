"""Rules that need no data flow of handles: unused ops, ops that are used twice, and mistakes made on purpose."""
