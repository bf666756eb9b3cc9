"""dagpu's plugin for mypy: `plugins = ["dagpu.mypy_plugin"]` in the configuration of mypy 2.4 or newer.

Before the program runs, it reports errors that a run would raise and that types cannot express: use after move,
conflicting and escaping borrows, outputs that do not fit, ops that are never run or cannot be recorded.
"""

from mypy.plugin import Plugin

from dagpu.mypy_plugin.plugin import DagpuPlugin


def plugin(version: str) -> type[Plugin]:
    """Return the plugin class. mypy calls this function."""
    return DagpuPlugin
