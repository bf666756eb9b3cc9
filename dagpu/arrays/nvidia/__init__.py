"""NVIDIA's mathematical libraries by address: what they have in common, and the device bodies that call them."""
