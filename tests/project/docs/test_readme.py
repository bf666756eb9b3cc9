"""The README's code runs as it stands there."""

import re
import tomllib

import pytest

import dagpu
from dagpu.arrays.nvidia.libraries import INSTALL as INSTALL_MATH
from dagpu.backends.cuda.driver.pycuda_driver import _missing
from dagpu.handles.device_handles import INSTALL_CUDA, INSTALL_NVRTC
from tests.support.paths import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[int, str]]:
    """Each Python block of the README, with the line its code starts on."""
    text = README.read_text(encoding="utf-8")
    return [(text[: match.start("code")].count("\n") + 1, match["code"]) for match in BLOCK.finditer(text)]


def test_the_readme_shows_code() -> None:
    """There is something to run: the pattern that finds the blocks has not gone stale."""
    assert blocks()


def test_one_text_says_how_to_install_what_drives_gpus() -> None:
    """It is the extra of pyproject.toml, spelt out: the README, the tutorial, `info` and the error of a missing package
    say it alike. So are the commands for the compiler and for the libraries of arrays."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, said in (("cuda", INSTALL_CUDA), ("nvrtc", INSTALL_NVRTC), ("math", INSTALL_MATH)):
        extra = project["optional-dependencies"][name]
        assert " ".join(["pip install", *[f"'{needed}'" for needed in extra]]) == said
    for page in ("README.md", "docs/tutorial/index.md", "CHANGELOG.md"):
        assert INSTALL_CUDA in (ROOT / page).read_text(encoding="utf-8")
    assert INSTALL_CUDA in str(_missing("PyCUDA", ImportError("No module named 'pycuda'"), "needs a compiler"))


def test_nothing_suggests_that_a_package_index_has_dagpu() -> None:
    """No text installs dagpu, an extra of it, or the stubs by name: that name is not ours on any index. An extra is
    installed from a checkout, `pip install '.[watch]'`."""
    by_name = re.compile(r"pip install [^`\n]*?(?<![\w/.])(dagpu|pycuda-stubs)\b|dagpu\[[a-z]")
    texts = [
        file for folder in ("dagpu", "docs", "examples", "benchmarks", "stubs") for file in (ROOT / folder).rglob("*")
    ]
    for file in [*texts, *ROOT.glob("*.md")]:
        if file.suffix in (".py", ".md", ".ipynb") and "_build" not in file.parts:
            assert by_name.search(file.read_text(encoding="utf-8")) is None, file


@pytest.mark.parametrize("number", [pytest.param(i, id=f"line-{line}") for i, (line, _) in enumerate(blocks())])
def test_a_block_of_the_readme_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A block runs on the host, after those above it, and prints what the comment after each `print` says."""
    names: dict[str, object] = {"__name__": "__main__"}
    expected: list[str] = []
    for line, code in blocks()[: number + 1]:
        # Blank lines in front, so that a traceback and an origin name the README's own line.
        program = compile("\n" * (line - 1) + code, str(README), "exec")
        with dagpu.use_device("host"):
            exec(program, names)
        expected += re.findall(r"print\(.*\)\s+# (.*)", code)
    assert capsys.readouterr().out.splitlines() == expected
