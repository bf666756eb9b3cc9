"""A cluster: its parts, its workers, and how it fails."""
