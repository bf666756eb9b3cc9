"""Computes attention: `python -m examples.flash_attention`; see attention.py."""

import sys

from examples.flash_attention.attention import main

if __name__ == "__main__":
    main(sys.argv[1:])
