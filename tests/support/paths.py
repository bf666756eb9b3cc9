"""The folder of the project, and variables of the environment that list folders."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
"""The folder of the project."""


def first_in(variable: str, folder: Path) -> str:
    """Return the value of a variable such as PYTHONPATH or LD_LIBRARY_PATH, with this folder in front.

    The other folders stay, because a child process needs the packages that its parent finds by the variable.
    """
    return os.pathsep.join(filter(None, [str(folder), os.environ.get(variable)]))
