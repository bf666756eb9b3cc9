"""The commands of `python -m dagpu`. dagpu.__main__ parses the command line."""
