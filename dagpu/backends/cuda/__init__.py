"""The CUDA backend: it replays plans on streams and events of NVIDIA GPUs."""

from dagpu.backends.cuda.backend import CudaBackend as CudaBackend
from dagpu.backends.cuda.compile.compiler import declared_kernels as declared_kernels
from dagpu.backends.cuda.compile.compiler import find_compiler as find_compiler
