"""docs/type-checking.md: every program in it is refused in the words that stand below it, or is right."""

import re

import numpy as np
import pytest

import dagpu
from dagpu.__main__ import main
from tests.support.mypy_checks import Checker, dependencies
from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("mypy_plugin")

PAGE = (ROOT / "docs" / "type-checking.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|text)( prelude)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str, str]]:
    """All programs and reports of the page: `python` or `text`, whether it is the prelude, and the text."""
    found: list[tuple[str, str, str]] = BLOCK.findall(PAGE)
    return found


def prelude() -> str:
    """Return the beginning that all programs of the page share."""
    return next(text for _, mark, text in blocks() if mark)


def unwrapped(message: str) -> str:
    """Return a message on one line. The page wraps it between words, and the name of a type after a bracket."""
    return " ".join(message.split()).replace("[ ", "[")


def programs() -> tuple[dict[str, str], dict[str, list[str]]]:
    """The programs of the page by file name, each after the prelude, and what is said of each."""
    texts: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    name = ""
    for kind, mark, text in blocks():
        if kind == "text":
            said[name] = [unwrapped(message) for message in re.split(r"\n(?=(?:error|note): )", text)]
        elif not mark:
            name = f"block_{len(texts):02}.py"
            texts[name] = prelude() + text
            said[name] = []
    return texts, said


@pytest.mark.skipif(np.__version__ < "2", reason="mypy names NumPy's own types, which NumPy 1 has other names for")
def test_the_page_is_true(tmp_path_factory: pytest.TempPathFactory) -> None:
    """mypy says of each program exactly what the page says, on lines of any length."""
    texts, said = programs()
    if not hasattr(dagpu, "CudaGraph"):
        texts = {name: text for name, text in texts.items() if "CudaGraph" not in text}
    checker = Checker(tmp_path_factory.mktemp("docs"), dependencies(tmp_path_factory))
    checker.write(texts)
    found: dict[str, list[str]] = {name: [] for name in texts}
    above = len(prelude().splitlines())
    for message in checker.check(*texts):
        code = f"  [{message.code}]" if message.code else ""
        # The page counts lines from the beginning of each program.
        text = re.sub(r"(?<=on line )\d+", lambda match: str(int(match[0]) - above), message.text)
        found[message.file].append(unwrapped(f"{message.kind}: {text}{code}"))
    assert found == {name: said[name] for name in texts}


def test_every_code_is_on_the_page() -> None:
    """Each error code of the plugin has a section, with a program that is refused with it."""
    codes = (ROOT / "dagpu" / "mypy_plugin" / "messages.py").read_text(encoding="utf-8")
    wanted = re.findall(r'ErrorCode\("([\w-]+)"', codes)
    assert len(wanted) == 12
    for code in wanted:
        assert f"### {code}\n" in PAGE
        assert re.search(rf"(^|  )\[{code}\]$", PAGE, re.MULTILINE)


def test_the_hook_runs_a_command_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The hook of .pre-commit-hooks.yaml calls an existing command of `python -m dagpu`, and the page names its id."""
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^[- ] (\w+): (.*)$", hook, re.MULTILINE))
    assert f"id: {fields['id']}" in PAGE
    assert fields["entry"].startswith("python -m dagpu ")
    with pytest.raises(SystemExit) as exited:
        main([*fields["entry"].split()[3:], "--help"])
    assert exited.value.code == 0
    assert "mypy" in capsys.readouterr().out
