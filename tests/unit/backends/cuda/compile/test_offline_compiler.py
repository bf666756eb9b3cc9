"""`compile(arch=)` and `python -m dagpu compile`: kernels are checked where there is no GPU."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagpu import CompileError, In, KernelArgumentError, Out, array, expr, f32, kernel
from dagpu.__main__ import main
from dagpu.backends.cuda import declared_kernels, find_compiler
from dagpu.backends.cuda.compile import compiler as compiling
from dagpu.backends.cuda.compile.compiler import Compiled, Compiler
from dagpu.backends.cuda.compile.nvidia_compilers import Refusal, load_nvrtc
from dagpu.entry import commands
from dagpu.handles.device_handles import INSTALL_NVRTC
from dagpu.testing import KernelSpec
from tests.unit.backends.cuda.compile.compiler_fakes import FakeNvrtc, cubin

TWICE = "__global__ void twice(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = 2 * x[i]; }"


def in_a_function() -> Any:
    @kernel(cuda=TWICE)
    def twice(y: Out[f32], x: In[f32]) -> None: ...

    return twice


@kernel(cuda=TWICE, checked=True, options=("-lineinfo",))
def twice(y: Out[f32], x: In[f32]) -> None: ...


bounded = expr(f32)(lambda x: array.clip(x, 0.0, 1.0))

SCRIPT = """
from dagpu import In, Out, expr, f32, kernel

assert __name__ != "__main__"


@kernel(cuda='''
__global__ void twice(Tile<float, 1> y, View<const float, 1> x) {
    for (auto i : y) y[i] = 2 * WRONG[i];
}
''')
def twice(y: Out[f32], x: In[f32]) -> None: ...


wide = twice.block(32)
half = expr(f32)(lambda x: x / 2)
"""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvrtc:
    """A compiler of everything."""
    compiler = FakeNvrtc(cubin("_Z5twicev"))
    monkeypatch.setattr(compiling, "_compiler", lambda _: Compiler(compiler, "", tmp_path / "cache"))
    monkeypatch.setattr(commands, "find_compiler", lambda **_: "NVRTC 13.0")
    return compiler


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(SCRIPT.replace("WRONG", "x"), encoding="utf-8")
    return path


def test_a_kernel_is_compiled_for_an_architecture(fake: FakeNvrtc) -> None:
    """With its own options, bounds checks where it has them, and its place in the user's file."""
    twice.compile(arch="sm_90a")
    ((text, file, options),) = fake.asked
    assert file == __file__
    assert TWICE in text
    line = next(n for n, code in enumerate(Path(file).read_text().splitlines(), 1) if code.startswith("TWICE ="))
    assert f'#line {line} "{file}"' in text
    assert {"-arch=sm_90a", "-DDAGPU_CHECKED", "-lineinfo"} <= set(options)


def test_an_expression_is_compiled_too(fake: FakeNvrtc) -> None:
    """The kernel for contiguous tensors, as it is shown."""
    fake.result = cubin("_Z10expressionv")
    bounded.compile(arch="sm_80")
    assert bounded.cuda in fake.asked[0][0]
    assert "-fmad=false" in fake.asked[0][2]
    for reduced, symbol in ((bounded.sum(), "_Z14expression_sumv"), (bounded.softmax(0), "_Z18expression_softmaxv")):
        fake.result = cubin(symbol)
        reduced.compile(arch="sm_80")
        assert reduced.cuda in fake.asked[-1][0]


def test_a_wrong_architecture_is_refused(fake: FakeNvrtc) -> None:
    """Before a compiler is asked."""
    for wrong in ("hopper", "90", "sm_9", ""):
        with pytest.raises(KernelArgumentError, match=re.escape(f"compile(arch={wrong!r}) names no architecture")):
            twice.compile(arch=wrong)
    assert not fake.asked


def test_the_kernels_of_a_file_are_listed() -> None:
    """By their lines, also those of a closure; a copy with another block is none of its own."""
    made, wide = in_a_function(), twice.block(64)
    assert wide.spec.cuda == twice.spec.cuda
    assert declared_kernels(__name__) == [made, twice, bounded]
    assert declared_kernels(SimpleNamespace(__file__=compiling.__file__)) == []  # type: ignore[arg-type]  # reason: no module


