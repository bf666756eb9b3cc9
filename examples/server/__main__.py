"""Serves digits: `python -m examples.server`; inference.py says more."""

import sys

from examples.server.inference import main

if __name__ == "__main__":
    main(sys.argv[1:])
