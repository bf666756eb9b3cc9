"""The memory of the machine. Shared by the backends that run on the host."""

import os
from pathlib import Path


def machine_memory() -> tuple[int, int]:
    """Free and total memory of the machine, bytes. Free is what can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known = {name: int(amount.split()[0]) * 1024 for name, amount in (line.split(":") for line in lines)}
        return known["MemAvailable"], known["MemTotal"]
    except (OSError, KeyError, ValueError):  # no Linux
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
        free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else total
        return free, total
