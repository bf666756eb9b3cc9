"""Reads the size of the machine's memory. The backends that run on the host share it."""

import os
from pathlib import Path


def machine_memory() -> tuple[int, int]:
    """Return the free and the total memory of the machine in bytes. Free memory can be allocated without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known = {name: int(amount.split()[0]) * 1024 for name, amount in (line.split(":") for line in lines)}
        return known["MemAvailable"], known["MemTotal"]
    except (OSError, KeyError, ValueError):  # not Linux
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
        free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else total
        return free, total
