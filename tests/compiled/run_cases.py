"""Runs cases of this folder in a process of its own, and prints their outcomes as JSON.

    python -m tests.compiled.run_cases LIBRARY MODULE [PART ...]

`LIBRARY` is the built null_driver.c, and `MODULE` one with cases. With parts, only cases whose names contain one.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from tests.compiled.building import use_built_reader


def main(library: str, module: str, *parts: str) -> None:
    use_built_reader()  # before anything of dagpu is imported
    import_module(f"tests.compiled.{module}")
    print(json.dumps(dict(import_module("tests.compiled.worlds").iterate(Path(library), parts))))


if __name__ == "__main__":
    main(*sys.argv[1:])
