"""Tests of dagpu: see CONTRIBUTING.md for how they are run."""
