"""`python -m dagpu check-kernels`: the kernels of scripts, those of the examples too."""

import re
from pathlib import Path

import numpy as np
import pytest

from dagpu import CompileError, array, f16, f32, zeros
from dagpu.__main__ import main
from dagpu.arrays.running_sums import PLAIN, prefix_kernel, scan_shape
from dagpu.backends.host.cuda_text.loaded_kernel import loaded_kernel
from dagpu.backends.kernel_text.launch_params import usual_variant
from dagpu.ops.compose import Launch
from dagpu.testing import Mode, nodes_of
from tests.conftest import only_deep
from tests.support.example_scripts import example
from tests.support.paths import ROOT

pytestmark = pytest.mark.host_only("the texts run on the host")

SCRIPT = """
import numpy as np
from dagpu import In, Out, arange, f32, kernel

@kernel(cuda="__global__ void launched(Tile<float, 1> y, View<const float, 1> x) { for (auto i : y) y[i] = x[i]; }")
def launched(y: Out[f32], x: In[f32]) -> None: ...

@launched.host(whole=True)
def _(y, x): y[...] = BY * x

@kernel(cuda="__global__ void other(Tile<float, 1> y) { for (auto i : y) y[i] = WHAT; }")
def other(y: Out[f32]) -> None: ...

launched.new((8,), (4,))(arange(8)).sync()
"""


@pytest.mark.parametrize(
    ("by", "what", "status", "says"),
    [
        ("1", "1", 0, "launched: 1 launches are right"),
        ("2", "1", 1, "by its host body"),
        ("1", "nothing", 1, "other: refused"),
    ],
)
def test_a_script(
    by: str, what: str, status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is launched is checked, the rest is compiled, and the status says whether all is right."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("BY", by).replace("WHAT", what))
    assert main(["check-kernels", str(file)]) == status
    assert says in capsys.readouterr().out


def test_a_script_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, and the status is 2."""
    assert main(["check-kernels", "nowhere.py"]) == 2
    assert "nowhere.py" in capsys.readouterr().err


def test_a_file_of_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is no script: the message says how to declare its kernels in one, and that script is checked."""
    file = tmp_path / "ones.cu"
    file.write_text("__global__ void ones(float* y) { y[threadIdx.x] = 1; }")
    assert main(["check-kernels", str(file)]) == 2
    said = capsys.readouterr().err
    declaration = re.search(r"@kernel\((.*)\), and pass the script", said)
    assert declaration is not None, said
    script = tmp_path / "script.py"
    script.write_text(
        "from dagpu import Out, f32, kernel\n"
        f"@kernel({declaration[1]}, block=8)\ndef ones(y: Out[f32]) -> None: ...\nones.new((8,), (8,))().sync()\n"
    )
    assert main(["check-kernels", str(script)]) == 0
    assert "ones: 1 launches are right" in capsys.readouterr().out


def test_a_launch_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its kernel is not listed among those that were not launched."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("BY", "2").replace("WHAT", "1"))
    assert main(["check-kernels", str(file)]) == 1
    said = capsys.readouterr().out
    assert "\nlaunched: no launch is right\n" in said
    assert "launched: compiles" not in said
    assert "other: compiles" in said


def test_what_the_compiler_makes_of_a_text_is_not_refused() -> None:
    """A loop that moves elements is compiled as one, and not as a call of memmove; a comparison of halves, which GCC
    makes of one of floats, is a call that has no pointers."""
    moves = prefix_kernel("cumsum", np.dtype(np.int32), PLAIN, scan_shape((1, 2, 1)), False, True)
    differs = array.stencil(f16)(lambda n: n[-1] != n[0])(zeros((4,), f16))
    (compares,) = [node.kernel for node in nodes_of(differs) if isinstance(node, Launch)]
    for spec in (moves, compares):
        loaded_kernel(spec, usual_variant(spec), Mode(checked=False))


def test_attend_is_refused() -> None:
    """The kernel of the decode example has inline assembly."""
    spec = example("decode.attention").Attention(f32, example("decode.parts").Sizes()).attend.spec
    with pytest.raises(CompileError, match="inline assembly"):
        loaded_kernel(spec, usual_variant(spec), Mode())


@only_deep
@pytest.mark.parametrize("name", ["top_five", "kmeans"])
def test_the_kernels_of_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each launch of the texts that dagpu has made is right. `tests/project/kernels` checks the kernels that examples
    declare."""
    assert main(["check-kernels", str(ROOT / "examples" / f"{name}.py")]) == 0
    assert "refused" not in capsys.readouterr().out
