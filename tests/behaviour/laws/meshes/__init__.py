"""Laws of values that lie on several devices of a mesh."""
