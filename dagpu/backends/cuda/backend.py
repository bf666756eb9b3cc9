"""The CUDA backend: devices `cuda:0`, `cuda:1`, ..."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Literal, final

from dagpu.backends.cuda.compile.compiler import Compiler
from dagpu.backends.cuda.compile.module_cache import CubinCompiler
from dagpu.backends.cuda.compile.nvidia_compilers import load_nvrtc
from dagpu.backends.cuda.driver.driver_protocol import Gpu
from dagpu.backends.cuda.driver.pycuda_driver import open_gpus
from dagpu.backends.cuda.executable import Executable
from dagpu.backends.cuda.instruction_selection import LAUNCH_FACTORIES, LaunchFactories
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.kernel_text.launch_params import usual_variant
from dagpu.common.errors import NoDeviceError
from dagpu.handles.device_handles import Device
from dagpu.kernels.declaration import COMPILER
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.plans.plan import Plan

SPIN_SECONDS: Final = 20e-6


def _new_compiler() -> Compiler:
    return Compiler(load_nvrtc())


@final
class CudaBackend:
    """Prepares plans for CUDA streams and events. Implements `dagpu.backends.protocol.Backend`.

    It imports and initialises nothing before the first device is requested.

    Args:
        gpus: opens the GPUs; called once, when the first device is requested.
        compiler: creates the compiler of all devices; called once, after `gpus`.
        factories: choose the launch or the driver call of each instruction.
    """

    kind: ClassVar[Literal["host", "cuda"]] = "cuda"

    def __init__(
        self,
        gpus: Callable[[], Sequence[Gpu]] = open_gpus,
        compiler: Callable[[], CubinCompiler] = _new_compiler,
        factories: LaunchFactories = LAUNCH_FACTORIES,
    ) -> None:
        self._open_gpus = gpus
        self._new_compiler = compiler
        self.factories = factories
        self._devices: list[tuple[Device, CudaDevice]] | None = None
        self._missing: tuple[str, int] | None = None
        """Text and code of the error that opening the GPUs raised; None until then. The error itself would keep its
        frames alive, and with them the tensors of the run that requested the first device."""
        self._lock = threading.Lock()

    def device_count(self) -> int:
        """Return the number of devices that this process sees; 0 where PyCUDA, cuda.bindings, the driver or a GPU is
        missing."""
        try:
            return len(self._open())
        except NoDeviceError:
            return 0

    def device(self, index: int) -> Device:
        """Return device `cuda:<index>`, always the same object.

        Raises:
            NoDeviceError: the device does not exist; the message names the missing part and how to get it.
        """
        return self._find(index)[0]

    def prepare(self, plan: Plan) -> Executable:
        """See `Backend.prepare`."""
        devices = [self._find(int(name.partition(":")[2]))[1] for name in plan.devices]
        return Executable(plan, devices, self.factories)

    def spin(self) -> float:
        """Return 20 us: about the difference between an event query and a wake-up through a pipe."""
        return SPIN_SECONDS

    def _find(self, index: int) -> tuple[Device, CudaDevice]:
        devices = self._devices or self._open()
        if not 0 <= index < len(devices):
            have = "cuda:0 alone" if len(devices) == 1 else f"cuda:0 to cuda:{len(devices) - 1}"
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
            raise NoDeviceError(f"there is no device cuda:{index}: this process sees {have}{why}. Use one of these.")
        return devices[index]

    def _open(self) -> list[tuple[Device, CudaDevice]]:
        if self._devices is None:
            with self._lock:
                if self._missing is not None:
                    raise NoDeviceError(*self._missing)
                if self._devices is None:
                    try:
                        self._devices = _devices(self._open_gpus(), self._new_compiler)
                    except NoDeviceError as error:
                        self._missing = str(error), error.code
                        raise
        return self._devices


def _devices(gpus: Sequence[Gpu], new_compiler: Callable[[], CubinCompiler]) -> list[tuple[Device, CudaDevice]]:
    if not gpus:
        raise NoDeviceError(
            "the NVIDIA driver is loaded, but shows no device to this process. Check that CUDA_VISIBLE_DEVICES hides "
            "none."
        )
    compiler = new_compiler()
    drivers = [CudaDevice(gpu, compiler) for gpu in gpus]
    for driver in drivers:
        driver.all_devices = drivers

    def compile_ahead(spec: KernelSpec) -> None:
        drivers[0].library.load_kernel(spec, usual_variant(spec))

    COMPILER.set(compile_ahead)
    return [(Device("cuda", driver.gpu.index, driver), driver) for driver in drivers]
