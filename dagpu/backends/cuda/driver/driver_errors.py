"""The results of driver calls (CUresult) that dagpu distinguishes, and the errors that users get for failed calls."""

from typing import Final

from dagpu.common.errors import DeviceError, DeviceLostError, OutOfMemoryError

OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
PEER_ACCESS_ALREADY_ENABLED: Final = 704
NOT_SUPPORTED: Final = 801
CAPTURED_EVENT: Final = 907

STICKY: Final = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999))
"""CUresults after which a context cannot be used again: uncorrectable ECC and NVLink errors, illegal address, launch
timeout, destroyed context, assert, hardware stack, illegal instruction, misaligned address, invalid address space,
invalid program counter, launch failure, contained error, leak of tensor memory, unknown (cuda.h: the results whose text
says that the process must be terminated and relaunched)."""

CURES: Final = {
    1: "It is a defect in dagpu, or in arguments that the driver alone can check",
    200: "Compile for this device's architecture",
    209: "The kernel's options name another architecture: leave -arch out",
    218: "The kernel's options name another architecture, or the driver is older than the compiler: update the driver",
    222: "The driver is older than the compiler: update the driver",
    700: "Find the access with checked=True on the kernel (or DAGPU_CHECKED=1), or with compute-sanitizer",
    701: "Use fewer threads or less shared memory for each block",
    702: "A display's watchdog ended the kernel: make it shorter",
    710: "An assert in the kernel failed: its message is in the program's output",
    716: "A load or store is wider than its address is aligned; find it with compute-sanitizer",
    719: "Find the cause with checked=True on the kernel (or DAGPU_CHECKED=1), or with compute-sanitizer",
}


def device_error(call: str, code: int, text: str) -> DeviceError:
    """Return the error of a failed driver call: `DeviceLostError` if the context cannot be used again,
    `OutOfMemoryError` if memory is short, else `DeviceError`."""
    cure = CURES.get(code)
    message = f"{call} failed: {text} (CUresult {code})"
    if code in STICKY:
        return DeviceLostError(f"{message}. {cure or 'The device cannot be used any more by this process'}.", code)
    kind = OutOfMemoryError if code == OUT_OF_MEMORY else DeviceError
    return kind(message + (f". {cure}." if cure else "."), code)
