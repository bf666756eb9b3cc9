"""Where the instructions of a program run on a mesh: versions of memory, simulated runs, and placement by owner."""
