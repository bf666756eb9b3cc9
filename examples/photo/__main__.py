"""Develops a photograph: `python -m examples.photo`; see bands.py."""

import sys

from examples.photo.bands import main

if __name__ == "__main__":
    main(sys.argv[1:])
