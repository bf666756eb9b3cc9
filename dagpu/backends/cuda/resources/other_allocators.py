"""The memory that PyTorch and CuPy hold on a GPU beside dagpu. Their allocators keep what they have freed.

They are found among the modules that the program has imported.
"""

import sys
from collections.abc import Callable
from typing import Any, Final


def _pytorch() -> Any:
    """Return `torch.cuda`; None while PyTorch does not use a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _cupy() -> Any:
    """Return the pool of CuPy for the current device; None without CuPy."""
    cupy = sys.modules.get("cupy")
    return None if cupy is None else cupy.get_default_memory_pool()


_FREE: Final[tuple[tuple[Callable[[], Any], str], ...]] = ((_pytorch, "empty_cache"), (_cupy, "free_all_blocks"))
_HELD: Final[tuple[tuple[str, Callable[[], Any], str], ...]] = (
    ("PyTorch", _pytorch, "memory_reserved"),
    ("CuPy", _cupy, "total_bytes"),
)


def free_idle_memory_of_others() -> None:
    """Have PyTorch and CuPy give back to the driver what they keep and do not use. A context must be current."""
    for find, free in _FREE:
        try:
            library = find()
            if library is not None:
                getattr(library, free)()
        except Exception:  # a capture of theirs forbids it, or they are amid their import: the memory stays theirs
            pass


def describe_memory_of_others() -> str:
    """Return the bytes that PyTorch and CuPy hold on the current device, in use or idle, for a message."""
    said = ""
    for name, find, held in _HELD:
        try:
            library = find()
            nbytes = 0 if library is None else int(getattr(library, held)())
        except Exception:  # what a message would say is no reason to hide the error
            continue
        if nbytes:
            said += f"; {name} holds {nbytes:,}"
    return said
