"""Factors a matrix: `python -m examples.cholesky`; factorisation.py says more."""

import sys

from examples.cholesky.factorisation import main

if __name__ == "__main__":
    main(sys.argv[1:])
