"""The README's code runs as it stands there."""

import re
from pathlib import Path

import pytest

import dagpu

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[int, str]]:
    """Each Python block of the README, with the line its code starts on."""
    text = README.read_text(encoding="utf-8")
    return [(text[: match.start("code")].count("\n") + 1, match["code"]) for match in BLOCK.finditer(text)]


def test_the_readme_shows_code() -> None:
    """There is something to run: the pattern that finds the blocks has not gone stale."""
    assert blocks()


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
