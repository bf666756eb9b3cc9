"""Properties of the tests in tests/gpu that can be checked without a GPU."""

import ast

from tests.support.paths import ROOT

GPU = ROOT / "tests" / "gpu"


def measured() -> dict[str, bool]:
    """The tests that ask for the free memory of the whole GPU, and whether each is marked as exclusive."""
    found = {}
    for file in sorted(GPU.rglob("test_*.py")):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for test in (node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
            if "memory_info()[0]" in ast.unparse(test):  # whoever asks for the total alone says [1]
                marks = [ast.unparse(mark) for mark in test.decorator_list]
                found[f"{file.name}::{test.name}"] = "pytest.mark.exclusive" in marks
    return found


def test_what_measures_the_whole_gpu_runs_alone() -> None:
    """Other test processes take and give back memory of the same GPU: nothing that is free there stays as it was."""
    assert len(measured()) >= 2
    assert [name for name, exclusive in measured().items() if not exclusive] == []
