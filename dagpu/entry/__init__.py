"""The ways into dagpu: its public names, and the commands of `python -m dagpu`, whose line dagpu.__main__ parses."""
