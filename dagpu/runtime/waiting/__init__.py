"""Waits for a device, for another run and for slow work, by blocking the thread or by suspending the trio task."""
