# Importing it initialises CUDA and makes the primary context current, until the interpreter ends.
from pycuda.driver import Context, Device

context: Context
device: Device
