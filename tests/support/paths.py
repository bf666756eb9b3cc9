"""The folder of the project, and variables of the environment that list folders."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
"""The folder of the project."""


def first_in(variable: str, folder: Path) -> str:
    """The value of PYTHONPATH, LD_LIBRARY_PATH or the like with this folder before all that are in it already.

    A child process that gets the folder alone does not find packages that its parent finds by the variable.
    """
    return os.pathsep.join(filter(None, [str(folder), os.environ.get(variable)]))
