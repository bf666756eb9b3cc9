"""Factors a matrix: `python -m examples.cholesky`; see factorisation.py."""

import sys

from examples.cholesky.factorisation import main

if __name__ == "__main__":
    main(sys.argv[1:])
