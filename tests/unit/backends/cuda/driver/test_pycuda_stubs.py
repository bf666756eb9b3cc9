"""The stubs for PyCUDA: what needs no PyCUDA to be checked, and where it is installed the check against it."""

import ast
import ctypes
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.paths import ROOT

STUBS: Final = ROOT / "stubs" / "pycuda-stubs"


def _scripts() -> Iterator[Any]:
    """The scripts beside the stubs, in the order in which they import each other. They are found by their paths, and
    not by sys.path: there, the folder of the stubs would pass for PyCUDA itself."""
    names = ("boost_signatures", "driver_types", "check")
    for name in names:
        spec = importlib.util.spec_from_file_location(name, STUBS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    for name in names:
        del sys.modules[name]


boost_signatures, driver_types, check = _scripts()


# ---- what the stubs say of themselves --------------------------------------------------------------------------------


def names_in(file: str, owner: str) -> set[str]:
    """The attributes that a class in a stub declares."""
    tree = ast.parse((STUBS / "pycuda" / file).read_text(encoding="utf-8"))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
    return {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


@pytest.mark.parametrize(
    ("attributes", "constants", "left_out"),
    [
        ("DeviceAttributes", "device_attribute", {"pci_bus_id"}),  # a method of Device's own comes first
        ("FunctionAttributes", "function_attribute", {"max"}),  # the end of the enumeration, and no attribute
    ],
)
def test_attributes_are_the_constants_in_lower_case(attributes: str, constants: str, left_out: set[str]) -> None:
    """PyCUDA serves each constant as an attribute by __getattr__; stubtest cannot see it."""
    lowered = {name.lower() for name in names_in("_driver.pyi", constants)}
    assert lowered
    assert names_in("_attributes.pyi", attributes) == lowered - left_out


def test_every_excuse_has_a_reason() -> None:
    """Each group of entries in stubtest's allow-list stands under a comment, and is a regular expression."""
    header, *groups = (STUBS / "stubtest-allowlist.txt").read_text(encoding="utf-8").strip().split("\n\n")
    assert header.startswith("#")
    assert groups
    for group in groups:
        reason, *entries = group.split("\n")
        assert reason.startswith("# "), group
        assert [entry for entry in entries if not entry.startswith("#")], group
        for entry in entries:
            re.compile(entry)


# ---- reading Boost.Python's docstrings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "parameters"),
    [
        ("get_version() -> tuple :", "()"),
        ("init([  (int)flags=0]) -> None :", "(flags=0)"),
        ("mem_alloc( (int)arg1) -> DeviceAllocation :", "(a, /)"),
        ("__init__( (object)arg1 [, (int)flags]) -> None :", "(a, /, flags=Ellipsis)"),
        (
            "module_from_buffer( (object)buffer [, (object)options=[] [, (object)message_handler=None]]) -> Module :",
            "(buffer, options=[], message_handler=None)",
        ),
        (
            "add_data( (Linker)arg1, (object)data, (jit_input_type)input_type [, (str)name='unknown']) -> None :",
            "(a, /, data, input_type, name='unknown')",
        ),
    ],
)
def test_signatures_are_read_from_docstrings(line: str, parameters: str) -> None:
    """Names, defaults and what is positional alone, from the forms that Boost.Python writes."""
    (found,) = boost_signatures.boost_signatures(f"\n{line}\n\n    C++ signature :\n        void f(int)")
    assert str(found.parameters) == parameters


Parameter = tuple[str, str, str]
"""Type, name ("" for none), default in Python ("" for none)."""


@st.composite
def signatures(draw: st.DrawFn) -> list[Parameter]:
    """Return the signatures in C++ form: parameters without names first, those with defaults last."""
    types = st.sampled_from(["int", "object", "Stream", "str"])
    named = draw(st.lists(st.sampled_from(["dest", "size", "stream", "flags", "order"]), unique=True))
    unnamed = draw(st.integers(0, 3))
    with_default = draw(st.integers(0, len(named)))
    defaults = [draw(st.sampled_from(["0", "None", "'C'", "[]", "False", "4096"])) for _ in range(with_default)]
    names = [""] * unnamed + named
    return [
        (draw(types), name, default)
        for name, default in zip(names, [""] * (len(names) - with_default) + defaults, strict=True)
    ]


def written(parameters: list[Parameter], result: str) -> str:
    """Return the text that Boost.Python writes for it."""
    text = ""
    for place, (kind, name, default) in enumerate(parameters):
        comma = ", " if place else " "
        opens = " [" if default else ""
        text += f"{opens}{comma}({kind}){name or f'arg{place + 1}'}" + (f"={default}" if default else "")
    return f"f({text}{']' * sum(bool(default) for *_, default in parameters)}) -> {result} :"


@given(signatures(), st.sampled_from(["None", "tuple", "Stream"]))
def test_reading_undoes_writing(parameters: list[Parameter], result: str) -> None:
    """Whatever C++ can declare is read back: types, names, defaults and the result."""
    (found,) = boost_signatures.boost_signatures(written(parameters, result))
    assert (list(found.types), found.result) == ([kind for kind, *_ in parameters], result)
    for read, (_, name, default) in zip(found.parameters.parameters.values(), parameters, strict=True):
        assert (read.kind is inspect.Parameter.POSITIONAL_ONLY) == (name == "")
        assert name in ("", read.name)
        assert read.default == (ast.literal_eval(default) if default else inspect.Parameter.empty)


def test_overloads_have_no_one_signature() -> None:
    """A function with two is left to the comparison of types, which knows overloads."""
    function = boost_function("f( (int)arg1) -> None :\n\nf( (str)arg1) -> None :")
    with pytest.raises(ValueError, match="2 signatures"):
        boost_signatures.signature_of(function)


# ---- comparing types -------------------------------------------------------------------------------------------------


def boost_function(docstring: str) -> object:
    """Something that passes for a function of a Boost.Python module."""
    return type("function", (), {"__module__": "Boost.Python", "__doc__": docstring})()


@pytest.mark.parametrize(
    ("stub", "complaints"),
    [
        ("def f(a: int, /) -> bool: ...", 0),
        ("def f(a: int, b: int = 0, /) -> bool: ...", 0),
        ("def f(a: str, /) -> bool: ...", 2),
        ("def f(a: int, /) -> int: ...", 2),
        ("def f(a: int, b: int, /) -> bool: ...", 2),
        ("def f() -> bool: ...", 2),
        ("@overload\ndef f(a: int, /) -> bool: ...\n@overload\ndef f(a: str, /) -> bool: ...", 1),
        ("", 1),
    ],
)
def test_a_type_that_differs_is_reported(tmp_path: Path, stub: str, complaints: int) -> None:
    """Each overload that one side alone has is a line; a parameter more is no harm if it may be left out."""
    module = ModuleType("driver")
    vars(module)["f"] = boost_function("f( (int)arg1) -> bool :")
    path = tmp_path / "_driver.pyi"
    path.write_text(stub, encoding="utf-8")
    compared, lines = driver_types.disagreements(module, driver_types.Stub.read(path))
    assert (compared, len(lines)) == (1, complaints), lines


def test_methods_are_found_in_bases_and_self_is_no_parameter(tmp_path: Path) -> None:
    """A method may stand in a base of the stub's; `object` in a docstring takes any type; Self is the class."""
    module = ModuleType("driver")
    record = boost_function("record( (Event)arg1 [, (object)stream=None]) -> Event :")
    vars(module)["Event"] = type("Event", (), {"record": record})
    path = tmp_path / "_driver.pyi"
    path.write_text(
        "class _Base:\n    def record(self, stream: Stream | None = None) -> Self: ...\nclass Event(_Base): ...\n",
        encoding="utf-8",
    )
    assert driver_types.disagreements(module, driver_types.Stub.read(path)) == (1, [])


# ---- the check itself ------------------------------------------------------------------------------------------------


def test_without_pycuda_the_check_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No pass and no traceback: what is missing, for which Python, and how to get it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert check.main() == 2
    assert "PyCUDA is not installed" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_stand_in_has_a_device_and_nothing_else(tmp_path: Path) -> None:
    """It initialises and counts one device; a function that it knows nothing of answers CUDA_ERROR_NO_DEVICE."""
    library = ctypes.CDLL(str(check.stand_in(["cuInit", "cuDeviceGetCount", "cuMemAlloc_v2"], tmp_path)))
    count = ctypes.c_int()
    assert library.cuInit(0) == 0
    assert library.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert (count.value, library.cuMemAlloc_v2(None, 64)) == (1, 100)


@pytest.mark.skipif(importlib.util.find_spec("pycuda") is None, reason="PyCUDA is not installed")
def test_stubs_agree_with_the_pycuda_that_is_installed() -> None:
    """stubtest and the comparison of types find nothing beyond the allow-list; with no GPU, a stand-in will do."""
    done = subprocess.run(
        [sys.executable, STUBS / "check.py"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
