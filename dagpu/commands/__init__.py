"""The commands of `python -m dagpu`: what each does. The command line itself is read in dagpu.__main__."""
