"""Tests on a real GPU."""
