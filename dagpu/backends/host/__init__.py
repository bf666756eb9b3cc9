"""The host as a device: kernels run their NumPy bodies on worker threads."""

from dagpu.backends.host.arrays import HostMemory as HostMemory
from dagpu.backends.host.backend import HostBackend as HostBackend
