# Importing it makes a context that shares with the current OpenGL context.
from pycuda.driver import Context, Device

context: Context
device: Device
