"""Serves digits: `python -m examples.server`; see inference.py."""

import sys

from examples.server.inference import main

if __name__ == "__main__":
    main(sys.argv[1:])
