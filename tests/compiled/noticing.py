"""Tries the compiled reader until something is wrong, and ends with a status other than 0 then.

    python -m tests.compiled.noticing LIBRARY EXPECTED

`LIBRARY` is the built null_driver.c, and `EXPECTED` a file of JSON with the outcomes of all cases by Python.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.compiled.building import MODULES, use_built_reader

VARIES: Final = ("runs", "hits", "log", "idle", "streams")
"""What depends on the order of threads, in cases of many calls."""


def comparable(found: dict[str, Any], module: str) -> dict[str, Any]:
    """Return an outcome without what need not be the same in another process."""
    rest = found["rest"]
    if module == "long_cases":
        rest = {name: value for name, value in rest.items() if name not in VARIES}
    return {**found, "rest": rest}


def wrong(library: Path, expected: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Iterate over what the reader does wrong."""
    yield from import_module("tests.compiled.readings").disagreements()
    worlds: Any = import_module("tests.compiled.worlds")
    for module in MODULES:
        worlds.CASES.clear()
        import_module(f"tests.compiled.{module}")
        for name, found in worlds.iterate(library):
            if comparable(found, module) != comparable(expected[module][name], module):
                yield f"{name}: {found}"


def main(library: str, expected: str) -> None:
    use_built_reader()  # before anything of dagpu is imported
    sys.exit(next(wrong(Path(library), json.loads(Path(expected).read_text(encoding="utf-8"))), None))


if __name__ == "__main__":
    main(*sys.argv[1:])
