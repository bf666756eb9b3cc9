"""Decodes tokens: `python -m examples.decode`; decoding.py says more."""

import sys

from examples.decode.decoding import main

if __name__ == "__main__":
    main(sys.argv[1:])
