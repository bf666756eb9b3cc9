"""What kernels that dagpu generates have in common: their declarations, and the checks and launches of their calls."""
