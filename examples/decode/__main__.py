"""Decodes tokens: `python -m examples.decode`; see decoding.py."""

import sys

from examples.decode.decoding import main

if __name__ == "__main__":
    main(sys.argv[1:])