def test_a_file_is_compiled(fake: FakeNvrtc, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each kernel, and 0 if all compile."""
    fake.result = cubin("_Z5twicev", "_Z10expressionv")
    assert main(["compile", str(script)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{script}:7: twice: compiles for sm_90 with NVRTC 13.0",
        f"{script}:16: half: compiles for sm_90 with NVRTC 13.0",
        "2 of 2 kernels compile for sm_90 with NVRTC 13.0",
    ]


def test_the_compilers_of_a_file_are_told(
    fake: FakeNvrtc, script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NVRTC refuses, nvcc may compile: its kernels are named. With --nvrtc, no other compiler is asked."""
    asked: list[bool] = []

    def compiled(spec: KernelSpec, arch: str, *, nvrtc_only: bool) -> Compiled:
        asked.append(nvrtc_only)
        return Compiled(b"", "", compiler="nvcc" if spec.name == "twice" else "NVRTC 13.0")

    monkeypatch.setattr(commands, "compile_for", compiled)
    assert main(["compile", str(script)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("twice: compiles for sm_90 with nvcc")
    assert said[-1] == "2 of 2 kernels compile for sm_90: 1 with nvcc (twice), 1 with NVRTC 13.0"
    assert main(["compile", str(script), "--nvrtc"]) == 0
    assert asked[:2] == [False, False]
    assert all(asked[2:])


def test_a_refused_kernel_is_shown_with_its_line(
    fake: FakeNvrtc, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's line, the other kernels all the same, and the exit status 1."""
    fake.result = Refusal(
        f'{script}(9): error: identifier "z" is undefined\n      y[i] = 2 * z[i];\n                 ^\n'
    )
    assert main(["compile", str(script), "--arch", "sm_80"]) == 1
    said = capsys.readouterr().out
    assert f"{script}:7: twice: refused" in said
    assert f'{script}:9: identifier "z" is undefined' in said
    assert "0 of 2 kernels compile for sm_80" in said


def test_what_cannot_be_compiled_at_all(
    fake: FakeNvrtc, script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that does not exist or cannot be imported, a wrong architecture, no compiler: the exit status is 2."""
    assert main(["compile", "nowhere.py"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err
    assert main(["compile", str(script), "--arch", "hopper"]) == 2
    assert "names no architecture" in capsys.readouterr().err
    script.write_text("import this_is_no_module", encoding="utf-8")
    assert main(["compile", str(script)]) == 2
    assert "cannot be imported: ModuleNotFoundError" in capsys.readouterr().err
    monkeypatch.setattr(commands, "find_compiler", lambda **_: None)
    assert main(["compile", str(script)]) == 2
    assert INSTALL_NVRTC in capsys.readouterr().err


def test_a_file_of_a_package_is_imported_by_its_name(
    fake: FakeNvrtc, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its relative imports work."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "package_of_kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sources.py").write_text(f"TWICE = {TWICE!r}", encoding="utf-8")
    text = "from dagpu import In, Out, f32, kernel\nfrom .sources import TWICE\n\n\n@kernel(cuda=TWICE)\n"
    (package / "kernels.py").write_text(text + "def twice(y: Out[f32], x: In[f32]) -> None: ...\n", encoding="utf-8")
    assert main(["compile", str(package / "kernels.py")]) == 0
    assert "1 of 1 kernels" in capsys.readouterr().out


def test_a_typo_is_found_by_the_real_compiler(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a GPU, in the user's file."""
    if load_nvrtc() is None:
        pytest.skip("NVRTC is not installed: pip install '.[nvrtc]'")
    assert str(find_compiler()).startswith("NVRTC")
    twice.compile(arch="sm_90")
    bounded.compile(arch="sm_90")
    script.write_text(SCRIPT.replace("WRONG", "z"), encoding="utf-8")
    assert main(["compile", str(script)]) == 1
    assert f'{script}:9: identifier "z" is undefined' in capsys.readouterr().out
    with pytest.raises(CompileError, match=r"does not know|unsupported|invalid|nvrtc"):
        twice.compile(arch="sm_10")
