# Importing it initialises CUDA and makes a context, which is popped when the interpreter ends.
from pycuda.driver import Context, Device

context: Context
device: Device
