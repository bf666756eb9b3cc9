"""The traced stages of an observed op, with the plans of their updates: made when they are due, cut off, explained."""
