"""Environment variables: each is read in one place, names itself where its value is wrong, and is documented."""

import ast
import re
from collections.abc import Callable
from typing import Any

import pytest

from dagpu import CostModel, DeviceError, Out, current_device, f32, kernel, ones, plan_of, use_device, value
from dagpu.backends.cuda.resources.cuda_device import pinned_room
from dagpu.backends.host.cuda_text.compilers import find_cxx
from dagpu.backends.host.numpy_execution import runs_text
from dagpu.backends.kernel_text.disk_cache import default_cache_dir
from dagpu.cluster.backend import ClusterBackend
from dagpu.common import env_vars
from dagpu.common.env_vars import COMPILED, VARIABLES
from dagpu.entry.commands import self_test
from dagpu.interop.foreign_bodies import BodyList
from dagpu.testing import HostBackend
from tests.support.paths import ROOT


def declare() -> object:
    """Declares a kernel, and gives whether it is checked."""

    @kernel(cuda="__global__ void one(Tile<float, 1> y) {}")
    def one(y: Out[f32]) -> None: ...

    return one.spec.checked


def explored() -> object:
    with use_device("explore:0"):
        return ones((1,)).to_host().sync()


def chosen_body() -> str:
    bodies = BodyList("op", None, (), 0)
    bodies.add("raw", lambda lane: None, on_host=False)
    return bodies.choose()[0].kind


def tasks_of_a_cluster() -> object:
    engine: Any = None  # nothing is run
    backend = ClusterBackend({"w0": ["host:0"]}, engine, CostModel())
    return [task.name for task in backend.tasks_of(plan_of(ones((1,))).program).tasks]


def run_text() -> object:
    """Runs a kernel that has a text alone, or asks for its code."""

    @kernel(cuda="__global__ void one(Tile<float, 1> y) { for (auto i : y) y[i] = 1; }")
    def one(y: Out[f32]) -> None: ...

    return one.new((1,), (1,))().sync(), runs_text(self_test.spec)


READERS: dict[str, Callable[[], object]] = {
    "DAGPU_CACHE_DIR": default_cache_dir,
    "DAGPU_CHECKED": declare,
    "DAGPU_CLUSTER_NAMES": tasks_of_a_cluster,
    "DAGPU_COMPILED": COMPILED.get,
    "DAGPU_CXX": find_cxx,
    "DAGPU_DEVICE": current_device,
    "DAGPU_DIRECT": lambda: value(0).map(str).sync(),
    "DAGPU_EXPLORE_SEED": explored,
    "DAGPU_FOREIGN": chosen_body,
    "DAGPU_HOST": run_text,
    "DAGPU_HOST_CHECKS": run_text,
    "DAGPU_HOST_DEVICES": lambda: HostBackend().device(5),
    "DAGPU_MAX_CLOSURES": lambda: value(0).map(str).sync(),
    "DAGPU_MEASURE": lambda: type(HostBackend().prepare(plan_of(ones((1,))))),
    "DAGPU_PINNED_BYTES": pinned_room,
    "DAGPU_SPIN_US": lambda: value(0).map(str).sync(),
    "DAGPU_VERIFY": lambda: ones((1,)).sync(),
}
"""Something that reads each."""

WRONG = {
    "DAGPU_CACHE_DIR": ["cache", "./cache"],
    "DAGPU_CHECKED": ["maybe", "2"],
    "DAGPU_CLUSTER_NAMES": ["short"],
    "DAGPU_COMPILED": ["c"],
    "DAGPU_CXX": ["no-such-compiler"],
    "DAGPU_DEVICE": ["tpu", "host:x", "host:99"],
    "DAGPU_DIRECT": ["never"],
    "DAGPU_EXPLORE_SEED": ["x", "1.5"],
    "DAGPU_FOREIGN": ["jax", "TORCH"],
    "DAGPU_HOST": ["numpy", "1"],
    "DAGPU_HOST_CHECKS": ["most"],
    "DAGPU_HOST_DEVICES": ["many", "0", "-1"],
    "DAGPU_MAX_CLOSURES": ["0", "all"],
    "DAGPU_MEASURE": ["sometimes"],
    "DAGPU_PINNED_BYTES": ["1G", "-1", "1e9"],
    "DAGPU_SPIN_US": ["soon", "-1", "nan"],
    "DAGPU_VERIFY": ["perhaps"],
}
"""Values that mean nothing."""


def test_all_are_listed() -> None:
    """The list has every variable of dagpu's that its source names, and each has a reader here."""
    assert {variable.name for variable in VARIABLES} == READERS.keys()
    assert WRONG.keys() == READERS.keys()


def test_nothing_else_reads_the_environment() -> None:
    """`os.environ` is read for variables of dagpu's in `dagpu.common.env_vars` alone."""
    for path in sorted((ROOT / "dagpu").rglob("*.py")):
        if path.name == "env_vars.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value=str(name)), *_])
                    | ast.Subscript(slice=ast.Constant(value=str(name)))
                ):
                    assert not name.startswith("DAGPU_"), f"{path}:{node.lineno}"
                case _:
                    pass


@pytest.mark.host_only("the default device is part of it")
@pytest.mark.parametrize("name", READERS)
def test_empty_is_as_good_as_not_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`DAGPU_DEVICE= python program.py` is how a shell takes a setting back."""
    monkeypatch.delenv(name, raising=False)
    unset = repr(READERS[name]())
    monkeypatch.setenv(name, "")
    assert repr(READERS[name]()) == unset


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_a_wrong_value_names_the_variable(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the variable, its value, what it takes, and an example; with that the program runs."""
    monkeypatch.setenv(name, text)
    with pytest.raises((ValueError, DeviceError), match=re.escape(f"{name}={text!r}")) as caught:
        READERS[name]()
    assert str(caught.value).endswith("or unset it.")
    variable = next(variable for variable in VARIABLES if variable.name == name)
    assert variable.example in str(caught.value)
    monkeypatch.setenv(name, variable.example)
    if name != "DAGPU_DEVICE":  # its example wants a GPU
        READERS[name]()
    monkeypatch.delenv(name)
    READERS[name]()


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0.5", 5e-7), ("20", 2e-5), ("1e6", 1.0)])
def test_microseconds_are_read_as_seconds(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """None at all means that no wait polls; so it is a value like any other."""
    monkeypatch.setenv("DAGPU_SPIN_US", text)
    assert env_vars.SPIN_US.get() == pytest.approx(seconds)


def test_switches_take_the_usual_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, true, yes, on and 0, false, no, off, in any case."""
    for text, meant in [("1", True), ("TRUE", True), ("yes", True), ("On", True)]:
        monkeypatch.setenv("DAGPU_CHECKED", text)
        assert declare() is meant
    for text in ("0", "False", "no", "off"):
        monkeypatch.setenv("DAGPU_CHECKED", text)
        assert declare() is False


def test_the_documentation_lists_them() -> None:
    """The reference has a row for each variable, with what it takes and what it is without."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    for variable in VARIABLES:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{variable.name}` |"))
        assert f"`{variable.example}`" in row
        assert variable.takes in row
    assert page.count("| `DAGPU_") == len(VARIABLES)
    assert env_vars.__doc__
