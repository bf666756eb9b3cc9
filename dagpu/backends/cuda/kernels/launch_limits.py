"""Fits a packed launch to its compiled function and its device: the block's size, and errors about their limits."""

from math import prod
from typing import Final

from dagpu.backends.cuda.driver.driver_protocol import Function, GridExtents, Limits
from dagpu.backends.cuda.kernels.launch_params import THREADS, LaunchForm
from dagpu.common.errors import KernelArgumentError
from dagpu.common.places import describe
from dagpu.plans.program import Launch

FEW_TILES: Final = 512
"""The most blocks with a list of tiles that have `FEW_TILES_THREADS` threads. Of 4,096 tiles of 64 KB, 40 took 8 us
with 512 threads and 14 with 256 on an H200, 409 took 24 and 36, and 1,024 as long with both."""

FEW_TILES_THREADS: Final = 512


def block_for(launch: Launch, form: LaunchForm, function: Function) -> GridExtents:
    """Return the block of a launch of this function. Where dagpu chooses it, it has no more threads than the function
    allows. Where a few tiles run, it has more than by default: they leave most of a GPU idle, and a tile's time is that
    of the elements of one thread, one after the other. A kernel with shared memory keeps the default, for which that
    may be cut."""
    block, spec = function.block or form.block, launch.kernel
    if spec.block is not None or spec.python is not None:
        return block
    threads = prod(block)
    shared = spec.shared_bytes or function.static_shared or function.dynamic_shared
    if launch.tile_list is not None and form.grid[0] <= FEW_TILES and threads == THREADS and not shared:
        tile = prod(launch.outputs[0].tile)
        threads = min(FEW_TILES_THREADS, -(-tile // 32) * 32)
    if threads == prod(block) and threads <= function.max_threads:
        return block
    return max(min(threads, function.max_threads) // 32, 1) * 32, 1, 1


def check_limits(
    launch: Launch, form: LaunchForm, block: GridExtents, function: Function, limits: Limits, device: str
) -> None:
    """Raise if the device cannot run a launch. Allow the kernel more dynamic shared memory if it needs that.

    Raises:
        KernelArgumentError: the block, the grid or the shared memory exceeds the device's limit.
    """
    if function in form.accepted:
        return
    spec = launch.kernel
    threads = prod(block)
    if threads > function.max_threads:
        why = (
            f"it takes {function.registers} registers for each thread" if function.max_threads < limits.threads else ""
        )
        raise _refusal(launch, f"a block of {threads} threads", f"at most {function.max_threads}", device, why, "block")
    for axis, (count, most) in enumerate(zip(block, limits.block, strict=True)):
        if count > most:
            raise _refusal(launch, f"{count} threads along axis {'xyz'[axis]}", f"at most {most}", device, "", "block")
    for axis, (blocks, most) in enumerate(zip(form.grid, limits.grid, strict=True)):
        if blocks > most:
            raise _refusal(launch, f"{blocks} blocks along axis {'xyz'[axis]}", f"at most {most}", device, "", "grid")
    dynamic = spec.shared_bytes + function.dynamic_shared
    shared = dynamic + function.static_shared
    if shared > limits.shared:
        why = f"{dynamic} dynamic and {function.static_shared} of its own"
        what = f"{shared} bytes of shared memory for each block"
        raise _refusal(launch, what, f"at most {limits.shared}", device, why, "shared_memory")
    if shared > limits.default_shared:
        function.allow_shared(limits.shared - function.static_shared)
    form.accepted.add(function)


def _refusal(launch: Launch, what: str, most: str, device: str, why: str, method: str) -> KernelArgumentError:
    spec = launch.kernel
    because = f" ({why})" if why else ""
    cure = f"{spec.name}.{method}(...), or another tile"
    if spec.python is not None and method != "grid":
        cure = f"smaller tiles, num_warps or num_stages, as {spec.python.library} says"
    return KernelArgumentError(
        f"kernel {spec.name!r}, launched at {describe(launch.origin)}: {what}{because}, but {device} allows it {most}. "
        f"Give fewer: {cure}."
    )
