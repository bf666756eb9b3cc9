"""`python -m dagpu check`: mypy with dagpu's plugin, for people who have not configured mypy.

mypy runs in a process of its own. It takes plugins from a configuration file alone, so one is written for the run where
there is none.
"""

import configparser
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

PLUGIN: Final = "dagpu.mypy_plugin"
OLDEST: Final = (2, 4)
"""The oldest mypy that asks plugins at the end of a module, which the flow rules need."""

_OPTIONS: Final = f"""\
[mypy]
plugins = {PLUGIN}
# A function without annotations is checked as well, and a library without types is none of dagpu's business.
check_untyped_defs = true
ignore_missing_imports = true
"""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r": error: .*  \[([\w-]+)\]$")
_SUMMARY = re.compile(r"^(?:Found \d+ errors?|Success:)")


def check(paths: Sequence[str], flags: Sequence[str] = (), *, use_configuration: bool = True) -> int:
    """Check files and folders, print what mypy says and one line that sums it up. Gives mypy's exit status.

    2 as well, with the cure on stderr: mypy is missing or too old, or the configuration that it would use does not
    switch the plugin on.
    """
    problem = _mypy_problem()
    configured = any(flag.startswith("--config-file") for flag in flags)
    found = _configuration(Path.cwd()) if use_configuration and not configured else None
    if not problem and found is not None and not _names_plugin(found[1]):
        problem = _plugin_problem(found[0])
    if problem:
        print(f"dagpu check: {problem}", file=sys.stderr)
        return 2
    if configured or found is not None:
        return _run([*flags, "--", *paths])
    with tempfile.TemporaryDirectory(prefix="dagpu-check-") as folder:
        file = Path(folder) / "mypy.ini"
        file.write_text(_OPTIONS, encoding="utf-8")
        return _run([f"--config-file={file}", *flags, "--", *paths])


def _run(arguments: Sequence[str]) -> int:
    """Run mypy, and pass on what it prints, but for its summary, which goes last and says more."""
    command = [sys.executable, "-m", "mypy", *arguments]
    colours = {"MYPY_FORCE_COLOR": "1"} if sys.stdout.isatty() and "NO_COLOR" not in os.environ else {}
    codes: Counter[str] = Counter()
    summary = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=os.environ | colours) as mypy:
        assert mypy.stdout is not None
        for line in mypy.stdout:
            plain = _COLOURS.sub("", line.rstrip("\n"))
            codes.update(_ERROR.findall(plain))
            if _SUMMARY.match(plain):
                summary = plain
            else:
                print(line, end="")
    if summary:
        print(_summed_up(summary, codes))
    return mypy.returncode


def _summed_up(summary: str, codes: Mapping[str, int]) -> str:
    """`Found 3 errors in 1 file (checked 1 source file): 2 dagpu-use-after-move, 1 arg-type`, dagpu's own first."""
    order = sorted(codes, key=lambda code: (not code.startswith("dagpu-"), -codes[code], code))
    tally = ", ".join(f"{codes[code]} {code}" for code in order)
    return f"{summary}: {tally}" if tally else summary


# ---- what keeps it from running -------------------------------------------------------------------
def _mypy_problem() -> str:
    """Why mypy cannot be used; empty if it can."""
    oldest = ".".join(map(str, OLDEST))
    cure = f"Install it for this Python: {sys.executable} -m pip install 'mypy>={oldest}'"
    try:
        installed = version("mypy")
    except PackageNotFoundError:
        return f"mypy is not installed. {cure}"
    if tuple(map(int, re.findall(r"\d+", installed)[:2])) < OLDEST:
        return f"mypy {installed} is too old, {oldest} is wanted. {cure}"
    return ""


def _plugin_problem(file: Path) -> str:
    table, value = ("[tool.mypy]", f'["{PLUGIN}"]') if file.suffix == ".toml" else ("[mypy]", PLUGIN)
    return (
        f"{file} configures mypy, but does not switch the plugin on. Add to its {table}: plugins = {value} "
        "(or leave the file aside with --no-config)"
    )


def _configuration(folder: Path) -> tuple[Path, object] | None:
    """The configuration that mypy finds from a folder, and its plugins.

    mypy looks in the folder and then in those above it, up to the root of the repository; in each for these files in
    this order, of which the last two count only if they have a part for mypy.
    """
    for place in (folder, *folder.parents):
        for file, plugins in _candidates(place):
            return file, plugins
        if (place / ".git").exists() or (place / ".hg").exists():
            break
    return None


def _candidates(place: Path) -> Iterator[tuple[Path, object]]:
    for name in ("mypy.ini", ".mypy.ini", "pyproject.toml", "setup.cfg"):
        file = place / name
        if not file.is_file():
            continue
        if file.suffix == ".toml":
            options = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("mypy")
            if options is not None:
                yield file, options.get("plugins", "")
            continue
        parser = configparser.RawConfigParser(strict=False)
        parser.read(file, encoding="utf-8")
        if parser.has_section("mypy") or name != "setup.cfg":
            yield file, parser.get("mypy", "plugins", fallback="")


def _names_plugin(plugins: object) -> bool:
    """Is ours among the plugins of a configuration, a list or a text with commas?"""
    named = plugins if isinstance(plugins, list) else re.split(r"[\s,]+", str(plugins))
    return any(str(name).partition(":")[0].strip() == PLUGIN for name in named)
