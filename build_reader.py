"""Builds the compiled reader (dagpu/compiled) where there is a C compiler. Without one, the wheel is of Python alone.

It is a build hook of hatchling, and a script that builds the extension where the sources are. The environment variable
DAGPU_PURE=1 leaves the extension out.
"""

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.errors import BaseError, CCompilerError

NAME = "dagpu.compiled._reader"
ROOT = Path(__file__).parent


def build(into: Path) -> Path | None:
    """Build the extension in a folder, and return its path. Return None, with a line on stderr that says why, if that
    fails."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "dagpu" / "compiled").glob("*.c"))
    headers = sorted(str(path) for path in (ROOT / "dagpu" / "compiled").glob("*.h"))
    extension = Extension(NAME, sources, depends=headers, extra_compile_args=["-O2", "-fno-semantic-interposition"])
    command: Any = Distribution({"name": "dagpu", "ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_temp, command.build_lib = str(into / "objects"), str(into)
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        command.ensure_finalized()
        command.run()
    except (BaseError, CCompilerError, OSError) as error:
        print(f"dagpu is built without its compiled reader: {error}", file=sys.stderr)
        return None
    finally:
        os.chdir(before)
    return Path(command.get_ext_fullpath(NAME))


class CompiledReader(BuildHookInterface[Any]):
    """Adds the extension to a wheel, or puts it beside the sources of an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("DAGPU_PURE") == "1":
            return
        built = build(Path(self.directory).resolve() / "compiled")
        if built is None:
            return
        if version == "editable":  # Python finds the sources where they are
            built.replace(ROOT / "dagpu" / "compiled" / built.name)
            return
        build_data["force_include"][str(built)] = f"dagpu/compiled/{built.name}"
        build_data["pure_python"], build_data["infer_tag"] = False, True
