"""Updates of feeds, by both readers of a call."""
