"""The traced stages of an observed op: kept between updates, made when they are due, cut off, and explained."""
