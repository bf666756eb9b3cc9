"""Updates: which instructions of a program run again when sources have changed, and the program that they make."""
