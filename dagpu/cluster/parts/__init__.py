"""Cuts a program into parts, one worker's each, and proves that together they compute what the program computes."""
