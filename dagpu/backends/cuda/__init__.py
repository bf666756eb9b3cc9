"""The CUDA backend: it replays plans on streams and events of NVIDIA GPUs."""

from dagpu.backends.cuda.backend import CudaBackend as CudaBackend
