"""`python -m dagpu`: commands, explain and trace. `check` has tests of its own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dagpu
from dagpu import device
from dagpu.__main__ import main
from dagpu.common.env_vars import VARIABLES, Variable
from dagpu.entry import commands
from dagpu.entry.commands import SelfTestResult, examine

SCRIPT = """
import sys
from dagpu import ones, zip_ops

assert __name__ == "__main__" and sys.argv[1:] == ["--size", "8"], sys.argv
a, b = zip_ops(ones((8,)).to_host(), ones((8,)).to_host()).sync()
print("sum", a.sum() + b.sum())
zip_ops(ones((8,)).to_host(), ones((8,)).to_host()).sync()
sys.exit(3)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "pipelines.py"
    file.write_text(SCRIPT, encoding="utf-8")
    return str(file)


def test_info_says_what_is_here_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions, devices with a self-test, why there is no GPU, and the default device."""
    with dagpu.use_device("host"):
        assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert f"dagpu {dagpu.__version__}" in said
    assert f"numpy {np.__version__}" in said
    assert any(line.startswith("host:0") and line.endswith("passed") for line in said.splitlines())
    assert ("No CUDA device: " in said) is not any(each.kind == "cuda" for each in dagpu.devices())


@pytest.mark.parametrize("closed", [True, False])
def test_a_command_ends_quietly_when_its_reader_has_gone(closed: bool) -> None:
    """As `python -m dagpu info | head -1` does; a broken pipe of another kind is an error."""
    script = "import sys, dagpu.__main__ as m; sys.exit(m._main())"
    if not closed:
        script = f"import dagpu.__main__ as m\ndef broken(_): raise BrokenPipeError\nm.main = broken\n{script}"
    command = [sys.executable, "-c", script, "info"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        if closed:
            ran.stdout.close()
        said = ran.stderr.read()
    assert ran.returncode == (141 if closed else 1)
    assert ("BrokenPipeError" in said) is not closed


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_info_names_a_wrong_variable(
    variable: Variable[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that an environment variable does not take is told with the cure, and the exit status is 1."""
    monkeypatch.setenv(variable.name, "wrong!")
    assert main(["info"]) == 1
    said = capsys.readouterr().out
    assert f"dagpu {dagpu.__version__}" in said
    assert f"{variable.name}='wrong!'" in said
    assert variable.cure in said


def test_every_device_is_examined() -> None:
    """With a kernel, copies both ways, and two branches."""
    assert examine(device("host:1")) == SelfTestResult("host:1", True, "passed")


def test_a_device_with_wrong_results_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with wrong results is found, and one that raises any exception: the exit status is not 0."""

    def wrong(*arguments: object) -> None:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(commands.self_test.spec.host, "function", wrong)
    found = examine(device("host:0"))
    assert (found.works, found.what) == (False, "RuntimeError: the device is on fire")
    assert commands.info() == 1
    monkeypatch.setattr(commands.self_test.spec.host, "function", lambda y, a, x: y.fill(7))
    assert not examine(device("host:0")).works


def test_explain_prints_each_plan_once(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script runs as ever, its status is the command's, and each place of the script has its own plan."""
    before = list(sys.path), list(sys.argv)
    assert main(["explain", script, "--", "--size", "8"]) == 3
    said = capsys.readouterr().out
    assert "sum 16.0" in said
    assert said.count("--- zip_ops at") == 2
    assert "pipelines.py:6" in said
    assert (sys.path, sys.argv) == before


def test_trace_writes_a_timeline(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For Perfetto, of all runs of the script, though it ends with a status."""
    out = tmp_path / "run.json"
    assert main(["trace", script, "--out", str(out), "--", "--size", "8"]) == 3
    assert "2 runs" in capsys.readouterr().out
    names = {event.get("name") for event in json.loads(out.read_text(encoding="utf-8"))["traceEvents"]}
    assert any("CopyDtoH" in str(name) for name in names)


def test_a_script_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Is an error of the command line."""
    assert main(["explain", "nowhere.py"]) == 2
    assert "there is no script nowhere.py" in capsys.readouterr().err


def test_a_command_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """Says which there are."""
    with pytest.raises(SystemExit) as caught:
        main(["nonsense"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert all(command in said for command in ("info", "explain", "trace", "check"))


def test_arguments_of_a_script_without_the_dashes(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says where they go, as a command that can be pasted. So it does for those of mypy."""
    for given, cure in (
        (["trace", script, "3"], f"python -m dagpu trace {script} -- 3"),
        (["explain", script, "--size", "8 9"], f"python -m dagpu explain {script} -- --size '8 9'"),
        (["check", "src", "--strict"], "python -m dagpu check src -- --strict"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(given)
        assert caught.value.code == 2
        assert capsys.readouterr().err.rstrip().endswith(f" follow --: {cure}")
    with pytest.raises(SystemExit):
        main(["info", "3"])
    assert "--:" not in capsys.readouterr().err
