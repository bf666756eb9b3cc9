"""The larger examples on a simulated GPU: as they stand, streams, packed parameters and all."""

from pathlib import Path

import pytest

from tests.simulated.cuda import installed
from tests.simulated.libraries import libraries
from tests.support.example_scripts import SCRIPTS, main_of

ARGUMENTS = {
    "photo": ["--quick", "--photo", "flower.jpg", "--band", "150"],
    "cholesky": ["--tiles", "3", "--edge", "16"],
    "flash_attention": ["--quick"],
    "life": ["--rows", "20", "--columns", "30", "--frames", "8"],
    "server": ["--clients", "8", "--requests", "24", "--epochs", "3"],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_example_runs_on_a_gpu_unchanged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its assertions hold there too, nothing is read before it is written, and it says where it ran."""
    monkeypatch.chdir(tmp_path)
    (script,) = (main_of(script) for script in SCRIPTS if script.stem == name)
    with installed(seed=11):
        script.main(ARGUMENTS[name])
    assert "on cuda:0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["canny", "kmeans", "pagerank", "spectrum", "top_five"])
def test_an_example_of_arrays_runs_on_a_gpu_unchanged(name: str) -> None:
    """All its assertions hold there too, nothing is read before it is written; the transforms are calls of cuFFT."""
    (script,) = (main_of(script) for script in SCRIPTS if script.stem == name)
    with installed(seed=11) as machine, libraries(machine):
        script.main()
