"""`python -m dagpu check`: mypy with dagpu's plugin, for users who have not configured mypy.

mypy runs in a process of its own. It accepts plugins only from a configuration file, so a temporary one is written if
the user has none.
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
"""The oldest mypy that calls plugins at the end of a module, which the flow rules need."""

_OPTIONS: Final = f"""\
[mypy]
plugins = {PLUGIN}
# A function without annotations is checked as well, and a missing stub of another library is not reported.
check_untyped_defs = true
ignore_missing_imports = true
"""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r": error: .*  \[([\w-]+)\]$")
_SUMMARY = re.compile(r"^(?:Found \d+ errors?|Success:)")


def check(paths: Sequence[str], flags: Sequence[str] = (), *, use_configuration: bool = True) -> int:
    """Check files and folders; print mypy's report and a summary line. Return mypy's exit status.

    The status is also 2, with the cure on stderr, if mypy is missing or too old, or if the configuration that it would
    use does not switch the plugin on.
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
    """Run mypy and print its output. Its summary goes last, extended by the number of errors with each code."""
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
    """Extend mypy's summary by the number of errors with each code, dagpu's own codes first.

    `Found 3 errors in 1 file (checked 1 source file): 2 dagpu-use-after-move, 1 arg-type`
    """
    order = sorted(codes, key=lambda code: (not code.startswith("dagpu-"), -codes[code], code))
    tally = ", ".join(f"{codes[code]} {code}" for code in order)
    return f"{summary}: {tally}" if tally else summary


# ---- problems that prevent a run -----------------------------------------------------------------
def _mypy_problem() -> str:
    """Return the reason why mypy cannot be used, with the cure; empty if it can be used."""
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
    """Return the configuration file that mypy finds from a folder, and the plugins in it; None if it finds none.

    mypy searches the folder and its parents, up to the root of the repository. In each it tries the files of
    `_candidates` in order. The last two of them count only if they have a section for mypy.
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
    """Return True if dagpu's plugin is among the plugins of a configuration, a list or a comma-separated string."""
    named = plugins if isinstance(plugins, list) else re.split(r"[\s,]+", str(plugins))
    return any(str(name).partition(":")[0].strip() == PLUGIN for name in named)
