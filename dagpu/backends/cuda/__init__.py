"""The CUDA backend: plans replayed on streams and events of NVIDIA GPUs."""

from dagpu.backends.cuda.backend import CudaBackend as CudaBackend
