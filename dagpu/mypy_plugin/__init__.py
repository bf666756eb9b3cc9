"""dagpu's plugin for mypy: `plugins = ["dagpu.mypy_plugin"]` in the configuration of mypy 2.4 or newer.

It refuses, before the program runs, what a run would refuse and types cannot say: use after move, conflicting and
escaping borrows, outputs that do not fit, ops that are never run or cannot be recorded.
"""

from mypy.plugin import Plugin

from dagpu.mypy_plugin.plugin import DagpuPlugin


def plugin(version: str) -> type[Plugin]:
    """What mypy asks a plugin for."""
    return DagpuPlugin
