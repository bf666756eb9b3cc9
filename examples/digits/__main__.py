"""Trains on handwritten digits: `python -m examples.digits`; see training.py."""

import sys

from examples.digits.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
