"""The calls of the CUDA driver that dagpu makes: the library that makes each, the work that it may wait for, if it
waits behind a module load on another thread, and if it releases the GIL.

The waits were measured on an H200 (driver 580) while a kernel of 200 ms ran. For `behind_a_load`, another thread was in
cuModuleLoadData or cuMemFree meanwhile: "waits" took as long as these, "-" did not or needs no context, and "unknown"
was not measured. dagpu assumes that an "unknown" call waits. Tests hold the table against the calls that are made, and
the stand-ins for a driver read it.
"""

from typing import Final, NamedTuple, final


@final
class DriverCall(NamedTuple):
    """One call."""

    name: str
    through: str
    """The library that makes the call: `bindings` for cuda.bindings, `ctypes`, or the call's name in PyCUDA."""
    waits: str
    """The work that the call may wait for; `-` if it never waits."""
    behind_a_load: str
    """`waits` if the call waits while another thread loads a module or frees memory; else `unknown`, or `-` for no."""
    releases: bool
    """True if the call releases the GIL."""

    @property
    def may_wait(self) -> bool:
        return self.waits != "-" or self.behind_a_load != "-"


DRIVER_CALLS: Final = (
    DriverCall("cuInit", "cuda.init", "-", "-", True),
    DriverCall("cuDriverGetVersion", "bindings", "-", "-", True),
    DriverCall("cuDeviceGetCount", "cuda.Device.count", "-", "-", False),
    DriverCall("cuDeviceGet", "cuda.Device", "-", "-", False),
    DriverCall("cuDeviceGetName", "Device.name", "-", "-", False),
    DriverCall("cuDeviceComputeCapability", "Device.compute_capability", "-", "-", False),
    DriverCall("cuDeviceGetAttribute", "Device.get_attribute", "-", "-", False),
    DriverCall("cuDeviceCanAccessPeer", "bindings", "-", "-", True),
    DriverCall("cuDevicePrimaryCtxRetain", "bindings", "a new context", "-", True),
    DriverCall("cuCtxPushCurrent", "bindings", "-", "-", True),
    DriverCall("cuCtxPopCurrent", "bindings", "-", "-", True),
    DriverCall("cuCtxSynchronize", "bindings", "the device", "unknown", True),
    DriverCall("cuCtxEnablePeerAccess", "bindings", "the device", "unknown", True),
    DriverCall("cuStreamCreate", "bindings", "-", "waits", True),
    DriverCall("cuStreamWaitEvent", "bindings", "a full queue", "-", True),
    DriverCall("cuStreamQuery", "bindings", "-", "unknown", True),
    DriverCall("cuStreamSynchronize", "bindings", "the stream", "unknown", True),
    DriverCall("cuStreamBeginCapture", "bindings", "-", "unknown", True),
    DriverCall("cuStreamEndCapture", "bindings", "-", "unknown", True),
    DriverCall("cuEventCreate", "bindings", "-", "waits", True),
    DriverCall("cuEventRecord", "bindings", "a full queue", "waits", True),
    DriverCall("cuEventQuery", "bindings", "-", "-", True),
    DriverCall("cuEventSynchronize", "bindings", "the event", "unknown", True),
    DriverCall("cuEventElapsedTime", "bindings", "-", "-", True),
    DriverCall("cuLaunchHostFunc", "ctypes", "a full queue", "waits", True),
    DriverCall("cuLaunchKernelEx", "ctypes", "a full queue", "waits", True),
    DriverCall("cuMemAlloc", "bindings", "-", "waits", True),
    DriverCall("cuMemFree", "bindings", "the device", "unknown", True),
    DriverCall("cuMemHostAlloc", "bindings", "pages to lock", "waits", True),
    DriverCall("cuMemFreeHost", "bindings", "the device", "waits", True),
    DriverCall("cuMemGetInfo", "bindings", "-", "-", True),
    DriverCall("cuPointerGetAttribute", "bindings", "-", "-", True),
    DriverCall("cuMemcpyHtoDAsync", "bindings", "pageable memory", "waits", True),
    DriverCall("cuMemcpyDtoHAsync", "bindings", "pageable memory", "waits", True),
    DriverCall("cuMemcpyDtoDAsync", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemcpy2DAsync", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemsetD8Async", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemsetD16Async", "bindings", "a full queue", "waits", True),
    DriverCall("cuMemsetD32Async", "bindings", "a full queue", "waits", True),
    DriverCall("cuModuleLoadData", "bindings", "the device", "waits", True),
    DriverCall("cuModuleGetFunction", "bindings", "-", "unknown", True),
    DriverCall("cuFuncGetAttribute", "bindings", "-", "-", True),
    DriverCall("cuFuncSetAttribute", "bindings", "-", "unknown", True),
    DriverCall("cuGraphCreate", "bindings", "-", "-", True),
    DriverCall("cuGraphAddKernelNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddMemcpyNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddMemsetNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddChildGraphNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddDependencies", "bindings", "-", "unknown", True),
    DriverCall("cuGraphAddNode", "bindings", "-", "unknown", True),
    DriverCall("cuGraphConditionalHandleCreate", "bindings", "-", "unknown", True),
    DriverCall("cuGraphGetNodes", "bindings", "-", "unknown", True),
    DriverCall("cuGraphNodeGetType", "bindings", "-", "unknown", True),
    DriverCall("cuGraphKernelNodeGetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphMemcpyNodeGetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphMemsetNodeGetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphChildGraphNodeGetGraph", "bindings", "-", "unknown", True),
    DriverCall("cuFuncGetParamInfo", "bindings", "-", "unknown", True),
    DriverCall("cuKernelGetParamInfo", "bindings", "-", "unknown", True),
    DriverCall("cuFuncGetName", "bindings", "-", "unknown", True),
    DriverCall("cuKernelGetName", "bindings", "-", "unknown", True),
    DriverCall("cuGraphInstantiate", "bindings", "the device", "unknown", True),
    DriverCall("cuGraphExecKernelNodeSetParams", "bindings", "-", "-", True),
    DriverCall("cuGraphExecMemcpyNodeSetParams", "bindings", "-", "-", True),
    DriverCall("cuGraphExecMemsetNodeSetParams", "bindings", "-", "-", True),
    DriverCall("cuGraphExecChildGraphNodeSetParams", "bindings", "-", "unknown", True),
    DriverCall("cuGraphUpload", "bindings", "a full queue", "waits", True),
    DriverCall("cuGraphLaunch", "bindings", "a full queue", "waits", True),
    DriverCall("cuGraphExecDestroy", "bindings", "-", "unknown", True),
    DriverCall("cuGraphDestroy", "bindings", "-", "unknown", True),
    DriverCall("cuGetErrorString", "bindings", "-", "-", True),
)
