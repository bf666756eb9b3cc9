"""Tests of updates: what updates of a feed run, and how contents are told apart."""
