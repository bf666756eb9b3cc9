"""What holds at each point of a body: liveness, moves, loans, and places that share a value."""
