"""Updates in tiles, after changes of parts of sources."""
