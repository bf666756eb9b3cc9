"""Trains on handwritten digits: `python -m examples.digits`; training.py says more."""

import sys

from examples.digits.training import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
