"""PyCUDA's main interface as its stubs type it. Checked by mypy and pyright; never run."""

from collections.abc import Callable, Hashable
from typing import Any, assert_type

import numpy as np
import pycuda.autoprimaryctx
import pycuda.cumath as cumath
import pycuda.driver as cuda
import pycuda.gpuarray as gpuarray
from numpy.typing import NDArray
from pycuda.compiler import SourceModule
from pycuda.curandom import XORWOWRandomNumberGenerator, rand
from pycuda.elementwise import ElementwiseKernel
from pycuda.gpuarray import GPUArray
from pycuda.reduction import ReductionKernel
from pycuda.scan import InclusiveScanKernel
from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool, context_dependent_memoize

f32: NDArray[np.float32] = np.zeros(4, np.float32)


def devices_and_contexts() -> None:
    device = cuda.Device(0)
    assert_type(pycuda.autoprimaryctx.context, cuda.Context)
    assert_type(device.compute_capability(), tuple[int, int])
    assert_type(device.get_attribute(cuda.device_attribute.WARP_SIZE), int)
    assert_type(device.warp_size, int)
    assert_type(device.compute_mode, cuda.compute_mode)
    assert_type(device.retain_primary_context(), cuda.Context)
    assert_type(cuda.mem_get_info(), tuple[int, int])
    assert_type(cuda.device_attribute.names["WARP_SIZE"], cuda.device_attribute)
    assert_type(cuda.ctx_flags.MAP_HOST | cuda.ctx_flags.SCHED_SPIN, int)
    device.warp_sise  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    device.get_attribute(10)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cuda.Context()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def streams_and_events() -> None:
    stream = cuda.Stream()
    start = cuda.Event().record(stream)
    end = cuda.Event(cuda.event_flags.BLOCKING_SYNC)
    assert_type(start, cuda.Event)
    assert_type(end.record().synchronize(), cuda.Event)
    assert_type(start.time_till(end), float)
    assert_type(stream.is_done(), bool)
    assert_type(stream.handle, int)
    stream.wait_for_event(stream)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def memory() -> None:
    stream = cuda.Stream()
    allocation = cuda.mem_alloc(f32.nbytes)
    assert_type(allocation, cuda.DeviceAllocation)
    assert_type(int(allocation) + 16, int)
    assert_type(cuda.pagelocked_empty((2, 3), np.float32), NDArray[np.float32])
    assert_type(cuda.pagelocked_empty(6, "f4"), NDArray[Any])
    assert_type(cuda.from_device(allocation, (4,), np.float32), NDArray[np.float32])
    assert_type(cuda.mem_alloc_pitch(64, 4, 4), tuple[cuda.DeviceAllocation, int])
    cuda.memcpy_htod(allocation, f32)
    cuda.memcpy_htod_async(int(allocation), b"bytes", stream)
    cuda.memcpy_dtoh_async(f32, DeviceMemoryPool().allocate(16), stream=stream)
    cuda.memcpy_htod_async(allocation, "text", stream)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cuda.memcpy_htod(gpuarray.to_gpu(f32), f32)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cuda.memcpy_htod(np.uint64(0), f32)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cuda.mem_alloc(1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(PageLockedMemoryPool().allocate(4, np.int8), NDArray[np.int8])


class Borrowed(cuda.PointerHolderBase):
    """Memory of another library's, which the driver's functions take like an allocation."""

    def get_pointer(self) -> int:
        return 4096


def pointers_of_ones_own() -> None:
    cuda.memcpy_dtod(Borrowed(), cuda.mem_alloc(4), 4)


def kernels() -> None:
    module = SourceModule("__global__ void f(float *x) {}", options=["-O3"])
    kernel = module.get_function("f")
    assert_type(kernel, cuda.Function)
    assert_type(module.get_global("constants"), tuple[int, int])
    assert_type(kernel.num_regs, int)
    device_side = cuda.mem_alloc(16)
    block = (32, 1, 1)
    kernel(device_side, np.int32(4), cuda.InOut(f32), gpuarray.to_gpu(f32), block=block, grid=(2, 1))
    took = kernel(device_side, block=block, time_kernel=True)
    assert_type(took, float)
    # Python's numbers have no size: PyCUDA refuses them.
    kernel(device_side, 4, block=block)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    kernel(device_side)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    kernel(device_side, block=(32, 1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(kernel.prepare("Pi"), cuda.Function)
    kernel.prepared_async_call((1,), block, None, device_side, 4)
    assert_type(kernel.prepared_timed_call((1,), block, device_side, 4), Callable[[], float])


def arrays() -> None:
    a = gpuarray.to_gpu(f32)
    assert_type(a, GPUArray[np.float32])
    assert_type(a.get(), NDArray[np.float32])
    assert_type(gpuarray.zeros(4), GPUArray[np.float64])
    assert_type(gpuarray.zeros((2, 2), np.int32), GPUArray[np.int32])
    assert_type(gpuarray.empty((2, 2), np.int32), GPUArray[np.int32])
    assert_type(gpuarray.empty((2, 2), "i4"), GPUArray[Any])
    assert_type(gpuarray.empty_like(a, np.int8), GPUArray[np.int8])
    assert_type(gpuarray.arange(0, 10, dtype=np.int64), GPUArray[np.int64])
    assert_type(a.astype(np.float64), GPUArray[np.float64])
    assert_type(a[1:, None].reshape(2, -1).T, GPUArray[np.float32])
    assert_type(a.shape, tuple[int, ...])
    assert_type(a.flags.c_contiguous, bool)
    a.set(np.zeros(4))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def arithmetic(a: GPUArray[np.float32], i: GPUArray[np.int32]) -> None:
    assert_type(a + a, GPUArray[np.float32])
    assert_type(2 * a - 1.5, GPUArray[np.float32])
    assert_type(i - 2, GPUArray[np.int32])
    _ = i // 2  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    assert_type(a + i, GPUArray[Any])  # NumPy's promotion
    assert_type(i * 0.5, GPUArray[Any])  # float64, or float32 on a device without
    assert_type(a < 3, GPUArray[np.float32])  # no array of bool
    assert_type(a.any(), GPUArray[np.bool_])
    assert_type(gpuarray.dot(a, a).get(), NDArray[np.float32])
    assert_type(gpuarray.sum(a, np.float64), GPUArray[np.float64])
    assert_type(gpuarray.maximum(a, 0.0), GPUArray[np.float32])
    assert_type(cumath.exp(a, out=a), GPUArray[np.float32])
    a += i
    assert_type(a, GPUArray[np.float32])
    _key: Hashable = a  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    cumath.exp(a, cuda.Stream())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@context_dependent_memoize
def squares(name: str) -> ElementwiseKernel:
    return ElementwiseKernel("float *x", "x[i] = x[i] * x[i]", name, preamble="// none")


def generated_kernels(a: GPUArray[np.float32]) -> None:
    assert_type(squares("squares"), ElementwiseKernel)
    squares("squares")(a, slice=slice(1, -1), stream=cuda.Stream())
    squares(4)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    total = ReductionKernel(np.float64, neutral="0", reduce_expr="a+b", arguments="float *in")
    assert_type(total(a, stream=None), GPUArray[np.float64])
    assert_type(InclusiveScanKernel(np.float32, "a+b")(a), GPUArray[np.float32])
    assert_type(rand((4,)), GPUArray[np.float32])
    assert_type(XORWOWRandomNumberGenerator().gen_uniform((4,), np.float64), GPUArray[np.float64])
