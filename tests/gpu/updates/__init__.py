"""Updates of feeds on the GPU: of tiles, and behind cutoffs."""
