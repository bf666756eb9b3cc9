"""Every kernel of the project, checked: its CUDA text in three orders of threads and blocks, with and without
contraction, against its host body. These are the kernels that `make kernels` compiles."""

from collections import Counter
from functools import cache
from importlib import import_module
from typing import Any, Final

import pytest

from dagpu import Kernel
from dagpu.__main__ import main
from dagpu.backends.cuda.compile.compiler import declared_kernels
from dagpu.testing import KernelSpec, checking_kernels
from tests.conftest import MARKS
from tests.project.kernels.declared_launches import GPU_ALONE, SCRIPTS, launched, name_of
from tests.project.kernels.every_kernel import declaring_modules
from tests.project.kernels.generated_kernels import generated_ops, kernels_of
from tests.support.bits import same_bits
from tests.support.paths import ROOT
from tests.support.text_runs import arrays_of

pytestmark = [*MARKS, pytest.mark.host_only("the texts run on the host")]

PARTS: Final = 16
"""The parts of the generated kernels, so that the processes of a run share them."""


@cache
def ops() -> list[tuple[Any, list[KernelSpec]]]:
    """The ops of the generated kernels, made once in a process."""
    return list(generated_ops())


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_kernels(part: int) -> None:
    """Each launch of an op that has a kernel of its own is right."""
    for op, kernels in ops()[part::PARTS]:
        texts = {(kernel.name, kernel.cuda) for kernel in kernels_of(op) if kernel.cuda}
        wanted = Counter(name for name, _ in texts)
        with checking_kernels() as checked:
            found = op.sync()
        if any(kernel.host.together for kernel in kernels):
            for one, other in zip(arrays_of(found), arrays_of(op.sync()), strict=True):
                assert same_bits(one, other), wanted
        assert {(kernel.name, kernel.cuda) for kernel in kernels} <= texts
        assert not wanted - Counter(checked.launches)


@pytest.mark.parametrize("module", list(declaring_modules()))
def test_declared_kernels(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each kernel of a module is launched, or it is said why a GPU alone runs it."""
    declared = [each for each in declared_kernels(import_module(module)) if isinstance(each, Kernel)]
    if module.removeprefix("examples.") in SCRIPTS:
        assert main(["check-kernels", str(ROOT / f"{module.replace('.', '/')}.py")]) == 0
        said = capsys.readouterr().out
        assert all(f"\n{kernel.spec.name}: " in f"\n{said}" and "not launched" not in said for kernel in declared), said
        return
    found = []
    for spec, op in launched(module):
        with checking_kernels() as checked:
            op.sync()
        assert checked.launches == {spec.name: 1}
        found.append(name_of(spec))
    alone = [name for of, name in GPU_ALONE if of == module]
    assert sorted(found + alone) == sorted(name_of(kernel.spec) for kernel in declared)
